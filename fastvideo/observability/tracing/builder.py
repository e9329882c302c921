"""Builds the spans of a step from what the hot path left behind. Runs on the span worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.attributes import coerce_attributes, error_type
from fastvideo.observability.tracing.ids import draw_span_id, step_root_span_id
from fastvideo.observability.tracing.records import (
    DEVICE_DURATION_ATTRIBUTE,
    OMITTED_ATTRIBUTE,
    SEGMENT_ATTRIBUTE,
    STEP_ATTRIBUTE,
    STEP_KIND_ATTRIBUTE,
    SpanRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.observability.tracing.records import AttributeValue, RegionEntry, StepSpans
    from fastvideo.observability.tracing.settings import SpanLimits

_MAX_DEPTH: Final = 1000


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
        self, spans: StepSpans, pace: Callable[[], None]
    ) -> tuple[list[SpanRecord], set[int]]:
        """Builds the spans of one step.

        Every span's parent is among the spans of the step or is the root that rank 0 sends, so
        none is an orphan, whatever entries were left open or belong to another step.

        Args:
            spans: The step.
            pace: Called after each span; may rest for a moment.

        Returns:
            The spans, the step's own first and on rank 0 the root behind it; and the ids of those
            that were drawn before, which somebody else's spans may hang on.
        """
        step_id, step_drawn = _identify(spans.root)
        known = {id(spans.root): step_id}
        drawn = {step_id} if step_drawn else set()
        finished = [e for e in spans.entries if e is not spans.root and e.end_ns]
        for entry in finished:
            known[id(entry)], was_drawn = _identify(entry)
            if was_drawn:
                drawn.add(known[id(entry)])
        step = self._step(spans, step_id)
        records = [step]
        if self._rank == 0:
            records.append(self._root(spans, step))
        for entry in finished:
            records.append(self._region(spans, entry, known))
            pace()
        return records, drawn

    def _root(self, spans: StepSpans, step: SpanRecord) -> SpanRecord:
        attributes: dict[str, AttributeValue] = {STEP_ATTRIBUTE: spans.step}
        if spans.step_kind is not None:
            attributes[STEP_KIND_ATTRIBUTE] = spans.step_kind
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
        step = self._record(spans, spans.root, span_id, step_root_span_id(spans.trace_id))
        step.remote_parent = self._rank != 0
        if spans.step_kind is not None:
            step.attributes[STEP_KIND_ATTRIBUTE] = spans.step_kind
        if spans.omitted:
            step.attributes[OMITTED_ATTRIBUTE] = spans.omitted
        if step.error_type is None and spans.error is not None:
            step.error_type = error_type(spans.error)
        if not spans.root.end_ns:  # handed over while it is open: it lasts as long as its regions
            offset = spans.anchor_unix_ns - spans.anchor_perf_ns
            last = max((e.end_ns for e in spans.entries), default=0)
            step.end_unix_ns = max(step.start_unix_ns, last + offset)
        return step

    def _region(self, spans: StepSpans, entry: RegionEntry, known: dict[int, int]) -> SpanRecord:
        return self._record(spans, entry, known[id(entry)], _parent(entry, spans, known))

    def _record(
        self, spans: StepSpans, entry: RegionEntry, span_id: int, parent_id: int
    ) -> SpanRecord:
        attributes: dict[str, AttributeValue] = {STEP_ATTRIBUTE: spans.step}
        dropped = 0
        if entry.attributes:
            given, dropped = coerce_attributes(entry.attributes, self._limits)
            attributes = {**given, **attributes}
        device_ms = entry.device_ms
        if device_ms is not None:
            attributes[DEVICE_DURATION_ATTRIBUTE] = float(device_ms)
        if entry.segment is not None:
            attributes[SEGMENT_ATTRIBUTE] = entry.segment
        foreign = entry.foreign_parent
        links: tuple[tuple[int, int], ...] = ()
        if foreign is not None and foreign.trace_id != spans.trace_id and self._limits.links:
            links = ((foreign.trace_id, foreign.span_id),)
        # The wall clock is read once a step: within a step it cannot step back.
        offset = spans.anchor_unix_ns - spans.anchor_perf_ns
        start_unix_ns = max(0, entry.start_ns + offset)
        return SpanRecord(
            name=entry.region,
            trace_id=spans.trace_id,
            span_id=span_id,
            parent_span_id=parent_id,
            start_unix_ns=start_unix_ns,
            end_unix_ns=max(start_unix_ns, entry.end_ns + offset),
            attributes=attributes,
            error_type=error_type(entry.error),
            links=links,
            dropped_attributes=dropped,
        )


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


def _identify(entry: RegionEntry) -> tuple[int, bool]:
    """Returns the id of an entry's span, and whether it was drawn before it was asked for here."""
    try:
        # Not by getattr: entries draw an id when they are asked for one that was never drawn.
        drawn = int(object.__getattribute__(entry, "span_id"))
    except AttributeError:
        drawn = 0
    if drawn:
        return drawn, True
    span_id = draw_span_id()
    setattr(entry, "span_id", span_id)  # noqa: B010 - for readers it is a property
    return span_id, False
