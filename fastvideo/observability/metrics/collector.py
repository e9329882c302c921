"""From cells to prometheus_client: a collector that reads everything at scrape time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.observability.metrics.cells import HistogramValue, SummaryValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry
    from prometheus_client.samples import Exemplar as PrometheusExemplar

    from fastvideo.observability.metrics.accumulators import FamilySnapshot, Instruments, Value
    from fastvideo.observability.metrics.cells import Exemplar
    from fastvideo.observability.metrics.families import Family, Labels

_TOTAL: Final = "_total"
_INFINITY: Final = "+Inf"

_Lines = tuple[tuple[str, dict[str, str]], ...]


class InstrumentsCollector:
    """Shows a process's numbers to a prometheus_client registry, of ours or of the program.

    The endpoint itself renders with :class:`TextRenderer`, several times as fast.

    Args:
        instruments: The numbers.
        constant_labels: Labels of every series, such as ``rank`` and ``run``.

    Attributes:
        instruments: The numbers.
        constant_labels: Labels of every series.

    Raises:
        ValueError: A family has a label that is also a constant one.
    """

    def __init__(self, instruments: Instruments, constant_labels: Mapping[str, str]) -> None:
        self.instruments = instruments
        self.constant_labels = dict(constant_labels)
        self._lines: dict[tuple[str, Labels], _Lines] = {}
        for family in instruments.families.values():
            taken = self.constant_labels.keys() & {*family.labels, "le", "quantile"}
            if taken:
                message = f"metric {family.name!r} has labels that are on every series: {taken}"
                raise ValueError(message)

    def describe(self) -> list[Metric]:
        """Returns nothing: the registry is private, so no names can collide."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields the families that have series now."""
        for snapshot in self.instruments.snapshot():
            yield self._metric(snapshot)

    def _metric(self, snapshot: FamilySnapshot) -> Metric:
        from prometheus_client.metrics_core import Metric  # noqa: PLC0415 - heavy
        from prometheus_client.samples import Sample  # noqa: PLC0415 - heavy

        family = snapshot.family
        metric = Metric(family.name.removesuffix(_TOTAL), family.help, family.kind)
        for labels, value in snapshot.series.items():
            lines = self._lines_of(family, labels)
            for (name, label_map), (number, exemplar) in zip(lines, _numbers(value), strict=True):
                metric.samples.append(Sample(name, label_map, number, None, exemplar))
        return metric

    def _lines_of(self, family: Family, labels: Labels) -> _Lines:
        """Returns names and labels of the samples of one series, which never change."""
        key = (family.name, labels)
        lines = self._lines.get(key)
        if lines is None:
            lines = self._lines[key] = self._make_lines(family, labels)
        return lines

    def _make_lines(self, family: Family, labels: Labels) -> _Lines:
        from prometheus_client.utils import floatToGoString  # noqa: PLC0415 - heavy

        own = {**self.constant_labels, **dict(zip(family.labels, labels, strict=True))}
        name = family.name
        if family.kind in {"counter", "gauge"}:
            return ((name, own),)
        ends = ((f"{name}_count", own), (f"{name}_sum", own))
        if family.kind == "summary":
            return ends
        bounds = [*map(floatToGoString, family.buckets), _INFINITY]
        return (*((f"{name}_bucket", {**own, "le": bound}) for bound in bounds), *ends)


def private_registry(collector: InstrumentsCollector) -> CollectorRegistry:
    """Returns a registry that holds ``collector`` and nothing else, apart from the default one."""
    from prometheus_client.registry import CollectorRegistry  # noqa: PLC0415 - heavy

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def _numbers(value: Value) -> Iterator[tuple[float, PrometheusExemplar | None]]:
    """Yields the samples' numbers of one series, in the order of its lines."""
    if isinstance(value, HistogramValue):
        so_far = 0
        for count, exemplar in zip(value.counts, value.exemplars, strict=True):
            so_far += count
            yield so_far, None if exemplar is None else _exemplar(exemplar)
        yield so_far, None
        yield value.total, None
    elif isinstance(value, SummaryValue):
        yield value.count, None
        yield value.total, None
    else:
        yield value, None


def _exemplar(exemplar: Exemplar) -> PrometheusExemplar:
    from prometheus_client.samples import Exemplar as PrometheusExemplar  # noqa: PLC0415 - heavy

    labels = {"trace_id": exemplar.trace_id}
    if exemplar.span_id:
        labels["span_id"] = exemplar.span_id
    return PrometheusExemplar(labels, exemplar.value, exemplar.unix_s)
