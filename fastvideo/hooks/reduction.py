"""All statistics of a tensor from one pass over it: what a pass yields, and who makes it.

A pass writes rows of :data:`FIELDS` into a table on the tensor's device, and nothing is read from
the device. A device with many processors writes several rows for one tensor, each on a part of
it, which :func:`join_rows` joins when they are in host memory.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import torch
from torch import Tensor

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = init_logger(__name__)

FIELDS: Final = ("abs_sum", "sum", "m2", "min", "max", "count", "nan", "posinf", "neginf")
"""A row: over the finite elements of a part their sum of magnitudes, their sum, the sum of their
squared distances from their mean, the smallest, the largest (infinite where there are none), and
how many there are; then how many elements are NaN, infinite, and minus infinite."""


class Reducer(Protocol):
    """Makes the pass on one kind of device."""

    def rows(self, numel: int) -> int:
        """Returns how many rows a tensor needs.

        Args:
            numel: Its number of elements, at least 1.
        """
        ...

    def reduce(self, tensor: Tensor, table: Tensor, row: int) -> None:
        """Writes the rows of a tensor, without waiting for its device.

        Args:
            tensor: Any shape and layout; complex numbers count as two.
            table: [rows, fields], float64, on the tensor's device.
            row: The first row to write.
        """
        ...


@dataclass(frozen=True, slots=True)
class Summary:
    """What a pass found out about a tensor; None is what its elements do not tell.

    Attributes:
        abs_mean: Mean magnitude of the finite elements.
        sum: Their sum.
        min: The smallest of them.
        max: The largest of them.
        mean: Their mean.
        std: Their standard deviation, with n - 1.
        nan: Number of elements that are NaN.
        posinf: Number of infinite ones.
        neginf: Number of those that are minus infinity.
    """

    abs_mean: float | None
    sum: float | None
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    nan: int = 0
    posinf: int = 0
    neginf: int = 0


EMPTY: Final = Summary(None, 0.0, None, None, None, None)
"""Of a tensor without elements."""


def join_rows(table: Tensor) -> list[float]:
    """Returns the row of a whole tensor (Chan, Golub and LeVeque 1983).

    Args:
        table: The rows of its parts, [rows, fields], float64, in host memory; at least one.
    """
    row = table.sum(dim=0)
    total, m2, count = table[:, 1], table[:, 2], table[:, 5]
    gap = total / count.clamp(min=1) - row[1] / row[5].clamp(min=1)
    row[2] = m2.sum() + (gap * gap * count).sum()
    row[3], row[4] = table[:, 3].min(), table[:, 4].max()
    joined: list[float] = row.tolist()
    return joined


def summarise(row: Sequence[float]) -> Summary:
    """Returns what the row of a whole tensor says.

    Args:
        row: See :data:`FIELDS`.
    """
    magnitude, signed, m2, low, high, count, nan, posinf, neginf = row
    return Summary(
        abs_mean=_finite(magnitude / count) if count else None,
        sum=_finite(signed) if count else None,
        min=low if count else None,
        max=high if count else None,
        mean=_finite(signed / count) if count else None,
        std=_finite(math.sqrt(m2 / (count - 1))) if count > 1 else None,
        nan=int(nan),
        posinf=int(posinf),
        neginf=int(neginf),
    )


def _finite(value: float) -> float | None:
    """Returns None for what overflowed: JSON has no infinity."""
    return value if math.isfinite(value) else None


class OperatorReducer:
    """The pass in operators of PyTorch, for devices that have no kernel: a dozen small ones."""

    def rows(self, numel: int) -> int:  # noqa: ARG002 - of the protocol
        """Returns 1."""
        return 1

    def reduce(self, tensor: Tensor, table: Tensor, row: int) -> None:
        """Writes the row of a tensor; see :class:`Reducer`."""
        with torch.no_grad():
            values = real_numbers(tensor).reshape(-1)
            if values.dtype != torch.float64:
                values = values.to(torch.float32)
            finite = torch.isfinite(values)
            kept = torch.where(finite, values, 0)
            count = finite.sum(dtype=values.dtype)
            total = kept.sum()
            spread = torch.where(finite, values - total / count.clamp(min=1), 0)
            found = (
                kept.abs().sum(),
                total,
                spread.square_().sum(),
                torch.where(finite, values, math.inf).amin(),
                torch.where(finite, values, -math.inf).amax(),
                finite.sum(),
                torch.isnan(values).sum(),
                torch.isposinf(values).sum(),
                torch.isneginf(values).sum(),
            )
            table[row] = torch.stack([number.to(table.dtype) for number in found])


def real_numbers(tensor: Tensor) -> Tensor:
    """Returns a tensor of floating point numbers that kernels know, with the same elements.

    Args:
        tensor: Any.

    Returns:
        A view or a copy: complex numbers as two, whole numbers and truth values as float64, the
        8 bit types as float32.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point():
        return tensor.to(torch.float64)
    return tensor if tensor.element_size() > 1 else tensor.to(torch.float32)


@functools.cache
def reducer_for(device_type: str) -> Reducer:
    """Returns what makes the pass on a kind of device.

    A kernel that cannot be built, or does not find what the operators find, is one line in the
    log, and the operators are used.

    Args:
        device_type: Such as ``cpu`` or ``cuda``.
    """
    try:
        kernel = _kernel_for(device_type)
        if kernel is not None:
            _check(kernel, torch.device(device_type))
            return kernel
    except Exception as error:  # noqa: BLE001 - compilers fail in many ways
        logger.warning(
            "activation tracing has no kernel for %s here and is slower: %s: %s",
            device_type,
            type(error).__name__,
            error,
        )
    return OperatorReducer()


def _kernel_for(device_type: str) -> Reducer | None:
    if device_type == "cpu":
        from fastvideo.hooks.reduction_c import CompiledReducer  # noqa: PLC0415 - only if used

        return CompiledReducer()
    if device_type == "cuda":
        from fastvideo.hooks.reduction_triton import TritonReducer  # noqa: PLC0415 - needs Triton

        return TritonReducer()
    return None


def _check(kernel: Reducer, device: torch.device) -> None:
    """Compares a kernel with the operators.

    Raises:
        RuntimeError: They disagree.
    """
    sample = torch.linspace(-3.0, 5.0, 10_007, dtype=torch.float64)
    sample[17], sample[4_000], sample[9_000] = math.nan, math.inf, -math.inf
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        tensor = sample.to(device, dtype)
        found, expected = (reduce_now(reducer, tensor) for reducer in (kernel, OperatorReducer()))
        for name in Summary.__slots__:
            ours, theirs = getattr(found, name), getattr(expected, name)
            if ours is None or not math.isclose(ours, theirs, rel_tol=1e-4):
                message = f"for {dtype}, {name} is {ours} instead of {theirs}"
                raise RuntimeError(message)


def reduce_now(reducer: Reducer, tensor: Tensor) -> Summary:
    """Returns the statistics of one tensor; waits for its device.

    Args:
        reducer: Makes the pass.
        tensor: The tensor.
    """
    if not tensor.numel():
        return EMPTY
    count = reducer.rows(real_numbers(tensor).numel())
    table = torch.empty((count, len(FIELDS)), dtype=torch.float64, device=tensor.device)
    reducer.reduce(tensor, table, 0)
    return summarise(join_rows(table.cpu()))
