"""OTLP's JSON form: ids in hexadecimal, 64-bit numbers as texts, lower camel case."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.records import SharedAttributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastvideo.observability.tracing.records import AttributeValue, SpanRecord

_KIND_INTERNAL: Final = 1
_STATUS_ERROR: Final = 2
_FLAGS_REMOTE: Final = 0x301
_CACHED_NAMES: Final = 2048


def encode_request(resource: str, scope: str, spans: Iterable[str]) -> str:
    """Returns one line of JSON: an ``ExportTraceServiceRequest`` with one resource.

    Args:
        resource: From :func:`encode_resource`.
        scope: From :func:`encode_scope`.
        spans: Each from :func:`encode_span`.
    """
    return (
        f'{{"resourceSpans":[{{"resource":{resource},"scopeSpans":[{{"scope":{scope},'
        f'"spans":[{",".join(spans)}]}}]}}]}}'
    )


def encode_resource(attributes: Mapping[str, AttributeValue]) -> str:
    """Returns a ``Resource``."""
    return f'{{"attributes":{_attributes(attributes)}}}'


def encode_scope(name: str, version: str) -> str:
    """Returns the ``InstrumentationScope``: what made the spans."""
    return f'{{"name":{_text(name)},"version":{_text(version)}}}'


def encode_span(record: SpanRecord) -> str:
    """Returns a ``Span``; put together by hand, for it takes a third of the time."""
    attributes = record.attributes
    if type(attributes) is SharedAttributes:
        encoded = attributes.json
        if encoded is None:
            encoded = attributes.json = _attributes(attributes)
    elif record.error_type is None:
        encoded = _attributes(attributes)
    name = _names.get(record.name) or _name(record.name)
    parent_id = record.parent_span_id
    parent = f',"parentSpanId":"{parent_id:016x}"' if parent_id else ""
    rare = ""
    if record.error_type is not None:
        encoded = _attributes({**attributes, "error.type": record.error_type})
        rare = _rare(record)
    elif record.links or record.dropped_attributes or record.remote_parent:
        rare = _rare(record)
    return (
        f'{{"traceId":"{record.trace_id:032x}","spanId":"{record.span_id:016x}"{parent},'
        f'"name":{name},"kind":{_KIND_INTERNAL},"startTimeUnixNano":"{record.start_unix_ns}",'
        f'"endTimeUnixNano":"{record.end_unix_ns}","attributes":{encoded}{rare}}}'
    )


def _rare(record: SpanRecord) -> str:
    """Returns the members that few spans have."""
    members = ""
    if record.remote_parent:
        members += f',"flags":{_FLAGS_REMOTE}'
    if record.error_type is not None:
        members += f',"status":{{"code":{_STATUS_ERROR}}}'
    if record.dropped_attributes:
        members += f',"droppedAttributesCount":{record.dropped_attributes}'
    if record.links:
        links = [f'{{"traceId":"{t:032x}","spanId":"{s:016x}"}}' for t, s in record.links]
        members += f',"links":[{",".join(links)}]'
    return members


def _attributes(attributes: Mapping[str, AttributeValue]) -> str:
    pairs = [
        f'{{"key":{_names.get(name) or _name(name)},"value":{_value(value)}}}'
        for name, value in attributes.items()
    ]
    return f"[{','.join(pairs)}]"


def _name(name: str) -> str:
    """Returns a name of a span or an attribute; there are few, so they are kept."""
    encoded = _text(name)
    if len(_names) < _CACHED_NAMES:
        _names[name] = encoded
    return encoded


def _value(value: AttributeValue) -> str:
    if isinstance(value, str):
        return f'{{"stringValue":{_text(value)}}}'
    if isinstance(value, bool):
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if isinstance(value, int):
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, float):
        number = float.__repr__(value) if math.isfinite(value) else _not_finite(value)
        return f'{{"doubleValue":{number}}}'
    return f'{{"arrayValue":{{"values":[{",".join([_value(item) for item in value])}]}}}}'


def _not_finite(value: float) -> str:
    """Returns protobuf's names for what JSON has no number for."""
    if math.isnan(value):
        return '"NaN"'
    return '"Infinity"' if value > 0 else '"-Infinity"'


_text: Final = json.JSONEncoder(ensure_ascii=False).encode
_names: dict[str, str] = {}
