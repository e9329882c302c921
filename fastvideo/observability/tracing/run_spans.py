"""Spans of a run that belong to no step: its start and its end.

A run is short spans that link to each other. One span for all of it would be lost with the
process, and no trace store shows a trace that lasts for days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.attributes import coerce_attributes
from fastvideo.observability.tracing.ids import draw_span_id, event_trace_id, step_root_span_id
from fastvideo.observability.tracing.records import SpanRecord
from fastvideo.observability.tracing.settings import SpanLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.observability.identity import RunIdentity

RUN_START: Final = "run_start"
RUN_END: Final = "run_end"

RUN_DURATION_ATTRIBUTE: Final = "fastvideo.run_duration_s"
LAST_STEP_ATTRIBUTE: Final = "fastvideo.last_step"


def run_start_context(identity: RunIdentity) -> tuple[int, int]:
    """Returns trace id and span id of ``run_start``, the same on all ranks.

    Where ``TRACEPARENT`` names what started the run, ``run_start`` is a span of that trace;
    otherwise it has a trace of its own.
    """
    own = event_trace_id(identity.run_id, identity.attempt, RUN_START)
    trace_id = identity.traceparent[0] if identity.traceparent is not None else own
    return trace_id, step_root_span_id(own)


def run_start_record(
    identity: RunIdentity,
    *,
    start_unix_ns: int,
    end_unix_ns: int,
    attributes: Mapping[str, object] | None = None,
) -> SpanRecord:
    """Builds the span of a run's start; rank 0 sends it, as soon as it can.

    Args:
        identity: Of the run.
        start_unix_ns: When the start began, in Unix nanoseconds; a clock before 1970 counts as 0.
        end_unix_ns: When the run was ready to step.
        attributes: What describes the run, such as its method; coerced like those of regions.
    """
    trace_id, span_id = run_start_context(identity)
    parent = identity.traceparent[1] if identity.traceparent is not None else 0
    given, dropped = coerce_attributes(attributes or {}, SpanLimits())
    return SpanRecord(
        name=RUN_START,
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent,
        start_unix_ns=max(0, start_unix_ns),
        end_unix_ns=max(0, start_unix_ns, end_unix_ns),
        attributes=given,
        dropped_attributes=dropped,
        remote_parent=bool(parent),
    )


def run_end_record(
    identity: RunIdentity,
    *,
    run_seconds: float,
    end_unix_ns: int,
    last_step: int | None = None,
    error: str | None = None,
) -> SpanRecord:
    """Builds the span of a run's end, a moment below ``run_start``; rank 0 sends it.

    Args:
        identity: Of the run.
        run_seconds: How long the run took, by a clock that does not step back.
        end_unix_ns: When it ended, in Unix nanoseconds.
        last_step: The last step that was done, or None.
        error: Type of the exception that ended the run, or None.
    """
    trace_id, start_id = run_start_context(identity)
    given, _ = coerce_attributes(
        {RUN_DURATION_ATTRIBUTE: float(run_seconds), LAST_STEP_ATTRIBUTE: last_step}, SpanLimits()
    )
    return SpanRecord(
        name=RUN_END,
        trace_id=trace_id,
        span_id=draw_span_id(),
        parent_span_id=start_id,
        start_unix_ns=max(0, end_unix_ns),
        end_unix_ns=max(0, end_unix_ns),
        attributes=given,
        error_type=error,
    )
