"""OTLP's JSON form: ids in hexadecimal, 64-bit numbers as texts, lower camel case."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastvideo.observability.tracing.records import AttributeValue, SpanRecord

_KIND_INTERNAL: Final = 1
_STATUS_ERROR: Final = {"code": 2}
_FLAGS_REMOTE: Final = 0x301


def encode_request(
    resource: str, scope: Mapping[str, str], spans: Iterable[Mapping[str, Any]]
) -> str:
    """Returns one line of JSON: an ``ExportTraceServiceRequest`` with one resource.

    Args:
        resource: From :func:`encode_resource`.
        scope: Name and version of what made the spans.
        spans: Each from :func:`span_object`.
    """
    inner = _dumps([{"scope": scope, "spans": list(spans)}])
    return f'{{"resourceSpans":[{{"resource":{resource},"scopeSpans":{inner}}}]}}'


def encode_resource(attributes: Mapping[str, AttributeValue]) -> str:
    """Returns a ``Resource``."""
    return _dumps({"attributes": _pairs(attributes)})


def span_object(record: SpanRecord) -> dict[str, Any]:
    """Returns a ``Span`` as an object ready for ``json``."""
    attributes = record.attributes
    if record.error_type is not None:
        attributes = {**attributes, "error.type": record.error_type}
    span: dict[str, Any] = {
        "traceId": f"{record.trace_id:032x}",
        "spanId": f"{record.span_id:016x}",
        "name": record.name,
        "kind": _KIND_INTERNAL,
        "startTimeUnixNano": str(record.start_unix_ns),
        "endTimeUnixNano": str(record.end_unix_ns),
        "attributes": _pairs(attributes),
    }
    if record.parent_span_id:
        span["parentSpanId"] = f"{record.parent_span_id:016x}"
    if record.remote_parent:
        span["flags"] = _FLAGS_REMOTE
    if record.error_type is not None:
        span["status"] = _STATUS_ERROR
    if record.dropped_attributes:
        span["droppedAttributesCount"] = record.dropped_attributes
    if record.links:
        span["links"] = [{"traceId": f"{t:032x}", "spanId": f"{s:016x}"} for t, s in record.links]
    return span


def _pairs(attributes: Mapping[str, AttributeValue]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _not_finite(value)}
    return {"arrayValue": {"values": [_value(item) for item in value]}}


def _not_finite(value: float) -> str:
    """Returns protobuf's names for what JSON has no number for."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
