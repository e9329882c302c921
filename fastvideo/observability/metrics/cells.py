"""Cells: where the program leaves its numbers, without locks, for a scrape to pick up.

A cell keeps one slot per thread that wrote it, and a thread writes its own slot only, so a writer
waits for nobody, an interrupted writer blocks nobody, and a fork cannot catch a lock that is held.
The reader adds the slots up. Every state that a reader sees is complete: it is replaced as a whole.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_EXEMPLAR_RUNES: Final = 128
_EXEMPLAR_NAMES: Final = len("trace_id") + len("span_id")


@dataclass(frozen=True, slots=True)
class Exemplar:
    """The observation that a bucket remembers.

    Attributes:
        value: What was observed.
        unix_s: When, in seconds since 1970.
        trace_id: The trace it belongs to, in hexadecimal digits.
        span_id: The span it belongs to, or None.
    """

    value: float
    unix_s: float
    trace_id: str
    span_id: str | None


@dataclass(frozen=True, slots=True)
class SummaryValue:
    """State of a summary: how many observations, and their sum."""

    count: int
    total: float


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """State of a histogram.

    Attributes:
        counts: Observations per bucket, not cumulative; the last bucket is +Inf.
        total: Sum of the observations.
        exemplars: For each bucket the last observation that named its trace, or None.
    """

    counts: tuple[int, ...]
    total: float
    exemplars: tuple[Exemplar | None, ...]

    @property
    def count(self) -> int:
        """How many observations there are."""
        return sum(self.counts)


def plain_number(value: object) -> float | None:
    """Returns ``value`` as a float without touching a device, or None if it is no plain number.

    Numbers, NumPy scalars and one-element tensors in host memory are converted. A tensor on a
    device or spread over ranks is refused: reading it would make the program wait.
    """
    if type(value) is float:
        return value
    if value is None or isinstance(value, str | bytes):
        return None
    device = getattr(value, "device", None)
    elsewhere = device is not None and getattr(device, "type", device) != "cpu"
    if elsewhere or hasattr(value, "full_tensor"):
        return None
    try:
        item = getattr(value, "item", None)
        return float(value if item is None else item())  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - an object that is no number may raise anything
        return None


class _Cell:
    """What all cells share: a word about the values that cannot be used."""

    __slots__ = ("_refuse",)

    def __init__(self, refuse: Callable[[object], None]) -> None:
        self._refuse = refuse

    def _number(self, value: object) -> float | None:
        number = plain_number(value)
        if number is None:
            self._refuse(value)
        return number

    def _finite(self, value: object) -> float | None:
        number = self._number(value)
        if number is None or math.isfinite(number):
            return number
        self._refuse(value)
        return None


class CounterCell(_Cell):
    """A number that only grows."""

    __slots__ = ("_slots",)

    def __init__(self, refuse: Callable[[object], None]) -> None:
        super().__init__(refuse)
        self._slots: dict[int, float] = {}

    def add(self, value: float = 1.0) -> None:
        """Adds ``value``; what is negative, not finite or no number is left out."""
        number = self._finite(value)
        if number is None or number < 0:
            if number is not None:
                self._refuse(value)
            return
        me = get_ident()
        self._slots[me] = self._slots.get(me, 0.0) + number

    def read(self) -> float:
        """Returns the sum of what was added."""
        return math.fsum(list(self._slots.values()))


class GaugeCell(_Cell):
    """A number that goes up and down."""

    __slots__ = ("_value",)

    def __init__(self, refuse: Callable[[object], None]) -> None:
        super().__init__(refuse)
        self._value = 0.0

    def set(self, value: float) -> None:
        """Replaces the number; NaN and infinity are numbers here, None changes nothing."""
        number = self._number(value)
        if number is not None:
            self._value = number

    def read(self) -> float:
        """Returns the number that was set last, 0 before that."""
        return self._value


class SummaryCell(_Cell):
    """The count and the sum of observations."""

    __slots__ = ("_slots",)

    def __init__(self, refuse: Callable[[object], None]) -> None:
        super().__init__(refuse)
        self._slots: dict[int, tuple[int, float]] = {}

    def observe(self, value: float) -> None:
        """Counts an observation; below zero counts as zero, what is not finite is left out."""
        number = self._finite(value)
        if number is None:
            return
        me = get_ident()
        count, total = self._slots.get(me, (0, 0.0))
        self._slots[me] = (count + 1, total + max(number, 0.0))

    def read(self) -> SummaryValue:
        """Returns the state now."""
        slots = list(self._slots.values())
        return SummaryValue(sum(count for count, _ in slots), math.fsum(t for _, t in slots))


class HistogramCell(_Cell):
    """Observations counted by bucket, and the last one of each bucket that named its trace."""

    __slots__ = ("_bounds", "_clock", "_exemplars", "_slots")

    def __init__(
        self,
        refuse: Callable[[object], None],
        bounds: tuple[float, ...],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(refuse)
        self._bounds = bounds
        self._clock = clock
        self._slots: dict[int, tuple[list[int], float]] = {}
        self._exemplars: list[Exemplar | None] = [None] * (len(bounds) + 1)

    def observe(
        self, value: float, trace_id: str | None = None, span_id: str | None = None
    ) -> None:
        """Counts an observation; below zero counts as zero, what is not finite is left out.

        Args:
            value: What was observed.
            trace_id: The trace it belongs to, if that is sampled, in hexadecimal digits.
            span_id: The span it belongs to.
        """
        number = self._finite(value)
        if number is None:
            return
        number = max(number, 0.0)
        index = bisect_left(self._bounds, number)
        me = get_ident()
        state = self._slots.get(me)
        counts = [0] * len(self._exemplars) if state is None else state[0].copy()
        counts[index] += 1
        self._slots[me] = (counts, number + (0.0 if state is None else state[1]))
        if trace_id and _fits(trace_id, span_id):
            self._exemplars[index] = Exemplar(number, self._clock(), trace_id, span_id)

    def read(self) -> HistogramValue:
        """Returns the state now."""
        slots = list(self._slots.values())
        counts = [0] * len(self._exemplars)
        for slot_counts, _ in slots:
            counts = [a + b for a, b in zip(counts, slot_counts, strict=True)]
        total = math.fsum(total for _, total in slots)
        return HistogramValue(tuple(counts), total, tuple(self._exemplars))


def _fits(trace_id: str, span_id: str | None) -> bool:
    return _EXEMPLAR_NAMES + len(trace_id) + len(span_id or "") <= _EXEMPLAR_RUNES
