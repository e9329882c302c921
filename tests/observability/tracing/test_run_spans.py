"""Spans of a run that belong to no step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo.observability.tracing.run_spans import (
    run_end_record,
    run_start_context,
    run_start_record,
)

if TYPE_CHECKING:
    from types import ModuleType


def test_start_and_end_are_one_trace(steps: ModuleType) -> None:
    """The start is a root that all ranks can name, and the end hangs on it."""
    identity = steps.make_identity()
    start = run_start_record(
        identity, start_unix_ns=10, end_unix_ns=30, attributes={"method": "finetune"}
    )
    end = run_end_record(identity, run_seconds=2.5, end_unix_ns=90, last_step=4, error="ValueError")
    assert (start.name, start.parent_span_id, start.attributes) == (
        "run_start",
        0,
        {"fastvideo.method": "finetune"},
    )
    assert (start.trace_id, start.span_id) == run_start_context(steps.make_identity(rank=3))
    assert (end.name, end.trace_id, end.parent_span_id) == (
        "run_end",
        start.trace_id,
        start.span_id,
    )
    assert end.attributes == {"fastvideo.run_duration_s": 2.5, "fastvideo.last_step": 4}
    assert (end.start_unix_ns, end.end_unix_ns, end.error_type) == (90, 90, "ValueError")


def test_a_clock_before_1970(steps: ModuleType) -> None:
    """OTLP has no times before it, so these are 0."""
    identity = steps.make_identity()
    start = run_start_record(identity, start_unix_ns=-30, end_unix_ns=-10)
    later = run_start_record(identity, start_unix_ns=-30, end_unix_ns=10)
    end = run_end_record(identity, run_seconds=1.0, end_unix_ns=-5)
    assert (start.start_unix_ns, start.end_unix_ns) == (0, 0)
    assert (later.start_unix_ns, later.end_unix_ns) == (0, 10)
    assert (end.start_unix_ns, end.end_unix_ns) == (0, 0)


def test_another_attempt_is_another_trace(steps: ModuleType) -> None:
    """A restarted run repeats no id of its first attempt."""
    first, second = (
        set(run_start_context(steps.make_identity(attempt=attempt))) for attempt in ("0-a", "1-b")
    )
    assert not first & second


def test_traceparent_is_the_parent_of_the_start(steps: ModuleType) -> None:
    """A run that something started is a span in the trace of that."""
    identity = steps.make_identity(traceparent=(0xABC, 0xDEF, True))
    start = run_start_record(identity, start_unix_ns=1, end_unix_ns=2)
    assert (start.trace_id, start.parent_span_id) == (0xABC, 0xDEF)
    assert start.remote_parent
    end = run_end_record(identity, run_seconds=1.0, end_unix_ns=3)
    assert (end.trace_id, end.parent_span_id) == (0xABC, start.span_id)
