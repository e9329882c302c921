"""The numbers of this process: cells that the program writes, sources that are asked at a scrape.

Nothing here knows Prometheus or OpenTelemetry. A scrape calls :meth:`Instruments.snapshot`; what
it costs is paid by the thread that scrapes, and no writer ever waits for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

from fastvideo.errors import did_you_mean
from fastvideo.logger import init_logger
from fastvideo.observability.metrics.cells import (
    CounterCell,
    GaugeCell,
    HistogramCell,
    HistogramValue,
    SummaryCell,
    SummaryValue,
    plain_number,
)
from fastvideo.observability.metrics.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fastvideo.observability.metrics.families import Family, Kind, Labels

    Value = float | SummaryValue | HistogramValue
    Cell = CounterCell | GaugeCell | HistogramCell | SummaryCell
    NumberSource = Callable[[], Iterable[tuple[Labels, float]]]
    SummarySource = Callable[[], Iterable[tuple[Labels, int, float]]]
    AnySource = Callable[[], Iterable[tuple[Labels, Value]]]

logger = init_logger(__name__)

OTHER: Final = "other"
"""Label value that stands for all that came after a family's limit."""

SINK_ERRORS: Final = "fastvideo_telemetry_sink_errors_total"
_LABEL_CHARACTERS: Final = 256

_C = TypeVar("_C", CounterCell, GaugeCell, HistogramCell, SummaryCell)


@dataclass(frozen=True, slots=True)
class FamilySnapshot:
    """The series of one family at one moment.

    Attributes:
        family: The family.
        series: Its values by label values, in the order in which they came to be.
    """

    family: Family
    series: Mapping[Labels, Value]


class Instruments:
    """All numbers of this process, by family and label values.

    The series that a family declares exist at zero from the start. Writers get a cell once and
    write it whenever they like, from any thread; asking again for the same labels gives the same
    cell. Label values beyond the limit share one cell whose label values are ``"other"``.

    Args:
        families: The families there are.
        max_series_per_family: Label values a family may have besides ``"other"``.
        clock: Unix time in seconds, for exemplars.

    Attributes:
        families: The families there are.
        start_unix_s: When the counters began at zero, in seconds since 1970.
    """

    def __init__(
        self,
        families: Mapping[str, Family] = FAMILIES,
        *,
        max_series_per_family: int = 100,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.families = families
        self.start_unix_s = clock()
        self._clock = clock
        self._limit = max_series_per_family
        self._cells: dict[str, dict[Labels, Cell]] = {name: {} for name in families}
        self._sources: dict[str, list[AnySource]] = {name: [] for name in families}
        self._reported: set[tuple[str, str]] = set()
        for family in families.values():
            for labels in family.initial:
                self._cells[family.name][labels] = self._make(family)

    def counter(self, name: str, *labels: object) -> CounterCell:
        """Returns the cell of a counter; ``.add(value)`` it.

        Args:
            name: Full name of the family.
            *labels: Its label values, in the order of the family's labels.

        Raises:
            ValueError: There is no such counter, or it has another number of labels.
        """
        return self._cell(CounterCell, "counter", name, labels)

    def gauge(self, name: str, *labels: object) -> GaugeCell:
        """Returns the cell of a gauge; ``.set(value)`` it. See :meth:`counter`."""
        return self._cell(GaugeCell, "gauge", name, labels)

    def histogram(self, name: str, *labels: object) -> HistogramCell:
        """Returns the cell of a histogram; ``.observe(value, trace_id, span_id)`` it.

        See :meth:`counter`.
        """
        return self._cell(HistogramCell, "histogram", name, labels)

    def summary(self, name: str, *labels: object) -> SummaryCell:
        """Returns the cell of a summary; ``.observe(value)`` it. See :meth:`counter`."""
        return self._cell(SummaryCell, "summary", name, labels)

    def info(self, name: str, *labels: object) -> None:
        """Makes a gauge one series, at 1, whose label values describe something.

        Other series of the gauge go: a process has one description at a time, and two would break
        every query that joins by it. See :meth:`counter`.
        """
        self.gauge(name, *labels).set(1.0)
        kept = tuple(_label_text(value) for value in labels)
        cells = self._cells[name]
        for present in [*cells]:
            if present != kept:
                cells.pop(present, None)

    def counter_source(self, name: str, read: NumberSource) -> None:
        """Adds a function that is asked for values of a counter at every scrape.

        Args:
            name: Full name of the family.
            read: Returns pairs of label values and value, which never falls. If it raises, its
                family is missing from that scrape, and the others are served.

        Raises:
            ValueError: There is no such counter.
        """
        self._add_source(name, "counter", read)

    def gauge_source(self, name: str, read: NumberSource) -> None:
        """Adds a function that is asked for values of a gauge. See :meth:`counter_source`."""
        self._add_source(name, "gauge", read)

    def summary_source(self, name: str, read: SummarySource) -> None:
        """Adds a function that is asked for counts and sums. See :meth:`counter_source`.

        Args:
            name: Full name of the family.
            read: Returns triples of label values, count and sum.
        """

        def values() -> Iterator[tuple[Labels, Value]]:
            for labels, count, total in read():
                yield labels, SummaryValue(int(count), float(total))

        self._add_source(name, "summary", values)

    def snapshot(self) -> Iterator[FamilySnapshot]:
        """Yields every family that has series now. Never raises.

        A family whose source raises is left out, since a counter that falls back to what its
        cells hold would look like a restart.
        """
        for family in self.families.values():
            try:
                series = self._series(family)
            except Exception as error:  # noqa: BLE001 - one family's trouble is not the others'
                self._report_source(family.name, error)
                continue
            if series:
                yield FamilySnapshot(family, series)

    def _series(self, family: Family) -> dict[Labels, Value]:
        cells = self._cells[family.name]
        series: dict[Labels, Value] = {labels: cells[labels].read() for labels in list(cells)}
        for read in self._sources[family.name]:
            merged: dict[Labels, Value] = {}
            for given, value in read():
                labels = self._admit(family, given, series)
                if isinstance(value, SummaryValue):
                    _add(merged, labels, value)
                elif (number := plain_number(value)) is not None:
                    _add(merged, labels, number, replace=family.kind == "gauge")
                series.setdefault(labels, SummaryValue(0, 0.0) if family.kind == "summary" else 0.0)
            for labels, value in merged.items():
                _add(series, labels, value, replace=family.kind == "gauge")
        return series

    def _cell(self, wanted: type[_C], kind: Kind, name: str, labels: tuple[object, ...]) -> _C:
        cells = self._cells.get(name, {})
        cell = cells.get(cast("Labels", labels))
        if type(cell) is wanted:
            return cell
        family = self._family(name, kind)
        admitted = self._admit(family, labels, cells)
        made = cells.setdefault(admitted, self._make(family))
        if not isinstance(made, wanted):
            message = f"metric {name!r} is a {family.kind}"
            raise TypeError(message)
        return made

    def _admit(self, family: Family, given: object, present: Mapping[Labels, object]) -> Labels:
        """Returns the label values under which ``given`` is counted."""
        if not isinstance(given, tuple) or len(given) != len(family.labels):
            message = (
                f"metric {family.name!r} has the labels {list(family.labels)}, "
                f"but was given the values {given!r}"
            )
            raise ValueError(message)
        labels = tuple(_label_text(value) for value in given)
        if labels in present or len(present) < self._limit or not labels:
            return labels
        if ("limit", family.name) not in self._reported:
            self._reported.add(("limit", family.name))
            logger.warning(
                "metric %s has %d series; further label values are counted as %r",
                family.name,
                self._limit,
                OTHER,
            )
        return (OTHER,) * len(labels)

    def _family(self, name: str, kind: Kind) -> Family:
        family = self.families.get(name)
        if family is None:
            message = f"there is no metric {name!r}.{did_you_mean(name, self.families)}"
            raise ValueError(message)
        if family.kind != kind:
            message = f"metric {name!r} is a {family.kind}, not a {kind}"
            raise ValueError(message)
        return family

    def _add_source(self, name: str, kind: Kind, read: AnySource) -> None:
        self._sources[self._family(name, kind).name].append(read)

    def _make(self, family: Family) -> Cell:
        def refuse(value: object) -> None:
            self._report_value(family.name, value)

        if family.kind == "histogram":
            return HistogramCell(refuse, family.buckets, self._clock)
        if family.kind == "summary":
            return SummaryCell(refuse)
        return CounterCell(refuse) if family.kind == "counter" else GaugeCell(refuse)

    def _report_value(self, name: str, value: object) -> None:
        if value is None or ("value", name) in self._reported:
            return
        self._reported.add(("value", name))
        logger.warning(
            "a value of type %s cannot be counted by metric %s and was left out: expected a "
            "finite number in host memory that does not lower a counter",
            type(value).__name__,
            name,
        )

    def _report_source(self, name: str, error: Exception) -> None:
        if SINK_ERRORS in self.families:
            self.counter(SINK_ERRORS, "metrics").add()
        if ("source", name) not in self._reported:
            self._reported.add(("source", name))
            logger.warning(
                "metric %s is missing from scrapes: its source raised", name, exc_info=error
            )


def _add(
    series: dict[Labels, Value], labels: Labels, value: Value, *, replace: bool = False
) -> None:
    before = series.get(labels)
    if before is None or replace:
        series[labels] = value
    elif isinstance(before, SummaryValue) and isinstance(value, SummaryValue):
        series[labels] = SummaryValue(before.count + value.count, before.total + value.total)
    elif isinstance(before, float) and isinstance(value, float):
        series[labels] = before + value


def _label_text(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    if len(text) > _LABEL_CHARACTERS:
        text = text[:_LABEL_CHARACTERS]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
