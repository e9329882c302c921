"""The numbers of a process as an OTLP request: cumulative, under the names that are scraped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastvideo.observability.metrics.cells import HistogramValue, SummaryValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastvideo.observability.metrics.accumulators import FamilySnapshot, Instruments, Value
    from fastvideo.observability.metrics.cells import Exemplar
    from fastvideo.observability.metrics.families import Labels

_NS_PER_S: Final = 1_000_000_000
_UNITS: Final = {"seconds": "s", "bytes": "By"}


def encode(
    instruments: Instruments,
    *,
    constant_labels: Mapping[str, str],
    resource: Mapping[str, Any],
    scope: tuple[str, str],
    unix_ns: int,
) -> bytes:
    """Returns an ``ExportMetricsServiceRequest`` with everything there is now.

    Args:
        instruments: The numbers.
        constant_labels: Attributes of every data point.
        resource: Attributes of the resource: texts, truth values, whole or other numbers.
        scope: Name and version of what measured.
        unix_ns: The time of the data points, in nanoseconds since 1970.
    """
    # A tenth of a second to load, and only those who push need it.
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (  # noqa: PLC0415
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    for name, value in resource.items():
        _set_attribute(resource_metrics.resource.attributes.add(), name, value)
    scope_metrics = resource_metrics.scope_metrics.add()
    scope_metrics.scope.name, scope_metrics.scope.version = scope
    times = {
        "start_time_unix_nano": _nanoseconds(instruments.start_unix_s),
        "time_unix_nano": max(0, unix_ns),
    }
    for snapshot in instruments.snapshot():
        _encode_family(scope_metrics.metrics.add(), snapshot, constant_labels, times)
    return bytes(request.SerializeToString())


def _encode_family(
    metric: Any,  # noqa: ANN401 - generated classes have no useful types
    snapshot: FamilySnapshot,
    constant_labels: Mapping[str, str],
    times: Mapping[str, int],
) -> None:
    family = snapshot.family
    metric.name, metric.description = family.name, family.help
    metric.unit = _UNITS.get(family.name.removesuffix("_total").rpartition("_")[2], "")
    data = {
        "counter": metric.sum,
        "gauge": metric.gauge,
        "histogram": metric.histogram,
        "summary": metric.summary,
    }[family.kind]
    if family.kind in {"counter", "histogram"}:
        data.aggregation_temporality = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE
    if family.kind == "counter":
        data.is_monotonic = True
    for labels, value in snapshot.series.items():
        point = data.data_points.add(**times)
        for name, text in (*_pairs(family.labels, labels), *constant_labels.items()):
            _set_attribute(point.attributes.add(), name, text)
        _set_value(point, value, family.buckets)


def _pairs(names: Labels, values: Labels) -> Iterable[tuple[str, str]]:
    return zip(names, values, strict=True)


def _set_value(point: Any, value: Value, bounds: tuple[float, ...]) -> None:  # noqa: ANN401
    if isinstance(value, HistogramValue):
        point.count, point.sum = value.count, value.total
        point.explicit_bounds.extend(bounds)
        point.bucket_counts.extend(value.counts)
        for exemplar in value.exemplars:
            if exemplar is not None:
                _set_exemplar(point.exemplars.add(), exemplar)
    elif isinstance(value, SummaryValue):
        point.count, point.sum = value.count, value.total
    else:
        point.as_double = value


def _set_exemplar(message: Any, exemplar: Exemplar) -> None:  # noqa: ANN401
    message.as_double = exemplar.value
    message.time_unix_nano = _nanoseconds(exemplar.unix_s)
    message.trace_id = bytes.fromhex(exemplar.trace_id)
    message.span_id = bytes.fromhex(exemplar.span_id or "")


def _nanoseconds(unix_s: float) -> int:
    """Returns a time as the form wants it, which has none before 1970."""
    return max(0, int(unix_s * _NS_PER_S))


def _set_attribute(message: Any, name: str, value: object) -> None:  # noqa: ANN401
    message.key = name
    if isinstance(value, bool):
        message.value.bool_value = value
    elif isinstance(value, int):
        message.value.int_value = value
    elif isinstance(value, float):
        message.value.double_value = value
    else:
        message.value.string_value = str(value)
