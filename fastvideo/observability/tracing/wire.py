"""OTLP's protobuf form, written straight to bytes.

Building the messages of ``opentelemetry-proto`` takes four times as long, and all of that time the
worker holds the interpreter lock that the training thread wants. The form is fixed by its field
numbers, which stand in the comments; the tests read everything back with the official classes.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.ids import SPAN_ID_BYTES, TRACE_ID_BYTES
from fastvideo.observability.tracing.records import SharedAttributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastvideo.observability.tracing.records import AttributeValue, SpanRecord

_ONE_BYTE: Final = 0x80
_FRAME_BYTES: Final = 90
"""More than a span takes besides its name, its attributes and what few have."""
_UTF8_BYTES: Final = 4
_64_BITS: Final = (1 << 64) - 1
_CACHED_NAMES: Final = 2048

_BYTES: Final = tuple(bytes((value,)) for value in range(256))
_ID: Final = struct.Struct(">BBQ").pack
_DOUBLE: Final = struct.Struct("<Bd").pack
_TIMES: Final = struct.Struct("<BQBQ").pack
_FIXED32: Final = struct.Struct("<I").pack

_KIND_INTERNAL: Final = b"\x30\x01"  # Span.kind (6) = SPAN_KIND_INTERNAL
_STATUS_ERROR: Final = b"\x7a\x02\x18\x02"  # Span.status (15) { code (3) = ERROR }
_FLAGS_REMOTE: Final = b"\x85\x01" + _FIXED32(0x301)  # Span.flags (16): sampled, remote parent


def encode_request(resource: bytes, scope: bytes, spans: Iterable[bytes]) -> bytes:
    """Returns an ``ExportTraceServiceRequest`` with one resource.

    Args:
        resource: From :func:`encode_resource`.
        scope: From :func:`encode_scope`.
        spans: Each from :func:`encode_span`.
    """
    scope_spans = scope + b"".join(spans)
    return _field(0x0A, resource + _field(0x12, scope_spans))  # resource_spans (1), scope_spans (2)


def encode_resource(attributes: Mapping[str, AttributeValue]) -> bytes:
    """Returns the field ``resource`` of ``ResourceSpans``."""
    # The resource is field 1, and so are its attributes.
    pairs = [_attribute(0x0A, name, value) for name, value in attributes.items()]
    return _field(0x0A, b"".join(pairs))


def encode_scope(name: str, version: str) -> bytes:
    """Returns the field ``scope`` of ``ScopeSpans``: what made the spans."""
    # ScopeSpans.scope (1) { name (1), version (2) }
    return _field(0x0A, _field(0x0A, name.encode()) + _field(0x12, version.encode()))


def encode_span(record: SpanRecord) -> bytes:
    """Returns the field ``spans`` of ``ScopeSpans`` for one span."""
    attributes = record.attributes
    if type(attributes) is SharedAttributes:
        encoded = attributes.protobuf
        if encoded is None:
            encoded = attributes.protobuf = _attributes(attributes)
    else:
        encoded = _attributes(attributes)
    rare = b""
    if record.error_type is not None or record.links or record.dropped_attributes:
        rare = b"".join(_rare(record))
    parent_id = record.parent_span_id
    body = b"".join(
        (
            _trace_id(record.trace_id),
            _ID(0x12, 8, record.span_id),  # span_id (2)
            _ID(0x22, 8, parent_id) if parent_id else b"",  # parent_span_id (4)
            _names.get(record.name) or _name(record.name),
            # The times are the fields 7 and 8.
            _TIMES(0x39, record.start_unix_ns, 0x41, record.end_unix_ns),
            encoded,
            rare,
            _FLAGS_REMOTE if record.remote_parent else b"",
        )
    )
    return _field(0x12, body)  # ScopeSpans.spans (2)


def size_bound(record: SpanRecord) -> int:
    """Returns a size that :func:`encode_span` does not exceed; quick for most spans."""
    attributes = record.attributes
    if (
        type(attributes) is SharedAttributes
        and attributes.protobuf is not None
        and not (record.error_type or record.links or record.dropped_attributes)
    ):
        return _FRAME_BYTES + _UTF8_BYTES * len(record.name) + len(attributes.protobuf)
    return len(encode_span(record))


@functools.lru_cache(maxsize=8)
def _trace_id(trace_id: int) -> bytes:
    """Returns the field ``trace_id`` (1); spans of one trace come one after the other."""
    return b"\x0a\x10" + trace_id.to_bytes(TRACE_ID_BYTES, "big")


def _attributes(attributes: Mapping[str, AttributeValue]) -> bytes:
    """Returns the fields ``attributes`` (9)."""
    return b"".join([_attribute(0x4A, name, value) for name, value in attributes.items()])


def _rare(record: SpanRecord) -> list[bytes]:
    """Returns the fields that few spans have."""
    parts = []
    if record.error_type is not None:
        parts.append(_attribute(0x4A, "error.type", record.error_type))
        parts.append(_STATUS_ERROR)
    if record.dropped_attributes:
        parts.append(b"\x50" + _varint(record.dropped_attributes))  # dropped_attributes_count (10)
    for trace_id, span_id in record.links:  # links (13) { trace_id (1), span_id (2) }
        link = b"\x0a\x10" + trace_id.to_bytes(TRACE_ID_BYTES, "big")
        parts.append(_field(0x6A, link + b"\x12\x08" + span_id.to_bytes(SPAN_ID_BYTES, "big")))
    return parts


def _name(name: str) -> bytes:
    """Returns the fields ``name`` (5) and ``kind`` (6); there are few names, so they are kept."""
    encoded = _names.get(name)
    if encoded is None:
        encoded = _field(0x2A, name.encode()) + _KIND_INTERNAL
        if len(_names) < _CACHED_NAMES:
            _names[name] = encoded
    return encoded


def _attribute(tag: int, name: str, value: AttributeValue) -> bytes:
    """Returns a ``KeyValue`` under ``tag``: key (1), value (2)."""
    key = _keys.get(name)
    if key is None:
        key = _field(0x0A, name.encode())
        if len(_keys) < _CACHED_NAMES:
            _keys[name] = key
    return _field(tag, key + _field(0x12, _value(value)))


def _value(value: AttributeValue) -> bytes:
    """Returns an ``AnyValue``."""
    if isinstance(value, str):
        return _field(0x0A, value.encode())  # string_value (1)
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"  # bool_value (2)
    if isinstance(value, int):
        return b"\x18" + _varint(value & _64_BITS)  # int_value (3)
    if isinstance(value, float):
        return _DOUBLE(0x21, value)  # double_value (4)
    items = b"".join([_field(0x0A, _value(item)) for item in value])
    return _field(0x2A, items)  # array_value (5) { values (1) }


def _field(tag: int, body: bytes) -> bytes:
    """Returns a field of type bytes, text or message."""
    length = len(body)
    if length < _ONE_BYTE:
        return _BYTES[tag] + _BYTES[length] + body
    return _BYTES[tag] + _varint(length) + body


def _varint(value: int) -> bytes:
    """Returns a number of variable length, 0 to 64 bits."""
    if value < _ONE_BYTE:
        return _BYTES[value]
    groups = bytearray()
    while value >= _ONE_BYTE:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


_names: dict[str, bytes] = {}
_keys: dict[str, bytes] = {}
