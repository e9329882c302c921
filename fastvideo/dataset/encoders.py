"""Loading a Wan model's parts, and turning text and pixels into what the model trains on.

The diffusers parts are built from ``config.json`` and filled from safetensors files, so neither
``accelerate`` nor the meta device is needed; building on meta would lose the rotary tables, which
are not part of a checkpoint. Loading leaves the global random state as it was.

Tensor legend: B batch, C channels, T frames (pixels) or latent frames, H/W height and width,
L tokens, D text width.
"""

from __future__ import annotations

import html
import importlib.util
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.overrides import TorchFunctionMode

from fastvideo.dataset.model_files import (
    component_directory,
    read_component_config,
    weight_files,
)
from fastvideo.errors import DataError, import_extra
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

logger = init_logger(__name__)

_SHOWN_KEYS = 4


def load_transformer(
    model_dir: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    override_safetensor: str | Path | None = None,
    component: str = "transformer",
    sensitive_in_fp32: bool = False,
) -> Any:  # noqa: ANN401 - diffusers is untyped
    """Loads the ``WanTransformer3DModel`` of a model directory, on the CPU and in train mode.

    Parameters get ``dtype``; buffers (the rotary tables) keep their own, higher precision.

    Args:
        model_dir: A model in diffusers layout.
        dtype: Type of the parameters, such as the precision of the master weights.
        override_safetensor: Take the weights from this safetensors file, or this directory of
            them, instead of ``<model_dir>/transformer``.
        component: The folder; models with two experts have a ``transformer_2`` too.
        sensitive_in_fp32: Keep the parameters in float32 that diffusers keeps so (norms, time
            embedding, modulation), whatever ``dtype`` is.

    Returns:
        A ``diffusers.WanTransformer3DModel``.

    Raises:
        DataError: Files are missing, or describe or hold another class of model.
    """
    weights = None if override_safetensor is None else Path(override_safetensor).expanduser()
    return _load_component(
        Path(model_dir),
        component,
        "WanTransformer3DModel",
        dtype=dtype,
        weights=weights,
        sensitive_in_fp32=sensitive_in_fp32,
    )


def load_vae(
    model_dir: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Any:  # noqa: ANN401 - diffusers is untyped
    """Loads the ``AutoencoderKLWan`` of a model directory, frozen and in eval mode.

    Args:
        model_dir: A model in diffusers layout.
        device: Where it will run.
        dtype: Type of its parameters.

    Returns:
        A ``diffusers.AutoencoderKLWan``.

    Raises:
        DataError: Files are missing, or describe or hold another class of model.
    """
    vae = _load_component(Path(model_dir), "vae", "AutoencoderKLWan", dtype=dtype)
    return vae.eval().requires_grad_(requires_grad=False).to(device)


def vae_latent_stats(model_dir: str | Path) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Reads how a model's latents are normalised, from ``vae/config.json`` alone.

    Args:
        model_dir: A model in diffusers layout.

    Returns:
        ``(mean, std, z_dim)``: two float32 tensors of shape [C] and the number of channels C.
        Normalised latents are ``(latents - mean) / std``.

    Raises:
        DataError: The file is missing, or its values are missing or do not fit each other.
    """
    config = read_component_config(Path(model_dir), "vae")
    path = Path(model_dir) / "vae" / "config.json"
    missing = [key for key in ("latents_mean", "latents_std", "z_dim") if key not in config]
    if missing:
        message = f"{path} has no {', '.join(missing)}; expected the config of AutoencoderKLWan"
        raise DataError(message)
    mean = torch.tensor(config["latents_mean"], dtype=torch.float32)
    std = torch.tensor(config["latents_std"], dtype=torch.float32)
    z_dim = int(config["z_dim"])
    if mean.shape != (z_dim,) or std.shape != (z_dim,) or not bool((std > 0).all()):
        message = (
            f"{path}: z_dim is {z_dim}, latents_mean has shape {tuple(mean.shape)} and latents_std "
            f"{tuple(std.shape)}; expected {z_dim} numbers each, standard deviations above 0"
        )
        raise DataError(message)
    return mean, std, z_dim


@torch.no_grad()
def encode_video(vae: Any, video_BCTHW: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """Encodes pixels as latents: the mean of the posterior, not normalised.

    Args:
        vae: What :func:`load_vae` returned.
        video_BCTHW: [B, 3, T, H, W] in [-1, 1], T = 4k+1, H and W multiples of 8.

    Returns:
        [B, C, (T-1)/4+1, H/8, W/8], float32, on the CPU.
    """
    parameter = next(vae.parameters())
    pixels = video_BCTHW.to(device=parameter.device, dtype=parameter.dtype)
    posterior = vae.encode(pixels).latent_dist
    return cast("torch.Tensor", posterior.mean).float().cpu()


def clean_prompt(text: str) -> str:
    """Normalises a prompt the way ``diffusers.WanPipeline`` does before it is tokenised.

    Mojibake is repaired when ``ftfy`` is installed, HTML entities are resolved twice (captions
    from the web are often escaped twice), and runs of white space become one space.
    """
    if importlib.util.find_spec("ftfy") is not None:
        text = importlib.import_module("ftfy").fix_text(text)
    return re.sub(r"\s+", " ", html.unescape(html.unescape(text))).strip()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hides the progress bars of transformers while models load or save, and restores them."""
    controls = import_extra("transformers.utils.logging", extra="train")
    enabled = controls.is_progress_bar_enabled()
    controls.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            controls.enable_progress_bar()


class TextEncoder:
    """A tokenizer and a UMT5 encoder that turn prompts into text embeddings.

    Prompts are grouped by their number of tokens and encoded without padding, so an embedding
    does not depend on the prompts beside it.

    Attributes:
        text_len: Most tokens an embedding may have, the end token included.
        text_dim: D, the width of an embedding.
    """

    def __init__(
        self,
        tokenizer: Callable[..., Any],
        model: Any,  # noqa: ANN401 - transformers is not typed
        *,
        text_len: int = 512,
    ) -> None:
        self.text_len = text_len
        self.text_dim = int(model.config.d_model)
        self._tokenizer = tokenizer
        self._model = model

    @classmethod
    def from_model_dir(
        cls,
        model_dir: str | Path,
        *,
        device: torch.device | str = "cpu",
        text_len: int = 512,
        dtype: torch.dtype = torch.float32,
    ) -> TextEncoder:
        """Loads ``tokenizer/`` and ``text_encoder/`` of a model directory.

        Args:
            model_dir: A model in diffusers layout.
            device: Where the encoder will run.
            text_len: Most tokens of an embedding; longer prompts are cut.
            dtype: Type of the encoder's parameters.

        Raises:
            DataError: Files are missing or describe another class of model.
        """
        root = Path(model_dir)
        config = read_component_config(root, "text_encoder")
        if config.get("model_type") != "umt5":
            message = (
                f"{root / 'text_encoder' / 'config.json'} describes a model of type "
                f"{config.get('model_type')!r}; expected 'umt5'"
            )
            raise DataError(message)
        weight_files(root / "text_encoder")
        tokenizer_dir = component_directory(root, "tokenizer")
        transformers = import_extra("transformers", extra="train")
        with quiet_transformers():
            model = transformers.UMT5EncoderModel.from_pretrained(
                root / "text_encoder", dtype=dtype
            )
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_dir)
            except (OSError, ValueError) as error:
                message = f"{tokenizer_dir} holds no usable tokenizer: {error}"
                raise DataError(message) from error
        model = model.eval().requires_grad_(requires_grad=False).to(device)
        return cls(tokenizer, model, text_len=text_len)

    @property
    def device(self) -> torch.device:
        """Where the encoder runs."""
        return cast("torch.device", next(self._model.parameters()).device)

    def count_tokens(self, text: str) -> int:
        """Returns how many tokens a prompt has before it is cut, the end token included."""
        return len(self._tokenizer(clean_prompt(text))["input_ids"])

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Encodes prompts.

        Args:
            texts: Prompts; an empty one is encoded as the end token alone.

        Returns:
            One [L, D] tensor per prompt, float32, on the encoder's device; L is the prompt's
            number of tokens, at most ``text_len``.
        """
        if not texts:
            return []
        cleaned = [clean_prompt(text) for text in texts]
        ids = self._tokenizer(cleaned, truncation=True, max_length=self.text_len)["input_ids"]
        by_length: dict[int, list[int]] = {}
        for index, tokens in enumerate(ids):
            by_length.setdefault(len(tokens), []).append(index)
        embeddings: dict[int, torch.Tensor] = {}
        for indices in by_length.values():
            batch = torch.tensor([ids[index] for index in indices], device=self.device)
            hidden = self._model(input_ids=batch, attention_mask=torch.ones_like(batch))
            embeddings.update(zip(indices, hidden.last_hidden_state.float(), strict=True))
        return [embeddings[index] for index in range(len(texts))]

    @torch.no_grad()
    def encode_padded(self, text: str) -> torch.Tensor:
        """Encodes one prompt as ``diffusers.WanPipeline`` does, operation by operation.

        :meth:`encode` gives the same rows up to rounding, and costs less for short prompts; this
        is for samples that must equal those of diffusers to the bit.

        Args:
            text: A prompt, perhaps empty.

        Returns:
            [1, text_len, D] in the encoder's data type, on its device, zero after the prompt's
            last token.
        """
        tokens = self._tokenizer(
            [clean_prompt(text)],
            padding="max_length",
            max_length=self.text_len,
            truncation=True,
            return_tensors="pt",
        )
        mask = tokens["attention_mask"].to(self.device)
        ids = tokens["input_ids"].to(self.device)
        hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        return cast("torch.Tensor", hidden.masked_fill(mask[:, :, None] == 0, 0.0))

    def to(self, device: torch.device | str) -> TextEncoder:
        """Moves the encoder to a device and returns it."""
        self._model.to(device)
        return self


class _SkipInit(TorchFunctionMode):
    """Leaves out ``torch.nn.init``: every parameter is overwritten from the checkpoint."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever func returns
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def _load_component(
    model_dir: Path,
    component: str,
    class_name: str,
    *,
    dtype: torch.dtype,
    weights: Path | None = None,
    sensitive_in_fp32: bool = False,
) -> Any:  # noqa: ANN401 - diffusers is untyped
    config = read_component_config(model_dir, component)
    given = config.get("_class_name")
    if given != class_name:
        message = (
            f"{model_dir / component / 'config.json'} describes a {given}; expected {class_name}"
        )
        raise DataError(message)
    files = weight_files(weights if weights is not None else model_dir / component)
    model_class = getattr(import_extra("diffusers", extra="train"), class_name)
    with torch.random.fork_rng(devices=[]), _SkipInit():
        model = model_class.from_config(config)
    kept = set(model_class._keep_in_fp32_modules or ()) if sensitive_in_fp32 else set()  # noqa: SLF001
    for name, parameter in model.named_parameters():
        if parameter.dtype != dtype and kept.isdisjoint(name.split(".")):
            # An untouched new tensor: converting would read and write the whole model once more.
            parameter.data = torch.empty_like(parameter, dtype=dtype)
    _fill(model, files)
    return model


@torch.no_grad()
def _fill(model: torch.nn.Module, files: Sequence[Path]) -> None:
    """Copies safetensors files into a model, one file at a time; the names must match exactly."""
    safetensors = import_extra("safetensors.torch", extra="train")
    own = model.state_dict()
    missing, unexpected = set(own), []
    for file in files:
        try:
            tensors = safetensors.load_file(file)
        except Exception as error:  # the reader has an exception class of its own
            message = f"{file} is not a readable safetensors file: {error}"
            raise DataError(message) from error
        for name, tensor in tensors.items():
            target = own.get(name)
            if target is None:
                unexpected.append(name)
            elif target.shape != tensor.shape:
                message = (
                    f"{file}: {name} has shape {tuple(tensor.shape)}; "
                    f"{type(model).__name__} expects {tuple(target.shape)}"
                )
                raise DataError(message)
            else:
                target.copy_(tensor)
                missing.discard(name)
    if missing or unexpected:
        message = (
            f"the weights in {files[0].parent} do not fit {type(model).__name__}: "
            f"{_named('missing', sorted(missing))}; {_named('not expected', sorted(unexpected))}"
        )
        raise DataError(message)


def _named(what: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_KEYS])
    more = ", …" if len(names) > _SHOWN_KEYS else ""
    return f"{len(names)} {what}" + (f" ({shown}{more})" if names else "")
