"""The Wan plugin: text-to-video flow models on diffusers' own transformer.

Shapes: B samples, T latent frames, C channels, HxW latent pixels, L text tokens, D text width.
Latents are normalised and float32 everywhere between methods and plugin; the transformer computes
in the compute type of the run, under autocast and, if there are several ranks, with weights that
FSDP gathers in that type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch

from fastvideo.dataset.encoders import load_transformer, load_vae, vae_latent_stats
from fastvideo.dataset.model_files import read_component_config, resolve_model_path
from fastvideo.distributed import (
    forget_forwards,
    get_fsdp_mesh,
    get_local_torch_device,
    get_world_rank,
    get_world_size,
    mixed_precision_policy,
    shard_model,
)
from fastvideo.errors import ConfigError, DataError, did_you_mean
from fastvideo.logger import init_logger
from fastvideo.pipelines.presets import WAN_NEGATIVE_PROMPT
from fastvideo.train.config import CHECKPOINTING_TYPES
from fastvideo.train.models import flow
from fastvideo.train.models.base import ModelBase
from fastvideo.train.models.batch import TrainingBatch
from fastvideo.train.models.compilation import compile_blocks
from fastvideo.train.models.conditioning import text_conditioning
from fastvideo.train.models.data import (
    build_training_dataloader,
    check_latent_shape,
    check_text_shape,
)
from fastvideo.train.models.gradient_checkpointing import apply_gradient_checkpointing
from fastvideo.train.models.latent_size import (
    LatentSize,
    check_made_size,
    size_contradictions,
)
from fastvideo.train.models.negative_prompt import negative_prompt_embedding
from fastvideo.train.models.precision import (
    compute_dtype,
    master_dtype,
    normalise_in_weight_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.models.base import AttnKind, LatentsSource
    from fastvideo.train.models.batch import Conditioning

logger = init_logger(__name__)

DEFAULT_FLOW_SHIFT = 3.0
TEXT_LEN = 512
_SPATIAL_COMPRESSION = 8
_TEMPORAL_COMPRESSION = 4
_FORWARDS_REMEMBERED = 256

_ATTENTION_BACKENDS = {
    "TORCH_SDPA": "native",
    "FLASH_ATTN": "flash",
    "SAGE_ATTN": "sage",
    "SAGE_ATTN_THREE": "sage",
}
"""FastVideo's names of attention implementations, in diffusers' words."""


class WanModel(ModelBase):
    """A Wan transformer in one role of a training method.

    The constructor loads the transformer, freezes it if asked, and shards it if there are several
    ranks. Its arguments are the keys of ``models.<role>``.

    Attributes:
        model_dir: Local directory of the role's model, in diffusers layout.
        compute_dtype: Data type of forward and backward.
        flow_shift: Shift of the role's scheduler.

    Args:
        training_config: The run's ``training:`` section.
        init_from: Model directory in diffusers layout, its name on the Hugging Face hub, or
            ``tiny-random:wan2.1``.
        trainable: Whether the role is trained; methods say which ones must be.
        disable_custom_init_weights: Ignore ``transformer_override_safetensor``: for teacher
            and critic when an override is meant for the student only.
        flow_shift: Shift of the role's noise schedule.
        enable_gradient_checkpointing_type: As in ``training.model``, for this role; frozen ones
            have no backward and ignore it.
        transformer_override_safetensor: File or directory of transformer weights to load
            instead of those in ``init_from``.
        attention_backend: Attention implementation: TORCH_SDPA, FLASH_ATTN, SAGE_ATTN,
            SAGE_ATTN_THREE, or a name of diffusers'; null leaves diffusers' default.
        negative_prompt: What stands for "no prompt" in guidance.

    Raises:
        ConfigError: A value cannot be used; the message names its key.
    """

    def __init__(  # noqa: PLR0913 - these are the keys of models.<role>
        self,
        *,
        training_config: TrainingConfig,
        init_from: str,
        trainable: bool = True,
        disable_custom_init_weights: bool = False,
        flow_shift: Annotated[
            float | None, {"default": "that of `pipeline.flow_shift`, else 3"}
        ] = None,
        enable_gradient_checkpointing_type: Annotated[
            str | None,
            {
                "allowed": CHECKPOINTING_TYPES,
                "default": "that of `training.model.enable_gradient_checkpointing_type`",
            },
        ] = None,
        transformer_override_safetensor: str | None = None,
        attention_backend: str | None = None,
        negative_prompt: Annotated[str, {"default": "Wan's own"}] = WAN_NEGATIVE_PROMPT,
    ) -> None:
        self.device = get_local_torch_device()
        self.model_dir = resolve_model_path(init_from)
        self.compute_dtype = compute_dtype(training_config, self.device)
        self.flow_shift = _flow_shift(flow_shift, training_config)
        self.noise_scheduler = flow.FlowMatchScheduler.create(
            shift=self.flow_shift, device=self.device
        )
        self.timestep_shift = self.flow_shift
        if training_config.vsa_sparsity > 0:
            logger.warning("training.vsa.sparsity is set, but Wan's attention is dense here")
        self._training_config = training_config
        self._trainable = trainable
        self._negative_prompt = negative_prompt
        self._negative: tuple[Tensor, Tensor] | None = None
        self._requires_negative = False
        self._latent_stats: tuple[Tensor, Tensor] | None = None
        self._vae: Any = None
        self._compared_sizes = False
        self._frozen_forwards = 0
        override = _override(transformer_override_safetensor, ignored=disable_custom_init_weights)
        self.transformer = load_transformer(
            self.model_dir, dtype=master_dtype(training_config), override_safetensor=override
        )
        self.transformer.requires_grad_(trainable)
        self.transformer.train(trainable)
        self._set_attention_backend(attention_backend)
        if trainable:
            kind = enable_gradient_checkpointing_type
            kind = (
                training_config.model.enable_gradient_checkpointing_type if kind is None else kind
            )
            apply_gradient_checkpointing(self.transformer, kind)
        if training_config.model.enable_torch_compile:
            compile_blocks(self.transformer, training_config.model.torch_compile_kwargs)
        self._place()

    @property
    def _wan(self) -> Any:  # noqa: ANN401 - diffusers is untyped
        return self.transformer

    # -- Setting up ------------------------------------------------------------------------------

    def _place(self) -> None:
        """Moves the transformer to its device: whole, or as this rank's shards."""
        distributed = self._training_config.distributed
        if get_world_size() == 1:
            self._wan.to(self.device)
            if self.compute_dtype != master_dtype(self._training_config):
                normalise_in_weight_dtype(self.transformer, self.compute_dtype)
            return
        shard = distributed.hsdp_shard_dim
        mesh = get_fsdp_mesh(
            distributed.hsdp_replicate_dim,
            get_world_size() // distributed.hsdp_replicate_dim if shard == -1 else shard,
        )
        shard_model(self.transformer, mesh, mixed_precision_policy(self.compute_dtype))

    def _set_attention_backend(self, name: str | None) -> None:
        if name is None:
            return
        backend = _ATTENTION_BACKENDS.get(name.upper(), name.lower())
        try:
            self._wan.set_attention_backend(backend)
        except (ImportError, RuntimeError, ValueError) as error:
            known = name.upper() in _ATTENTION_BACKENDS
            hint = "" if known else did_you_mean(name.upper(), _ATTENTION_BACKENDS)
            message = (
                f"attention_backend {name!r} cannot be used here: {error}; known names are "
                f"{', '.join(_ATTENTION_BACKENDS)} and those of diffusers.{hint}"
            )
            raise ConfigError(message) from error
        self.attention_backend = name

    def init_preprocessors(self, training_config: TrainingConfig) -> None:
        """Makes the data loader and reads how latents are normalised; the VAE loads when decoding.

        Raises:
            ConfigError: ``training.data`` cannot be used.
            ValueError: The data set is too small or lacks a column.
        """
        pipeline = training_config.pipeline_config
        if pipeline is not None and pipeline.flow_shift is not None:
            self.timestep_shift = float(pipeline.flow_shift)
        logger.info(
            "flow shift: %g in the schedule of models.student, %g for shifted timesteps",
            self.flow_shift,
            self.timestep_shift,
        )
        self._stats()
        self.dataloader = build_training_dataloader(training_config, text_len=TEXT_LEN)
        self.start_step = 0

    @property
    def _base_dir(self) -> Path:
        """Directory with VAE, tokenizer and text encoder: ``training.model_path`` if it is set."""
        path = self._training_config.model_path
        return resolve_model_path(path) if path else self.model_dir

    def _stats(self) -> tuple[Tensor, Tensor]:
        """Returns mean and standard deviation of raw latents, [1, C, 1, 1, 1] each."""
        if self._latent_stats is None:
            mean, std, _ = vae_latent_stats(self._base_dir)
            shape = (1, -1, 1, 1, 1)
            self._latent_stats = (
                mean.float().reshape(shape).to(self.device),
                std.float().reshape(shape).to(self.device),
            )
        return self._latent_stats

    def on_train_start(self) -> None:
        """Encodes the negative prompt, if the method needs it."""
        self._ensure_negative()

    def set_requires_negative_conditioning(self, required: bool) -> None:  # noqa: FBT001
        """Says whether batches must carry the negative prompt's conditioning."""
        self._requires_negative = required

    def _ensure_negative(self) -> None:
        if self._requires_negative and self._negative is None:
            self._negative = negative_prompt_embedding(
                self._base_dir, self._negative_prompt, text_len=TEXT_LEN, device=self.device
            )

    # -- Batches ---------------------------------------------------------------------------------

    def prepare_batch(
        self,
        raw: Mapping[str, Any],
        *,
        generator: torch.Generator,
        latents_source: LatentsSource = "data",
    ) -> TrainingBatch:
        """Normalises, noises and conditions a batch; see :meth:`ModelBase.prepare_batch`.

        Raises:
            ValueError: A column is missing, or the size of zero latents is not configured.
        """
        self._ensure_negative()
        text, mask = self._text(raw)
        latents_BCTHW = self._latents(raw, latents_source, batch_size=text.shape[0])
        noise_BCTHW = torch.randn(
            latents_BCTHW.shape, generator=generator, device=generator.device
        ).to(self.device)
        timesteps = self._sample_timesteps(text.shape[0], generator)
        sigmas = (timesteps / self.num_train_timesteps)[:, None, None, None, None]
        return TrainingBatch(
            latents=latents_BCTHW.permute(0, 2, 1, 3, 4),
            noise=noise_BCTHW,
            noisy_model_input=flow.interpolate(latents_BCTHW, noise_BCTHW, sigmas),
            timesteps=timesteps,
            sigmas=sigmas,
            raw_latent_shape=latents_BCTHW.shape,
            encoder_hidden_states=text,
            encoder_attention_mask=mask,
            conditional_dict=_conditioning(text, mask),
            unconditional_dict=self._unconditional(text.shape[0]),
            infos=list(raw.get("info_list") or []),
        )

    def _text(self, raw: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        if raw.get("text_embedding") is None:
            message = f"text_embedding not found in the batch (it has {', '.join(sorted(raw))})"
            raise DataError(message)
        check_text_shape(raw["text_embedding"], width=self._wan.config.text_dim)
        text: Tensor = raw["text_embedding"].to(self.device, torch.float32, non_blocking=True)
        mask = raw.get("text_attention_mask")
        if mask is None:
            return text, torch.ones(text.shape[:2], device=self.device)
        return text, mask.to(self.device, torch.float32, non_blocking=True)

    def _latents(self, raw: Mapping[str, Any], source: LatentsSource, *, batch_size: int) -> Tensor:
        """Returns normalised latents [B, C, T, H, W]."""
        if source not in {"data", "zeros"}:
            message = f"latents_source is {source!r}; expected 'data' or 'zeros'"
            raise ValueError(message)
        if source == "zeros":
            return torch.zeros((batch_size, *self._zero_shape()), device=self.device)
        raw_latents: Tensor | None = raw.get("vae_latent")
        if raw_latents is None or raw_latents.numel() == 0:
            message = (
                "vae_latent not found in the batch; use a data set of type t2v, or a method that "
                "needs no latents, such as DMD2 with rollout_mode: simulate"
            )
            raise DataError(message)
        channels = self._stats()[0].shape[1]
        check_latent_shape(raw_latents, channels=channels, patch=self._wan.config.patch_size)
        self._compare_sizes(raw_latents)
        cut = raw_latents[:, :, : self._training_config.data.num_latent_t or None]
        mean, std = self._stats()
        return (cut.to(self.device, torch.float32, non_blocking=True) - mean) / std

    def _compare_sizes(self, raw_BCTHW: Tensor) -> None:
        """Says once where the configured sizes are not those of the data, which counts."""
        if self._compared_sizes:
            return
        self._compared_sizes = True
        frames, height, width = raw_BCTHW.shape[2:]
        found = size_contradictions(
            self._training_config.data,
            LatentSize(frames, height, width, *self._compression()),
        )
        if found and get_world_rank() == 0:
            logger.warning(
                "training.data does not describe the data set, whose own sizes are used: %s",
                ", ".join(found),
            )

    def _compression(self) -> tuple[int, int]:
        """Returns frames per latent frame, and pixels per latent pixel of each side."""
        vae = read_component_config(self._base_dir, "vae")
        return (
            int(vae.get("scale_factor_temporal") or _TEMPORAL_COMPRESSION),
            int(vae.get("scale_factor_spatial") or _SPATIAL_COMPRESSION),
        )

    def _zero_shape(self) -> tuple[int, int, int, int]:
        """Returns [C, T, H, W] of the videos that ``training.data`` describes."""
        data = self._training_config.data
        check_made_size(data)
        factor = self._compression()[1]
        return (
            self._stats()[0].shape[1],
            data.num_latent_t,
            data.num_height // factor,
            data.num_width // factor,
        )

    def _sample_timesteps(self, count: int, generator: torch.Generator) -> Tensor:
        model = self._training_config.model
        weighting = flow.TimestepWeighting(
            model.weighting_scheme, model.logit_mean, model.logit_std, model.mode_scale
        )
        drawn = flow.sample_timesteps(self.noise_scheduler, weighting, count, generator=generator)
        return drawn.to(self.device)

    def _unconditional(self, batch_size: int) -> Conditioning | None:
        if self._negative is None:
            return None
        text, mask = self._negative
        return _conditioning(text.expand(batch_size, -1, -1), mask.expand(batch_size, -1))

    # -- Predictions -----------------------------------------------------------------------------

    def predict_noise(
        self,
        noisy: Tensor,
        timestep: Tensor,
        batch: TrainingBatch,
        *,
        conditional: bool,
        cfg_uncond: Mapping[str, Any] | None = None,
        attn_kind: AttnKind = "dense",
    ) -> Tensor:
        """Predicts the velocity; see :meth:`ModelBase.predict_noise`.

        Attention is dense for both kinds: the transformer has no sparse one.

        Raises:
            ValueError: A shape, ``attn_kind`` or ``cfg_uncond`` cannot be used.
        """
        if attn_kind not in {"dense", "vsa"}:
            message = f"attn_kind is {attn_kind!r}; expected 'dense' or 'vsa'"
            raise ValueError(message)
        conditioning = text_conditioning(batch, conditional=conditional, cfg_uncond=cfg_uncond)
        half = self.compute_dtype != torch.float32
        with torch.autocast(self.device.type, dtype=self.compute_dtype, enabled=half):
            velocity_BCTHW: Tensor = self._wan(
                hidden_states=noisy.permute(0, 2, 1, 3, 4),
                timestep=self._transformer_timestep(timestep, noisy),
                encoder_hidden_states=conditioning["encoder_hidden_states"],
                return_dict=False,
            )[0]
        self._forget_frozen_forwards()
        return velocity_BCTHW.permute(0, 2, 1, 3, 4).to(torch.float32)

    def _forget_frozen_forwards(self) -> None:
        if self._trainable or torch.is_grad_enabled():
            return
        self._frozen_forwards += 1
        if self._frozen_forwards % _FORWARDS_REMEMBERED == 0:
            forget_forwards(self.transformer)

    def _transformer_timestep(self, timestep: Tensor, noisy_BTCHW: Tensor) -> Tensor:
        """Returns timesteps [B], or one per token, [B, tokens], where frames differ."""
        batch, frames, _, height, width = noisy_BTCHW.shape
        expanded = flow.expand_timestep(timestep.to(self.device, torch.float32), (batch, frames))
        if timestep.numel() in {1, batch}:
            return expanded[:, 0]
        stride_t, stride_h, stride_w = self._wan.config.patch_size
        tokens_per_frame = (height // stride_h) * (width // stride_w)
        patched = frames // stride_t * stride_t
        return expanded[:, :patched:stride_t].repeat_interleave(tokens_per_frame, dim=1)

    def decode_latents(self, latents: Tensor) -> Tensor:
        """Turns normalised latents [B, T, C, H, W] into video [B, 3, T', H', W'] in [0, 1]."""
        if self._vae is None:
            self._vae = load_vae(self._base_dir, device=self.device, dtype=torch.float32)
        mean, std = self._stats()
        raw_BCTHW = latents.permute(0, 2, 1, 3, 4).to(self.device, torch.float32) * std + mean
        with torch.no_grad():
            video: Tensor = self._vae.decode(raw_BCTHW, return_dict=False)[0]
        return (video.float() / 2 + 0.5).clamp(0.0, 1.0)


def _conditioning(text: Tensor, mask: Tensor) -> Conditioning:
    return {"encoder_hidden_states": text, "encoder_attention_mask": mask}


def _flow_shift(explicit: float | None, training_config: TrainingConfig) -> float:
    if explicit is not None:
        return float(explicit)
    pipeline = training_config.pipeline_config
    if pipeline is not None and pipeline.flow_shift is not None:
        return float(pipeline.flow_shift)
    return DEFAULT_FLOW_SHIFT


def _override(path: str | None, *, ignored: bool) -> str | None:
    if path and ignored:
        logger.info("disable_custom_init_weights is set, so %s is not loaded for this role", path)
        return None
    return path or None
