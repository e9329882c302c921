"""The two text formats of Prometheus, written straight from the cells.

prometheus_client renders the same from :class:`InstrumentsCollector`, and the tests hold the two
side by side. It puts every line together anew at each scrape, though, which for a trainer's 430
lines takes several times as long; here a line's beginning is made once and kept.
"""

from __future__ import annotations

import math
from itertools import accumulate
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final

from fastvideo.observability.metrics.cells import HistogramValue, SummaryValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastvideo.observability.metrics.accumulators import FamilySnapshot, Instruments, Value
    from fastvideo.observability.metrics.cells import Exemplar
    from fastvideo.observability.metrics.families import Family, Labels

_TOTAL: Final = "_total"
_TURN_S: Final = 0.0001


class TextRenderer:
    """Renders all numbers of a process.

    Every tenth of a millisecond it lets other threads run, between two families, so that a scrape
    holds up nobody. One thread at a time renders.

    Args:
        instruments: The numbers.
        constant_labels: Labels of every series, such as ``rank`` and ``run``.
    """

    def __init__(self, instruments: Instruments, constant_labels: Mapping[str, str]) -> None:
        self._instruments = instruments
        self._constant = dict(constant_labels)
        self._starts: dict[tuple[str, Labels], tuple[str, ...]] = {}

    def render(self, *, openmetrics: bool) -> bytes:
        """Returns everything as text, in UTF-8.

        Args:
            openmetrics: Whether in the OpenMetrics format, which has exemplars, rather than in
                the Prometheus text format.
        """
        parts: list[str] = []
        turn_ends = perf_counter() + _TURN_S
        for snapshot in self._instruments.snapshot():
            parts.append(_head(snapshot.family, openmetrics=openmetrics))
            self._render_family(parts, snapshot, exemplars=openmetrics)
            if perf_counter() > turn_ends:
                sleep(0)
                turn_ends = perf_counter() + _TURN_S
        if openmetrics:
            parts.append("# EOF\n")
        return "".join(parts).encode()

    def _render_family(
        self, parts: list[str], snapshot: FamilySnapshot, *, exemplars: bool
    ) -> None:
        for labels, value in snapshot.series.items():
            key = (snapshot.family.name, labels)
            starts = self._starts.get(key)
            if starts is None:
                starts = self._starts[key] = self._line_starts(snapshot.family, labels)
            lines = [
                f"{start} {number_text(number)}\n"
                for start, number in zip(starts, _numbers(value), strict=True)
            ]
            if exemplars and isinstance(value, HistogramValue):
                for index, exemplar in enumerate(value.exemplars):
                    if exemplar is not None:
                        lines[index] = f"{lines[index][:-1]} # {_exemplar_text(exemplar)}\n"
            parts.extend(lines)

    def _line_starts(self, family: Family, labels: Labels) -> tuple[str, ...]:
        """Returns name and labels of every line of one series, as they are written."""
        own = {**self._constant, **dict(zip(family.labels, labels, strict=True))}
        name = family.name
        if family.kind in {"counter", "gauge"}:
            return (name + _labels_text(own),)
        ends = (f"{name}_count{_labels_text(own)}", f"{name}_sum{_labels_text(own)}")
        if family.kind == "summary":
            return ends
        bounds = [*map(number_text, family.buckets), "+Inf"]
        return (*(f"{name}_bucket{_labels_text({**own, 'le': b})}" for b in bounds), *ends)


def number_text(number: float) -> str:
    """Returns a number as both formats write it."""
    if math.isfinite(number):
        return repr(float(number))
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


def _numbers(value: Value) -> Iterable[float]:
    if isinstance(value, HistogramValue):
        cumulative = [*accumulate(value.counts)]
        return (*cumulative, cumulative[-1], value.total)
    return (value.count, value.total) if isinstance(value, SummaryValue) else (value,)


def _head(family: Family, *, openmetrics: bool) -> str:
    name = family.name.removesuffix(_TOTAL) if openmetrics else family.name
    words = _escape(family.help) if openmetrics else _escape_help(family.help)
    return f"# HELP {name} {words}\n# TYPE {name} {family.kind}\n"


def _labels_text(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{k}="{_escape(v)}"' for k, v in sorted(labels.items())) + "}"


def _exemplar_text(exemplar: Exemplar) -> str:
    labels = {"trace_id": exemplar.trace_id}
    if exemplar.span_id:
        labels["span_id"] = exemplar.span_id
    return f"{_labels_text(labels)} {number_text(exemplar.value)} {exemplar.unix_s:.3f}"


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escape(text: str) -> str:
    return _escape_help(text).replace('"', r"\"")
