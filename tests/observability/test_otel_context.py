"""Regions as parents of the program's own spans, and the other way round."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from opentelemetry import baggage, context, trace
from root_traces import STEP, Telemetry, entry_of, take_step

from fastvideo.observability.tracing.ids import step_trace_id
from fastvideo.profiler import profiler_region

if TYPE_CHECKING:
    from root_traces import HostSpans


def test_a_span_of_the_program_gets_the_region_as_its_parent(
    sampled: Telemetry, mine: HostSpans
) -> None:
    """Code that calls the OpenTelemetry API inside a region continues the step's trace."""
    with profiler_region(STEP, step=1):
        with mine.tracer.start_as_current_span("in the step"):
            pass
        with profiler_region("training_forward"), mine.tracer.start_as_current_span("in forward"):
            pass
    trace_id = step_trace_id("run", "0-a", 1)
    assert mine.parent_of("in the step") == (trace_id, sampled.spans[0].root.span_id)
    assert mine.parent_of("in forward") == (trace_id, entry_of(sampled, "training_forward").span_id)


def test_a_region_inside_a_span_of_the_program_is_its_child(
    sampled: Telemetry, mine: HostSpans
) -> None:
    """Region, own span, region, own span: each is the child of the one around it."""
    with (
        profiler_region(STEP, step=1),
        mine.tracer.start_as_current_span("around") as around,
        profiler_region("training_forward"),
        mine.tracer.start_as_current_span("inside"),
    ):
        pass
    forward = entry_of(sampled, "training_forward")
    assert forward.foreign_parent is not None
    assert forward.foreign_parent.span_id == around.get_span_context().span_id
    assert mine.parent_of("inside") == (forward.foreign_parent.trace_id, forward.span_id)
    assert entry_of(sampled, STEP).foreign_parent is None


def test_baggage_does_not_hide_the_region(sampled: Telemetry, mine: HostSpans) -> None:
    """A context that only adds baggage still has the region as its span."""
    with profiler_region(STEP, step=1), profiler_region("training_forward"):
        token = context.attach(baggage.set_baggage("tenant", "a"))
        with profiler_region("dmd2_critic_loss"), mine.tracer.start_as_current_span("inside"):
            pass
        context.detach(token)
    assert entry_of(sampled, "dmd2_critic_loss").foreign_parent is None
    assert mine.parent_of("inside") == (
        step_trace_id("run", "0-a", 1),
        entry_of(sampled, "dmd2_critic_loss").span_id,
    )


def test_spans_of_the_program_in_other_threads_get_their_region(
    sampled: Telemetry, mine: HostSpans
) -> None:
    """A region on a pool thread is the parent of spans there."""

    def work() -> None:
        with (
            profiler_region("training_dataloader"),
            mine.tracer.start_as_current_span("on a thread"),
        ):
            pass

    with profiler_region(STEP, step=1):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert mine.parent_of("on a thread") == (
        step_trace_id("run", "0-a", 1),
        entry_of(sampled, "training_dataloader").span_id,
    )


def test_in_an_unsampled_step_spans_of_the_program_are_not_sampled(
    unsampled: Telemetry, mine: HostSpans
) -> None:
    """The usual parent-based sampler leaves them out with the step."""
    with profiler_region(STEP, step=1), mine.tracer.start_as_current_span("left out"):
        pass
    with mine.tracer.start_as_current_span("after"):
        pass
    assert [span.name for span in mine.exporter.get_finished_spans()] == ["after"]
    assert mine.parent_of("after") is None


def test_spans_of_the_program_past_the_limit_have_a_parent_that_is_sent(mine: HostSpans) -> None:
    """The innermost region that leaves a span is theirs, whatever lies between."""
    telemetry = Telemetry(1.0, max_entries=1)
    with (
        profiler_region(STEP, step=1),
        profiler_region("training_forward"),
        profiler_region("dmd2_critic_loss"),
        mine.tracer.start_as_current_span("inside"),
    ):
        pass
    telemetry.clock.stop()
    forward = entry_of(telemetry, "training_forward")
    assert mine.parent_of("inside") == (telemetry.spans[0].trace_id, forward.span_id)


def test_after_a_step_the_context_is_as_before(sampled: Telemetry) -> None:
    """A span that was current before the step is current after it."""
    outer = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    token = context.attach(trace.set_span_in_context(outer))
    take_step()
    assert trace.get_current_span() is outer
    context.detach(token)


def test_without_spans_steps_touch_no_opentelemetry_context() -> None:
    """With metrics alone, a span of the program is what it would be without telemetry."""
    telemetry = Telemetry(1.0, spans=False)
    with profiler_region(STEP, step=1):
        current = trace.get_current_span()
    telemetry.clock.stop()
    assert current is trace.INVALID_SPAN
    assert telemetry.finished[0].sampled_trace_id is None
