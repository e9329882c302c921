"""Which data types a transformer's weights are kept in and computed in."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fastvideo import envs
from fastvideo.errors import ConfigError, did_you_mean
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from fastvideo.train.config import TrainingConfig

logger = init_logger(__name__)

_DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}


def parse_dtype(name: str, *, where: str) -> torch.dtype:
    """Returns the data type called ``name``.

    Args:
        name: ``fp32``, ``bf16``, ``fp16`` or torch's own name for one of them.
        where: Setting the name comes from, for the message.

    Raises:
        ConfigError: There is no such type.
    """
    dtype = _DTYPES.get(name.strip().lower())
    if dtype is None:
        message = (
            f"{where} is {name!r}; expected one of fp32, bf16, fp16.{did_you_mean(name, _DTYPES)}"
        )
        raise ConfigError(message)
    return dtype


def master_dtype(training_config: TrainingConfig) -> torch.dtype:
    """Returns the data type that weights and optimizer state are kept in."""
    return parse_dtype(training_config.dit_precision, where="training.dit_precision")


def compute_dtype(training_config: TrainingConfig, device: torch.device) -> torch.dtype:
    """Returns the data type of forward and backward.

    The first of these that is set: ``training.dit_compute_dtype``, ``FASTVIDEO_TRAIN_DTYPE``, the
    master type if it is a half type, else bf16 on CUDA and fp32 on a CPU.

    Raises:
        ConfigError: The type is unknown, or wider than that of the weights.
    """
    master = master_dtype(training_config)
    chosen = _chosen_compute_dtype(training_config, master, device)
    if chosen == torch.float32 and master != torch.float32:
        message = (
            f"training.dit_precision is {training_config.dit_precision!r}, but the compute type is "
            "fp32; keep the weights in fp32 or set training.dit_compute_dtype to their type"
        )
        raise ConfigError(message)
    if chosen == torch.float16:
        logger.warning("computing in fp16 without loss scaling; small gradients become zero")
    return chosen


def _chosen_compute_dtype(
    training_config: TrainingConfig, master: torch.dtype, device: torch.device
) -> torch.dtype:
    if training_config.dit_compute_dtype:
        return parse_dtype(training_config.dit_compute_dtype, where="training.dit_compute_dtype")
    if name := str(envs.FASTVIDEO_TRAIN_DTYPE):
        return parse_dtype(name, where="FASTVIDEO_TRAIN_DTYPE")
    if master != torch.float32:
        return master
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def normalise_in_weight_dtype(model: nn.Module, output_dtype: torch.dtype) -> None:
    """Makes the RMS norms of ``model`` compute in the type of their weights.

    Under autocast their input is half precision and their weights are float32, a mixture for which
    torch has no fused kernel. Models whose weights are gathered in the compute type do not need
    this.

    Args:
        model: A model that runs under autocast.
        output_dtype: The compute type, which the norms' output gets.
    """
    for module in model.modules():
        if isinstance(module, nn.RMSNorm) and module.weight is not None:
            module.register_forward_pre_hook(_widen)
            module.register_forward_hook(partial(_narrow, dtype=output_dtype))


def _widen(module: nn.RMSNorm, args: tuple[Tensor]) -> Tensor:
    return args[0].to(module.weight.dtype)


def _narrow(module: nn.Module, args: object, output: Tensor, *, dtype: torch.dtype) -> Tensor:
    del module, args
    return output.to(dtype)
