"""Spans in OTLP's two forms, read back with the official classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from fastvideo.observability.tracing import wire
from fastvideo.observability.tracing.file import JsonEncoder
from fastvideo.observability.tracing.records import SharedAttributes, SpanRecord

if TYPE_CHECKING:
    from types import ModuleType

    from fastvideo.observability.tracing.records import AttributeValue

RESOURCE: dict[str, AttributeValue] = {"service.name": "fastvideo", "fastvideo.rank": 3}
SCOPE = ("scope", "1.2")

RECORDS = [
    SpanRecord("root", 1, 2, 0, 10, 20),
    SpanRecord(
        name="training_forward",
        trace_id=(1 << 128) - 1,
        span_id=(1 << 64) - 1,
        parent_span_id=5,
        start_unix_ns=1_700_000_000_000_000_001,
        end_unix_ns=1_700_000_000_000_000_002,
        attributes={
            "text": "grün " * 40,
            "empty": "",
            "yes": True,
            "no": False,
            "zero": 0,
            "small": -1,
            "large": (1 << 63) - 1,
            "least": -(1 << 63),
            "real": 0.1,
            "infinite": float("-inf"),
            "texts": ("a", "b"),
            "numbers": (1, 2.5, True),
            "nothing": (),
        },
        error_type="torch.OutOfMemoryError",
        links=((7, 8), (9, 10)),
        dropped_attributes=300,
        remote_parent=True,
    ),
    SpanRecord("shared", 1, 3, 2, 10, 20, SharedAttributes({"fastvideo.step": 12})),
    SpanRecord("shared too", 1, 4, 2, 11, 19, SharedAttributes({"text": "grün", "real": 2.5})),
    SpanRecord("failed", 1, 5, 2, 11, 19, SharedAttributes({"a": "b"}), error_type="ValueError"),
    SpanRecord('"\\ \n\t\x01 ☃', 1, 6, 2, 11, 19, {'"\\ \n\x7f': "\u2028 \x00"}, links=((7, 8),)),
]


def _protobuf(records: list[SpanRecord]) -> ExportTraceServiceRequest:
    encoded = [wire.encode_span(record) for record in records]
    body = wire.encode_request(wire.encode_resource(RESOURCE), wire.encode_scope(*SCOPE), encoded)
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    return request


def _plain(any_value: Any) -> Any:
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_plain(item) for item in any_value.array_value.values)
    return getattr(any_value, kind)


def test_protobuf_reads_back() -> None:
    """The official classes read every field back as it was written."""
    request = _protobuf(RECORDS)
    (resource,) = request.resource_spans
    (scope,) = resource.scope_spans
    assert {pair.key: _plain(pair.value) for pair in resource.resource.attributes} == RESOURCE
    assert (scope.scope.name, scope.scope.version) == SCOPE
    for record, span in zip(RECORDS, scope.spans, strict=True):
        assert int.from_bytes(span.trace_id, "big") == record.trace_id
        assert int.from_bytes(span.span_id, "big") == record.span_id
        assert int.from_bytes(span.parent_span_id, "big") == record.parent_span_id
        assert span.name == record.name
        assert span.kind == Span.SPAN_KIND_INTERNAL
        assert span.start_time_unix_nano == record.start_unix_ns
        assert span.end_time_unix_nano == record.end_unix_ns
        attributes = {pair.key: _plain(pair.value) for pair in span.attributes}
        assert attributes.pop("error.type", None) == record.error_type
        assert attributes == record.attributes
        failed = record.error_type is not None
        assert span.status.code == (Status.STATUS_CODE_ERROR if failed else 0)
        assert span.status.message == ""
        assert span.dropped_attributes_count == record.dropped_attributes
        links = [(int.from_bytes(x.trace_id), int.from_bytes(x.span_id)) for x in span.links]
        assert tuple(links) == record.links
        assert span.flags == (0x301 if record.remote_parent else 0)


def test_json_says_the_same(otlp_receiver: ModuleType) -> None:
    """The JSON form means the same messages as the protobuf form."""
    body = JsonEncoder(RESOURCE, SCOPE).encode(RECORDS)
    assert b"\n" not in body
    assert otlp_receiver.read_json(body) == _protobuf(RECORDS)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 100_000])
def test_lengths_of_any_size(length: int) -> None:
    """Lengths around the borders of the number format are written right."""
    record = SpanRecord("n" * length, 1, 2, 3, 4, 5, {"k": "v" * length})
    request = _protobuf([record])
    span = request.resource_spans[0].scope_spans[0].spans[0]
    assert (span.name, span.attributes[0].value.string_value) == ("n" * length, "v" * length)


def test_shared_attributes_are_read_back_from_every_span(otlp_receiver: ModuleType) -> None:
    """What is encoded once is in all spans, and in no others."""
    shared = SharedAttributes({"fastvideo.step": 7})
    records = [SpanRecord("a", 1, 2 + i, 1, 3, 4, shared) for i in range(3)]
    records.append(SpanRecord("b", 1, 9, 1, 3, 4, SharedAttributes({"fastvideo.step": 8})))
    for request in (
        _protobuf(records),
        otlp_receiver.read_json(JsonEncoder(RESOURCE, SCOPE).encode(records)),
    ):
        spans = request.resource_spans[0].scope_spans[0].spans
        steps = [[pair.value.int_value for pair in span.attributes] for span in spans]
        assert steps == [[7], [7], [7], [8]]


def test_what_is_not_a_number_is_written_as_protobuf_has_it(otlp_receiver: ModuleType) -> None:
    """JSON has no word for these."""
    values: dict[str, AttributeValue] = {
        "nan": math.nan,
        "most": math.inf,
        "numbers": (1.5, -math.inf),
    }
    body = JsonEncoder(RESOURCE, SCOPE).encode([SpanRecord("a", 1, 2, 0, 3, 4, values)])
    read = otlp_receiver.read_json(body).resource_spans[0].scope_spans[0].spans[0].attributes
    assert math.isnan(read[0].value.double_value)
    assert [_plain(pair.value) for pair in read[1:]] == [math.inf, (1.5, -math.inf)]


@pytest.mark.parametrize("name", ["", "training_forward", "\U0001f600" * 200, "n" * 20_000])
@pytest.mark.parametrize("text", ["", "\U0001f600" * 5000])
def test_the_bound_of_a_size_holds(name: str, text: str) -> None:
    """No span is larger than it was said to be, and the bound is not far off."""
    shared = SharedAttributes({"text": text})
    largest = (1 << 64) - 1
    record = SpanRecord(name, (1 << 128) - 1, largest, largest, largest, largest, shared)
    record.remote_parent = True
    exact = len(wire.encode_span(record))
    assert exact <= wire.size_bound(record) <= exact + 90 + 4 * len(name)
    record.links = ((1, 2),)
    assert wire.size_bound(record) == len(wire.encode_span(record))
