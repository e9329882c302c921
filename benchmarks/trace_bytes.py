"""How large the trace of one training step is, and what it costs to build it.

Trace stores drop what is too large (Tempo: 5 MB a trace). Every rank's spans are built and encoded
as the worker does it, for each rank of the run, and their requests are added up. The peer is the
SDK's own encoder on the same spans.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from _harness import Ratio, measure, parse_arguments, ratio, report
from _span_steps import make_identity, make_step
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from fastvideo.observability.tracing import wire
from fastvideo.observability.tracing.budget import TraceBudget
from fastvideo.observability.tracing.builder import StepBuilder
from fastvideo.observability.tracing.resource import SCOPE_NAME, resource_attributes
from fastvideo.observability.tracing.settings import SpanLimits, TraceSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastvideo.observability.tracing.records import SpanRecord

_GOAL_BYTES = 4_000_000
_REGIONS = 30
_RANKS = 1024
_GROWTH = ((8, 30), (64, 30), (512, 30), (1024, 30), (4096, 30), (1024, 10), (1024, 300))
_STEPS = 100


def rank_bytes(rank: int, world_size: int, regions: int, max_bytes: int) -> tuple[int, int, int]:
    """Returns bytes and spans that a rank sends of one step, and spans that it leaves out."""
    identity = make_identity(rank, world_size)
    resource = wire.encode_resource(resource_attributes(TraceSettings(), identity))
    scope = wire.encode_scope(SCOPE_NAME, "0.1.0")
    builder = StepBuilder(rank, (1, 2), SpanLimits())
    records, drawn = builder.build(make_step(7, identity, regions=regions), _no_rest)
    sizes = [len(wire.encode_span(record)) for record in records]
    budget = TraceBudget(
        max_bytes=max_bytes,
        world_size=world_size,
        rank=rank,
        local_rank=identity.local_rank,
        local_world_size=8,
        overhead=len(wire.encode_request(resource, scope, [])) + 6,
    )
    chosen = budget.choose(records, sizes, drawn)
    if not chosen:
        return 0, 0, len(records)
    spans = [wire.encode_span(records[i]) for i in chosen]
    size = len(wire.encode_request(resource, scope, spans))
    return size, len(chosen), len(records) - len(chosen)


def trace_bytes(world_size: int, regions: int, max_bytes: int) -> dict[str, int]:
    """Adds up the trace of one step over all ranks."""
    ranks = [rank_bytes(rank, world_size, regions, max_bytes) for rank in range(world_size)]
    return {
        "ranks": world_size,
        "regions": regions,
        "bytes": sum(size for size, _, _ in ranks),
        "spans": sum(sent for _, sent, _ in ranks),
        "left_out": sum(left_out for _, _, left_out in ranks),
        "whole_ranks": sum(not left_out for _, _, left_out in ranks),
    }


def sdk_span(record: SpanRecord, resource: Resource) -> ReadableSpan:
    """Returns a span as the SDK has it."""
    own = SpanContext(record.trace_id, record.span_id, is_remote=False, trace_flags=TraceFlags(1))
    parent = SpanContext(record.trace_id, record.parent_span_id or 1, is_remote=False)
    return ReadableSpan(
        name=record.name,
        context=own,
        parent=parent if record.parent_span_id else None,
        resource=resource,
        attributes=dict(record.attributes),
        links=[Link(SpanContext(t, s, is_remote=False)) for t, s in record.links],
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.UNSET),
        start_time=record.start_unix_ns,
        end_time=record.end_unix_ns,
    )


class Encoding:
    """Builds and encodes the same steps in our way and in the SDK's."""

    def __init__(self) -> None:
        identity = make_identity()
        attributes = resource_attributes(TraceSettings(), identity)
        self._builder = StepBuilder(1, (1, 2), SpanLimits())
        self._steps = [make_step(step, identity) for step in range(_STEPS)]
        self._resource = wire.encode_resource(attributes)
        self._scope = wire.encode_scope(SCOPE_NAME, "0.1.0")
        sdk_resource = Resource(dict(attributes))
        self._sdk = [
            [sdk_span(record, sdk_resource) for record in self._builder.build(step, _no_rest)[0]]
            for step in self._steps
        ]

    def ours(self) -> float:
        """Builds, encodes; returns seconds."""
        begin = time.perf_counter()
        for step in self._steps:
            records, _ = self._builder.build(step, _no_rest)
            spans = [wire.encode_span(record) for record in records]
            wire.encode_request(self._resource, self._scope, spans)
        return time.perf_counter() - begin

    def sdk(self) -> float:
        """Encodes spans that are already built; returns seconds."""
        begin = time.perf_counter()
        for spans in self._sdk:
            encode_spans(spans).SerializeToString()
        return time.perf_counter() - begin


def _no_rest(_spans: int) -> None:
    """Takes the place of the worker's rests."""


def _growth(results: Sequence[dict[str, int]]) -> None:
    for result in results:
        print(
            f"{result['ranks']:5} ranks x {result['regions']:3} regions: "
            f"{result['bytes'] / 1e6:6.2f} MB, {result['spans']} spans, "
            f"{result['left_out']} left out, {result['whole_ranks']} ranks whole"
        )


def main() -> None:
    """Measures and reports."""
    arguments = parse_arguments("Size of one step's trace.", rounds=9)
    budget = TraceSettings().trace_max_bytes
    growth = [trace_bytes(ranks, regions, budget) for ranks, regions in _GROWTH]
    unlimited = trace_bytes(_RANKS, _REGIONS, 1 << 60)
    (main_case,) = [g for g in growth if (g["ranks"], g["regions"]) == (_RANKS, _REGIONS)]
    encoding = Encoding()
    cases = {"build and encode": encoding.ours, "the SDK's encoder alone": encoding.sdk}
    measured = measure(cases, rounds=arguments.rounds)
    sizes = [
        _exact("bytes, 1024 ranks x 30 regions", main_case["bytes"] / _GOAL_BYTES, 1.0),
        _exact("the same without a budget", unlimited["bytes"] / _GOAL_BYTES, None),
    ]
    report(
        "One step's trace: bytes, 4 MB being 1; and time to build and encode, the SDK's encoder "
        "on spans already built being 1",
        [*sizes, ratio(measured, "build and encode", "the SDK's encoder alone")],
        seconds=measured,
        json_path=arguments.json,
        growth=growth,
        unlimited=unlimited,
        spans_per_second=_STEPS * _REGIONS / min(measured["build and encode"]),
    )
    _growth([*growth, unlimited])
    per_span_us = 1e6 * min(measured["build and encode"]) / (_STEPS * _REGIONS)
    print(f"{per_span_us:.1f} us of the worker's time per span")


def _exact(case: str, value: float, goal: float | None) -> Ratio:
    return Ratio(case, "4 MB", value, value, value, goal)


if __name__ == "__main__":
    main()
