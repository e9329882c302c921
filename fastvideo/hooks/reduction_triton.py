"""The pass over a tensor in device memory: one launch of one kernel, and nothing is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

from fastvideo.hooks.reduction import FIELDS, real_numbers

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK: Final = 2048
_MAX_PROGRAMS: Final = 256
_WARPS: Final = 4


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _reduce(x, table, numel, FIELD_COUNT: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Each program reads every so-manieth block and writes one row of the table."""
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0).to(tl.int64)
    infinity = float("inf")
    abs_sum = tl.zeros((), tl.float64)
    total = tl.zeros((), tl.float64)
    m2 = tl.zeros((), tl.float64)
    count = tl.zeros((), tl.float64)
    nan = tl.zeros((), tl.float64)
    posinf = tl.zeros((), tl.float64)
    neginf = tl.zeros((), tl.float64)
    low = tl.zeros((), tl.float64) + infinity
    high = tl.zeros((), tl.float64) - infinity
    for start in range(program * BLOCK, numel, programs * BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        inside = offsets < numel
        values = tl.load(x + offsets, mask=inside, other=0.0)
        values = values.to(tl.float64) if WIDE else values.to(tl.float32)
        is_nan = values != values  # noqa: PLR0124 - Triton has no isnan for all types
        finite = inside & (tl.abs(values) < infinity)
        kept = tl.where(finite, values, 0.0)
        n = tl.sum(finite.to(tl.int32)).to(tl.float64)
        part = tl.sum(kept).to(tl.float64)
        mean = part / tl.maximum(n, 1.0)
        distance = tl.where(finite, kept - mean.to(values.dtype), 0.0)
        # Parts are joined as Chan, Golub and LeVeque (1983) do.
        gap = mean - total / tl.maximum(count, 1.0)
        m2 += tl.sum(distance * distance).to(tl.float64)
        m2 += gap * gap * count * n / tl.maximum(count + n, 1.0)
        abs_sum += tl.sum(tl.abs(kept)).to(tl.float64)
        total += part
        count += n
        low = tl.minimum(low, tl.min(tl.where(finite, values, infinity)).to(tl.float64))
        high = tl.maximum(high, tl.max(tl.where(finite, values, -infinity)).to(tl.float64))
        nan += tl.sum((inside & is_nan).to(tl.int32)).to(tl.float64)
        posinf += tl.sum((inside & (values == infinity)).to(tl.int32)).to(tl.float64)
        neginf += tl.sum((inside & (values == -infinity)).to(tl.int32)).to(tl.float64)
    row = table + program * FIELD_COUNT
    tl.store(row, abs_sum)
    tl.store(row + 1, total)
    tl.store(row + 2, m2)
    tl.store(row + 3, low)
    tl.store(row + 4, high)
    tl.store(row + 5, count)
    tl.store(row + 6, nan)
    tl.store(row + 7, posinf)
    tl.store(row + 8, neginf)


class TritonReducer:
    """The pass in Triton: a row for each program, joined on the host."""

    def rows(self, numel: int) -> int:
        """Returns the number of programs: one for each block, up to a limit.

        Args:
            numel: Number of elements.
        """
        return min(-(-numel // _BLOCK), _MAX_PROGRAMS)

    def reduce(self, tensor: Tensor, table: Tensor, row: int) -> None:
        """Writes the rows of a tensor; see :class:`fastvideo.hooks.reduction.Reducer`."""
        with torch.no_grad():
            values: Any = real_numbers(tensor).contiguous().detach()
            programs = self.rows(values.numel())
            _reduce[(programs,)](
                values,
                table[row],
                values.numel(),
                FIELD_COUNT=len(FIELDS),
                WIDE=values.dtype == torch.float64,
                BLOCK=_BLOCK,
                num_warps=_WARPS,
            )
