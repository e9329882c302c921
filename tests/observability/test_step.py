"""The traces of steps, of events between them and of requests: what a root leaves behind."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
from opentelemetry import context, trace
from root_traces import STEP, Telemetry, take_step

from fastvideo import profiler
from fastvideo.observability.current import current_trace, now
from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.tracing.ids import step_trace_id
from fastvideo.profiler import RecordingSink, profiler_region

REQUEST = "inference_request"


def test_a_sampled_step_leaves_a_span_for_every_region(sampled: Telemetry) -> None:
    """The entries of a step name their parents; the step's own entry is the root."""
    take_step(7, step_kind="critic")
    (spans,) = sampled.spans
    assert (spans.step, spans.step_kind) == (7, "critic")
    assert spans.trace_id == step_trace_id("run", "0-a", 7)
    assert spans.root.region == STEP
    assert sampled.parents() == {
        STEP: None,
        "training_forward": STEP,
        "dmd2_critic_loss": "training_forward",
        "dmd2_student_rollout": "training_forward",
    }
    assert all(0 < entry.start_ns <= entry.end_ns for entry in spans.entries)


def test_an_unsampled_step_leaves_its_duration_only(unsampled: Telemetry) -> None:
    """No spans, no trace id for exemplars, the same numbers otherwise."""
    take_step(3)
    (finished,) = unsampled.finished
    assert unsampled.spans == []
    assert (finished.step, finished.sampled_trace_id) == (3, None)
    assert 0 < finished.children_ns < finished.duration_ns


def test_the_sample_follows_from_the_ids_alone() -> None:
    """At a ratio of a half, the steps in the sample are those whose ids say so."""
    telemetry = Telemetry(0.5)
    for step in range(1, 101):
        take_step(step)
    telemetry.clock.stop()
    chosen = [spans.step for spans in telemetry.spans]
    low = (1 << 64) - 1
    expected = [s for s in range(1, 101) if step_trace_id("run", "0-a", s) & low < 1 << 63]
    assert chosen == expected
    assert 30 < len(chosen) < 70
    assert [f.step for f in telemetry.finished if f.sampled_trace_id] == chosen


def test_an_exception_is_named_by_type(sampled: Telemetry) -> None:
    """The regions it leaves carry its type, and it reaches the caller."""
    with (
        pytest.raises(KeyError),
        profiler_region(STEP, step=1),
        profiler_region("training_forward"),
    ):
        raise KeyError
    assert sampled.finished[0].error is KeyError
    assert {entry.error for entry in sampled.spans[0].entries} == {KeyError}
    assert current_trace() == (None, None)


def test_the_next_step_works_after_an_exception(sampled: Telemetry) -> None:
    """Nothing of a failed step is left in the next one."""
    with pytest.raises(RuntimeError), profiler_region(STEP, step=1):
        raise RuntimeError
    take_step(2)
    assert [spans.step for spans in sampled.spans] == [1, 2]
    assert len(sampled.spans[1].entries) == 4


def test_a_step_inside_of_a_step_is_a_region_like_any_other(sampled: Telemetry) -> None:
    """One trace is open at a time."""
    with profiler_region(STEP, step=1), profiler_region(STEP, step=2):
        pass
    assert [spans.step for spans in sampled.spans] == [1]
    assert [e.region for e in sampled.spans[0].entries] == [STEP, STEP]


def test_steps_without_a_number_are_counted(unsampled: Telemetry) -> None:
    """A loop that gives no step attribute still has steps."""
    now.step = None
    for _ in range(3):
        with profiler_region(STEP):
            pass
    assert [finished.step for finished in unsampled.finished] == [1, 2, 3]


def test_validation_between_steps_is_a_trace_of_its_own(sampled: Telemetry) -> None:
    """An event has another trace id than the step it follows."""
    take_step(5)
    with profiler_region("training_validation"):
        pass
    step, event = sampled.spans
    assert event.root.region == "training_validation"
    assert event.trace_id != step.trace_id
    assert sampled.finished[1].region == "training_validation"


def test_regions_on_other_threads_belong_to_the_step(sampled: Telemetry) -> None:
    """They have no parent of their own, and threads that never join do no harm."""
    with profiler_region(STEP, step=1):

        def load() -> None:
            with profiler_region("training_dataloader"):
                pass

        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    assert sampled.parents()["training_dataloader"] is None


def test_a_region_left_on_another_thread_is_quiet(
    sampled: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """No noise about contexts, and the entry is there."""
    with profiler_region(STEP, step=1):
        region = profiler_region("training_forward")
        region.__enter__()
        thread = threading.Thread(target=region.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
    assert caplog.records == []
    assert "training_forward" in sampled.parents()


def test_a_segment_is_named_on_the_entry_that_recorded_it(sampled: Telemetry) -> None:
    """What a sink calls its segment file reaches the entry, of a step as of any region."""

    class Token:
        def __init__(self, name: str) -> None:
            self.segment_file = name

    class Recorder(RecordingSink):
        def enter(
            self, region: profiler.ProfilerRegion, annotation: str, attributes: dict[str, object]
        ) -> object:
            return Token(f"trace_{region.short_name}.json.gz")

    recorder = Recorder()
    profiler.attach(recorder)
    take_step()
    profiler.detach(recorder)
    segments = {entry.region: entry.segment for entry in sampled.spans[0].entries}
    assert segments[STEP] == f"trace_{STEP}.json.gz"
    assert segments["training_forward"] == "trace_training_forward.json.gz"


def test_random_numbers_of_the_program_are_not_touched(sampled: Telemetry) -> None:
    """Drawing span ids does not move Python's global generator."""
    random.seed(5)
    expected = random.random()
    random.seed(5)
    take_step()
    assert all(entry.span_id for entry in sampled.spans[0].entries)
    assert random.random() == expected


def test_events_at_one_step_are_different_traces(sampled: Telemetry) -> None:
    """Two validations after the same step have two ids, and their own regions."""
    take_step(5)
    for _ in range(2):
        with profiler_region("training_validation"), profiler_region("inference_denoising"):
            pass
    first, second = sampled.spans[1:]
    assert first.trace_id != second.trace_id
    assert (first.step, first.root_name) == (5, "training_validation")
    assert [entry.region for entry in second.entries] == [
        "inference_denoising",
        "training_validation",
    ]


def test_a_region_that_outlives_its_step_is_counted(sampled: Telemetry) -> None:
    """Its duration is counted with the next step, and that it has no span is said."""
    with profiler_region(STEP, step=1):
        region = profiler_region("training_dataloader")
        region.__enter__()
    region.__exit__(None, None, None)
    take_step(2)
    assert sampled.clock.snapshot()["training_dataloader"][0] == 1
    assert sampled.counted == [("dropped", "late", 1)]


@pytest.mark.parametrize("given", [np.int64(500), 500])
def test_whole_numbers_of_any_kind_are_steps(given: object, unsampled: Telemetry) -> None:
    """Numbers of numpy count, too."""
    with profiler_region(STEP, step=given):
        pass
    assert unsampled.finished[0].step == 500


@pytest.mark.parametrize("given", [True, 10**30, -1, "7", torch.tensor(3), None])
def test_what_is_no_step_is_counted_on(given: object, unsampled: Telemetry) -> None:
    """A value that OTLP could not carry, or that would have to be read from a device, is none."""
    now.step = 8
    with profiler_region(STEP, step=given):
        pass
    assert unsampled.finished[0].step == 9


def test_a_request_is_a_trace_of_its_own(sampled: Telemetry) -> None:
    """Without a caller it has no parent, and its steps are its children."""
    for _ in range(2):
        with profiler_region(REQUEST), profiler_region("inference_denoising_step"):
            pass
    first, second = sampled.spans
    assert first.trace_id != second.trace_id
    assert (first.request_parent, second.request_parent) == (0, 0)
    assert sampled.parents()["inference_denoising_step"] == REQUEST
    assert [root.region for root in sampled.finished] == [REQUEST, REQUEST]


@pytest.mark.parametrize("flags", [0, 1])
def test_a_request_belongs_to_the_trace_of_its_caller(sampled: Telemetry, flags: int) -> None:
    """The program's own span is the parent, and its sampled flag counts."""
    caller = trace.SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=trace.TraceFlags(flags))
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(caller)))
    try:
        with profiler_region(REQUEST):
            inside = trace.get_current_span().get_span_context()
            assert inside.trace_id == 0xABC
    finally:
        context.detach(token)
    assert [(spans.trace_id, spans.request_parent) for spans in sampled.spans] == (
        [(0xABC, 0xDEF)] if flags else []
    )


def test_a_request_belongs_to_the_trace_that_started_the_process() -> None:
    """Without a span of the program, TRACEPARENT names the parent; its flag beats the ratio."""
    telemetry = Telemetry(0.0)
    identity = RunIdentity("run", "0-a", "n", 0, 1, 0, "host", "id", 0.0, (0x123, 0x456, True))
    telemetry.traces._identity = identity
    try:
        with profiler_region(REQUEST):
            pass
        take_step()
    finally:
        telemetry.clock.stop()
    (spans,) = telemetry.spans
    assert (spans.trace_id, spans.request_parent) == (0x123, 0x456)
