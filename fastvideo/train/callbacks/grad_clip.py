"""Clipping gradients to a norm, for sharded and whole gradients alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

from fastvideo.distributed.collective_wait import timed_collective
from fastvideo.logger import init_logger
from fastvideo.train.callbacks.callback import Callback
from fastvideo.train.options import as_bool, as_float
from fastvideo.train.trackers.step_tracker import StepTracker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

    from fastvideo.train.methods.base import TrainingMethod

logger = init_logger(__name__)


class GradNormClipCallback(Callback):
    """Scales each target's gradients so that their joint 2-norm is at most ``max_grad_norm``.

    The norm is that of the whole model, whatever part of it this rank holds. An exception while
    clipping ends the run; a norm that is not finite is logged like any other and reported.

    Args:
        max_grad_norm: The largest norm; 0 or less does nothing at all.
        log_grad_norms: Log ``grad_norm/<target>``, measured before clipping, unless it is 0.

    Raises:
        ConfigError: A value is of another type.
    """

    def __init__(self, max_grad_norm: float = 1.0, *, log_grad_norms: bool = True) -> None:
        # Infinity measures and never clips.
        is_infinite = isinstance(max_grad_norm, float) and math.isinf(max_grad_norm)
        self.max_grad_norm = (
            max_grad_norm
            if is_infinite
            else as_float(max_grad_norm, where="callbacks.grad_clip.max_grad_norm")
        )
        self.log_grad_norms = as_bool(log_grad_norms, where="callbacks.grad_clip.log_grad_norms")

    def on_before_optimizer_step(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Clips the targets that the method names for this step.

        Args:
            method: The training method.
            iteration: The current step.
        """
        if self.max_grad_norm <= 0.0:
            return
        targets: Mapping[str, torch.nn.Module] = method.get_grad_clip_targets(iteration)
        tracker = getattr(method, "tracker", None) if self.log_grad_norms else None
        for name, module in targets.items():
            norm = clip_gradients(module.parameters(), self.max_grad_norm)
            if norm is not None and tracker is not None:
                _log_norm(tracker, f"grad_norm/{name}", norm, iteration)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor | None:
    """Scales gradients in place so that their 2-norm is at most ``max_norm``.

    Does not wait for the device. With sharded gradients it is a collective operation, with one
    message per kind of sharding.

    Args:
        parameters: Parameters; those without a gradient are left out.
        max_norm: The largest norm, more than 0.

    Returns:
        The norm before scaling, float32 scalar on the device; None if there is no gradient.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return None
    norm = global_norm(gradients)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for local in _by_device_and_dtype(gradients):
        torch._foreach_mul_(local, scale.to(local[0].device))
    return norm


def global_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Returns the 2-norm over all elements of all tensors, float32; shards are summed over ranks.

    Args:
        tensors: Whole or sharded tensors, at least one.
    """
    squares: list[Tensor] = []
    for mesh, group in _by_sharding(tensors).items():
        local = [t.to_local() if isinstance(t, DTensor) else t for t in group]
        norms = [
            norm.to(local[0].device)
            for part in _by_device_and_dtype(local)
            for norm in torch._foreach_norm(part, 2, dtype=torch.float32)  # noqa: SLF001 - fused
        ]
        square = torch.stack(norms).square().sum()
        if mesh is not None:
            device_mesh, placements = mesh
            kinds = [Replicate() if p.is_replicate() else Partial() for p in placements]
            with timed_collective("grad_norm", square.device):
                square = DTensor.from_local(square, device_mesh, kinds).full_tensor()
        squares.append(square)
    return torch.stack([s.to(squares[0].device) for s in squares]).sum().sqrt()


def _by_sharding(tensors: Iterable[Tensor]) -> dict[Any, list[Tensor]]:
    """Groups tensors by mesh and placements; whole ones come under None."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        key = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
        groups.setdefault(key, []).append(tensor)
    return groups


def _by_device_and_dtype(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    """Yields the local parts in groups that a fused operation can take at once."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        groups.setdefault((local.device, local.dtype), []).append(local)
    return groups.values()


def _log_norm(tracker: Any, name: str, norm: Tensor, iteration: int) -> None:  # noqa: ANN401 - any tracker
    """Logs a norm; without reading it from the device where the trainer will read it anyway."""
    if isinstance(tracker, StepTracker):
        tracker.defer(name, norm, drop_zero=True)
        return
    value = float(norm)
    if not math.isfinite(value):
        logger.warning("step %d: %s is %s", iteration, name, value)
    if value != 0.0:
        tracker.log({name: value}, iteration)
