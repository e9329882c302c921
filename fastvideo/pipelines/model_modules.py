"""Loading the modules of a pipeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dataset.encoders import TextEncoder, load_transformer, load_vae
from fastvideo.dataset.model_files import component_directory
from fastvideo.errors import ConfigError, DataError, import_extra

if TYPE_CHECKING:
    from pathlib import Path

    from fastvideo.pipelines.inference_args import InferenceArgs

_SCHEDULERS: Final = {
    "UniPCMultistepScheduler": "flow_shift",
    "FlowMatchEulerDiscreteScheduler": "shift",
}
"""Schedulers that sample flows, with the name of their shift."""


def load_module(name: str, model_dir: Path, args: InferenceArgs) -> Any:  # noqa: ANN401
    """Loads one part of a model.

    Args:
        name: ``transformer``, ``transformer_2``, ``vae``, ``text_encoder`` (with its tokenizer)
            or ``scheduler``.
        model_dir: A model in diffusers layout.
        args: Where and how it will run.

    Raises:
        DataError: Files are missing or hold another class.
        ConfigError: The attention backend cannot be used.
    """
    if name == "scheduler":
        return load_scheduler(model_dir, args.pipeline_config.flow_shift)
    device = args.initial_device(name)
    if name == "vae":
        vae = load_vae(model_dir, device=device, dtype=args.vae_dtype)
        if args.pipeline_config.vae_tiling:
            vae.enable_tiling()
        return vae
    if name == "text_encoder":
        return TextEncoder.from_model_dir(
            model_dir,
            device=device,
            dtype=args.text_encoder_dtype,
            text_len=args.pipeline_config.text_len,
        )
    transformer = load_transformer(
        model_dir, component=name, dtype=args.dit_dtype, sensitive_in_fp32=True
    )
    _set_attention_backend(transformer, args.pipeline_config.attention_backend)
    return transformer.eval().requires_grad_(requires_grad=False).to(device)


def load_scheduler(model_dir: Path, flow_shift: float | None) -> Any:  # noqa: ANN401
    """Loads the scheduler of a model.

    Args:
        model_dir: A model in diffusers layout.
        flow_shift: Shift of its schedule; None: as its config says.

    Raises:
        DataError: The file is missing, or describes no scheduler of flows.
    """
    path = component_directory(model_dir, "scheduler") / "scheduler_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read: {error}"
        raise DataError(message) from error
    name = config.get("_class_name")
    if name not in _SCHEDULERS:
        message = f"{path} describes a {name}; expected one of {', '.join(_SCHEDULERS)}"
        raise DataError(message)
    changes = {} if flow_shift is None else {_SCHEDULERS[name]: flow_shift}
    scheduler_class = getattr(import_extra("diffusers", extra="train"), name)
    return scheduler_class.from_config(config, **changes)


def _set_attention_backend(transformer: Any, backend: str | None) -> None:  # noqa: ANN401
    if backend is None:
        return
    try:
        transformer.set_attention_backend(backend)
    except (ImportError, RuntimeError, ValueError) as error:
        message = f"pipeline_config.attention_backend {backend!r} cannot be used here: {error}"
        raise ConfigError(message) from error
