"""All random state of one rank: torch, Python, numpy, its CUDA device, its method's generator."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from fastvideo.dataset.sampler import stable_hash
from fastvideo.distributed import get_local_torch_device
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = init_logger(__name__)

_TORCH: Final = "torch"
_PYTHON: Final = "python"
_NUMPY: Final = "numpy"
_CUDA: Final = "cuda"
_METHOD: Final = "method_generator"


def random_state(generator: torch.Generator | None) -> dict[str, Any]:
    """Returns the random state of this process, as plain values, tensors and an array.

    Args:
        generator: The training method's own generator, if it has one.
    """
    state: dict[str, Any] = {
        _TORCH: torch.get_rng_state(),
        _PYTHON: random.getstate(),
        _NUMPY: np.random.get_state(),  # noqa: NPY002 - third-party code draws from this one
    }
    device = get_local_torch_device()
    if device.type == "cuda":
        state[_CUDA] = torch.cuda.get_rng_state(device)
    if generator is not None:
        state[_METHOD] = generator.get_state()
        state[f"{_METHOD}_device"] = generator.device.type
    return state


def restore_random_state(state: Mapping[str, Any], generator: torch.Generator | None) -> None:
    """Restores what :func:`random_state` returned.

    State of a device that this run does not have is left out with a warning.

    Args:
        state: The saved state.
        generator: The training method's own generator.
    """
    torch.set_rng_state(state[_TORCH])
    random.setstate(state[_PYTHON])
    np.random.set_state(state[_NUMPY])  # noqa: NPY002 - as above
    device = get_local_torch_device()
    if _CUDA in state and device.type == "cuda":
        torch.cuda.set_rng_state(state[_CUDA], device)
    if generator is None or _METHOD not in state:
        return
    if state[f"{_METHOD}_device"] == generator.device.type:
        generator.set_state(state[_METHOD])
    else:
        logger.warning(
            "the random numbers of this run differ from those of the saved one: that ran on %s, "
            "this one runs on %s",
            state[f"{_METHOD}_device"],
            generator.device.type,
        )


def reseed_new_rank(generator: torch.Generator | None, *, seed: int, rank: int, step: int) -> None:
    """Gives a rank that the saved run did not have noise of its own, which no other rank has had.

    Args:
        generator: The training method's own generator.
        seed: ``training.data.seed``.
        rank: Global rank of this process.
        step: The step that is resumed from.
    """
    if generator is not None:
        generator.manual_seed(stable_hash(seed, rank, step))
