"""Builds the spans of a step from what the hot path left behind. Runs on the span worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.attributes import coerce, coerce_attributes, error_type
from fastvideo.observability.tracing.ids import draw_span_ids, step_root_span_id
from fastvideo.observability.tracing.records import (
    DEVICE_DURATION_ATTRIBUTE,
    OMITTED_ATTRIBUTE,
    SEGMENT_ATTRIBUTE,
    STEP_ATTRIBUTE,
    STEP_KIND_ATTRIBUTE,
    SharedAttributes,
    SpanRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.observability.tracing.records import AttributeValue, RegionEntry, StepSpans
    from fastvideo.observability.tracing.settings import SpanLimits

_MAX_DEPTH: Final = 1000
_AT_ONCE: Final = 32


class StepBuilder:
    """Builds the spans of this process's steps.

    Args:
        rank: Of this process; rank 0 builds the root of each trace.
        run_start: Trace id and span id of the run's first span, which every root links to.
        limits: What a span may carry.
    """

    def __init__(self, rank: int, run_start: tuple[int, int], limits: SpanLimits) -> None:
        self._rank = rank
        self._run_start = run_start
        self._limits = limits

    def build(
        self, spans: StepSpans, pace: Callable[[int], None]
    ) -> tuple[list[SpanRecord], set[int]]:
        """Builds the spans of one step.

        Every span's parent is among the spans of the step or is the root that rank 0 sends, so
        none is an orphan, whatever entries were left open or belong to another step.

        Args:
            spans: The step.
            pace: Called after every few spans with their number; may rest for a moment.

        Returns:
            The spans, the step's own first and on rank 0 the root behind it; and the ids of those
            that were drawn before, which somebody else's spans may hang on.
        """
        finished = [e for e in spans.entries if e is not spans.root and e.end_ns]
        known, drawn = _identify([spans.root, *finished])
        step = self._step(spans, known[id(spans.root)])
        records = [step]
        is_request = spans.request_parent is not None
        if self._rank == 0 and not is_request:
            records.append(self._root(spans, step))
        shared = SharedAttributes({} if is_request else {STEP_ATTRIBUTE: spans.step})
        for first in range(0, len(finished), _AT_ONCE):
            some = finished[first : first + _AT_ONCE]
            records.extend([self._region(spans, entry, known, shared) for entry in some])
            pace(len(some))
        return records, drawn

    def _root(self, spans: StepSpans, step: SpanRecord) -> SpanRecord:
        attributes: dict[str, AttributeValue] = {STEP_ATTRIBUTE: spans.step}
        if STEP_KIND_ATTRIBUTE in step.attributes:
            attributes[STEP_KIND_ATTRIBUTE] = step.attributes[STEP_KIND_ATTRIBUTE]
        return SpanRecord(
            name=spans.root_name,
            trace_id=spans.trace_id,
            span_id=step_root_span_id(spans.trace_id),
            parent_span_id=0,
            start_unix_ns=step.start_unix_ns,
            end_unix_ns=step.end_unix_ns,
            attributes=attributes,
            error_type=step.error_type,
            links=(self._run_start,),
        )

    def _step(self, spans: StepSpans, span_id: int) -> SpanRecord:
        own: dict[str, AttributeValue] = {}
        parent_id = spans.request_parent
        is_request = parent_id is not None
        if parent_id is None:
            parent_id = step_root_span_id(spans.trace_id)
            own[STEP_ATTRIBUTE] = spans.step
        step = self._record(spans, spans.root, (span_id, parent_id), own)
        step.remote_parent = self._rank != 0 if not is_request else bool(parent_id)
        if is_request:
            step.links = (self._run_start,)
        if spans.step_kind is not None:
            kind = coerce(spans.step_kind, self._limits.value_length)
            step.attributes[STEP_KIND_ATTRIBUTE] = kind
        if spans.omitted:
            step.attributes[OMITTED_ATTRIBUTE] = spans.omitted
        if step.error_type is None and spans.error is not None:
            step.error_type = error_type(spans.error)
        if not spans.root.end_ns:  # handed over while it is open: it lasts as long as its regions
            offset = spans.anchor_unix_ns - spans.anchor_perf_ns
            last = max((e.end_ns for e in spans.entries), default=0)
            step.end_unix_ns = max(step.start_unix_ns, last + offset)
        return step

    def _region(
        self,
        spans: StepSpans,
        entry: RegionEntry,
        known: dict[int, int],
        shared: SharedAttributes,
    ) -> SpanRecord:
        around = entry.parent
        parent_id = known.get(id(around)) if entry.foreign_parent is None else None
        if parent_id is None:
            parent_id = _parent(entry, spans, known)
        return self._record(spans, entry, (known[id(entry)], parent_id), shared)

    def _record(
        self,
        spans: StepSpans,
        entry: RegionEntry,
        ids: tuple[int, int],
        attributes: dict[str, AttributeValue],
    ) -> SpanRecord:
        # The wall clock is read once a step: within a step it cannot step back.
        offset = spans.anchor_unix_ns - spans.anchor_perf_ns
        start_unix_ns = entry.start_ns + offset
        end_unix_ns = entry.end_ns + offset
        if not 0 <= start_unix_ns <= end_unix_ns:
            start_unix_ns = max(0, start_unix_ns)
            end_unix_ns = max(start_unix_ns, end_unix_ns)
        record = SpanRecord(
            entry.region, spans.trace_id, *ids, start_unix_ns, end_unix_ns, attributes
        )
        if entry.error is not None:
            record.error_type = error_type(entry.error)
        self._add_what_few_have(spans, entry, record)
        return record

    def _add_what_few_have(self, spans: StepSpans, entry: RegionEntry, record: SpanRecord) -> None:
        if entry.attributes:
            given, record.dropped_attributes = coerce_attributes(entry.attributes, self._limits)
            record.attributes = {**given, **record.attributes}
        device_ms = entry.device_ms
        if device_ms is not None:
            record.attributes = {**record.attributes, DEVICE_DURATION_ATTRIBUTE: float(device_ms)}
        segment = entry.segment
        if segment is not None:
            record.attributes = {**record.attributes, SEGMENT_ATTRIBUTE: segment}
        foreign = entry.foreign_parent
        if foreign is not None and foreign.trace_id != spans.trace_id and self._limits.links:
            record.links = ((foreign.trace_id, foreign.span_id),)


def _parent(entry: RegionEntry, spans: StepSpans, known: dict[int, int]) -> int:
    """Returns the id of the nearest span around an entry that is part of the step."""
    foreign = entry.foreign_parent
    if foreign is not None and foreign.trace_id == spans.trace_id:
        return int(foreign.span_id)
    around = entry.parent
    for _ in range(_MAX_DEPTH):
        if around is None:
            break
        found = known.get(id(around))
        if found is not None:
            return found
        around = around.parent
    return known[id(spans.root)]


def _identify(entries: list[RegionEntry]) -> tuple[dict[int, int], set[int]]:
    """Gives every entry's span an id.

    Returns:
        The ids, by ``id()`` of the entries; and those that were drawn before.
    """
    known = {}
    drawn = set()
    for entry, fresh_id in zip(entries, draw_span_ids(len(entries)), strict=True):
        span_id = entry.drawn_id
        if span_id:
            drawn.add(span_id)
        else:
            span_id = entry.span_id = fresh_id
        known[id(entry)] = span_id
    return known, drawn
