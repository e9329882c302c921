"""The scalars of one step: checked, averaged over its rounds, and read from the device at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

RESERVED_NAMES: Final = frozenset({"step", "step_time_sec"})
"""Names that the trainer or a tracker writes itself."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """A scalar that is still on its device.

    Attributes:
        name: Name to log it by.
        value: One element.
        drop_zero: Leave it out if it is exactly 0.
    """

    name: str
    value: Tensor
    drop_zero: bool = False


class StepScalars:
    """Collects the losses and metrics of a step's rounds.

    Nothing is read from a device before :meth:`fetch`, which reads everything in one transfer.
    """

    __slots__ = ("_extra", "_metrics", "_pending", "losses")

    def __init__(self) -> None:
        self.losses: dict[str, list[Tensor | float]] = {}
        self._metrics: dict[str, list[Tensor | float]] = {}
        self._pending: list[Deferred] = []
        self._extra: dict[str, float] = {}

    def add_round(self, loss_map: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> None:
        """Adds what one forward pass returned.

        Args:
            loss_map: Losses by name, scalar tensors on any device.
            metrics: Further scalars by name: tensors or numbers.

        Raises:
            ValueError: A value has more than one element, or a metric has the name of a loss or
                of something that is logged anyway.
            TypeError: A value is no tensor and no number.
        """
        for name, value in loss_map.items():
            if name in RESERVED_NAMES:
                raise ValueError(_taken(name))
            self.losses.setdefault(name, []).append(_scalar(name, value, "loss"))
        for name, value in (metrics or {}).items():
            if name in RESERVED_NAMES:
                raise ValueError(_taken(name))
            if name in loss_map:
                message = (
                    f"metric {name!r} has the name of a loss; rename it in the metrics that "
                    "single_train_step returns, or leave it out: every loss is logged"
                )
                raise ValueError(message)
            self._metrics.setdefault(name, []).append(_scalar(name, value, "metric"))

    def add(self, name: str, value: Tensor | float) -> None:
        """Adds a scalar that belongs to the step as a whole.

        Args:
            name: Its name.
            value: One element; a tensor must not change before :meth:`fetch`.

        Raises:
            ValueError: A loss or metric has that name.
        """
        if name in self.losses or name in self._metrics:
            raise ValueError(_taken(name))
        if isinstance(value, torch.Tensor):
            self._pending.append(Deferred(name, value))
        else:
            self._extra[name] = value

    def fetch(self, deferred: Iterable[Deferred] = ()) -> None:
        """Reads all tensors that are still on a device, in one transfer per device.

        Args:
            deferred: Further scalars to read with them.
        """
        series = [*self.losses.values(), *self._metrics.values()]
        spots = [
            (values, index, value)
            for values in series
            for index, value in enumerate(values)
            if not isinstance(value, float)
        ]
        extra = [*self._pending, *deferred]
        self._pending = []
        on_device = [value for _, _, value in spots]
        on_host = to_host([*on_device, *(item.value for item in extra)])
        for (values, index, _), number in zip(spots, on_host, strict=False):
            values[index] = number
        for item, number in zip(extra, on_host[len(spots) :], strict=True):
            if number != 0.0 or not item.drop_zero:
                self._extra[item.name] = number

    def take_extra(self, name: str, default: float = 0.0) -> float:
        """Removes a deferred scalar that was fetched, and returns it; ``default`` if none."""
        return self._extra.pop(name, default)

    def means(self) -> dict[str, float]:
        """Returns each scalar's mean over the rounds it appeared in; only after :meth:`fetch`."""
        means = {
            name: _mean(values)
            for series in (self.losses, self._metrics)
            for name, values in series.items()
        }
        means.update(self._extra)
        return means


def to_host(tensors: Sequence[Tensor]) -> list[float]:
    """Reads one-element tensors as floats, with one transfer per device.

    Args:
        tensors: One element each, of any shape, type and device.
    """
    if not tensors:
        return []
    first = tensors[0]
    if all(t.device == first.device and t.dtype == first.dtype for t in tensors):
        return _read(tensors)
    numbers = [0.0] * len(tensors)
    by_device: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(index)
    for indices in by_device.values():
        group = [tensors[index].to(torch.float64) for index in indices]
        for index, number in zip(indices, _read(group), strict=True):
            numbers[index] = number
    return numbers


def learning_rates(method: object) -> dict[str, Tensor | float]:
    """Returns ``lr/<role>`` of every optimizer of a method: the rate its next step will use.

    A rate that is a tensor is copied, because schedulers change it in place.

    Args:
        method: A training method; one without ``_optimizer_dict`` has no rates.
    """
    optimizers: Mapping[str, torch.optim.Optimizer] = getattr(method, "_optimizer_dict", {})
    rates: dict[str, Tensor | float] = {}
    for role, optimizer in optimizers.items():
        rate = optimizer.param_groups[0]["lr"]
        rates[f"lr/{role}"] = rate.detach().clone() if isinstance(rate, torch.Tensor) else rate
    return rates


def _read(tensors: Sequence[Tensor]) -> list[float]:
    numbers: list[float] = torch.stack([t.reshape(()) for t in tensors]).tolist()
    return [float(number) for number in numbers]


def _mean(values: Sequence[Tensor | float]) -> float:
    return sum(map(float, values)) / len(values)


def _taken(name: str) -> str:
    return (
        f"{name!r} is the name of a scalar that the trainer logs itself; rename the loss or metric "
        "that the method returns under it"
    )


def _scalar(name: str, value: object, kind: str) -> Tensor | float:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            message = (
                f"{kind} {name!r} must be a scalar, got a tensor of shape {tuple(value.shape)}; "
                "reduce it, for example with .mean()"
            )
            raise ValueError(message)
        return value.detach()
    if isinstance(value, (bool, int, float)):
        return float(value)
    message = (
        f"{kind} {name!r} must be a scalar tensor or a number, got {type(value).__name__} {value!r}"
    )
    raise TypeError(message)
