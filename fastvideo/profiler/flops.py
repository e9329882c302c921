"""Floating point operations of operators, by the formulas of torch's profiler.

The profiler counts them but does not write them into the trace, so they are counted again from the
recorded shapes. Operators without a formula (attention, three-dimensional convolution) count for
nothing there; the summary says how much of the time they take.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_IMAGE_DIMS: Final = 4
_MATRIX_DIMS: Final = 2


def count_flops(name: str, args: dict[str, Any]) -> int | None:
    """Returns what one call of an operator computes.

    Args:
        name: Name of the operator, such as ``aten::mm``.
        args: Its arguments in the trace; ``Input Dims`` and ``Concrete Inputs`` are read.

    Returns:
        The number of operations, a multiplication and an addition counting two; None if there is
        no formula for the operator or its shapes were not recorded.
    """
    formula = _FORMULAS.get(name)
    if formula is None or "Input Dims" not in args:
        return None
    try:
        return formula(args["Input Dims"], args.get("Concrete Inputs", []))
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def _matmul(left: list[int], right: list[int]) -> int:
    shared = left[-1]
    return 0 if shared == 0 else 2 * math.prod(left) // shared * math.prod(right)


def _mm(dims: list[Any], _: list[str]) -> int:
    return _matmul(dims[0], dims[1])


def _addmm(dims: list[Any], _: list[str]) -> int:
    return _matmul(dims[1], dims[2])


def _batched(left: list[int], right: list[int]) -> int:
    batch, rows, shared = left
    return 2 * batch * rows * shared * right[_MATRIX_DIMS]


def _bmm(dims: list[Any], _: list[str]) -> int:
    return _batched(dims[0], dims[1])


def _baddbmm(dims: list[Any], _: list[str]) -> int:
    return _batched(dims[1], dims[2])


def _elementwise(dims: list[Any], _: list[str]) -> int:
    return math.prod(dims[0])


def _conv2d(dims: list[Any], inputs: list[str]) -> int | None:
    image, kernel = dims[0], dims[1]
    if len(image) != _IMAGE_DIMS or len(kernel) != _IMAGE_DIMS:
        return None
    stride, padding, dilation = (json.loads(text) for text in inputs[3:6])
    groups = int(inputs[6])
    out = [
        (image[2 + i] + 2 * padding[i] - dilation[i] * (kernel[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    ]
    work = 2 * image[0] * out[0] * out[1] * kernel[2] * kernel[3]
    return int(work * image[1] * kernel[0] // groups)


_FORMULAS: Final[dict[str, Callable[[list[Any], list[str]], int | None]]] = {
    "aten::add": _elementwise,
    "aten::addmm": _addmm,
    "aten::baddbmm": _baddbmm,
    "aten::bmm": _bmm,
    "aten::conv2d": _conv2d,
    "aten::mm": _mm,
    "aten::mul": _elementwise,
}
