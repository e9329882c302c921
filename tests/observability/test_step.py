"""The clock of all regions, and the traces of steps: what an entry leaves behind."""

from __future__ import annotations

import asyncio
import random
import threading
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fastvideo import profiler
from fastvideo.observability.clock import TelemetryClock
from fastvideo.observability.current import current_step, current_trace, now
from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.step import RootTraces
from fastvideo.observability.tracing.ids import step_trace_id
from fastvideo.profiler import RecordingSink, profiler_region

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastvideo.observability.entries import SampledEntry
    from fastvideo.observability.step import FinishedRoot
    from fastvideo.observability.tracing.records import StepSpans

STEP = "training_train_one_step"


class Telemetry:
    """A clock whose traces end in lists."""

    def __init__(self, ratio: float, *, spans: bool = True, max_entries: int = 1000) -> None:
        self.clock = TelemetryClock()
        self.finished: list[FinishedRoot] = []
        self.spans: list[StepSpans] = []
        self.counted: list[tuple[str, str, int]] = []
        identity = RunIdentity("run", "0-a", "name", 0, 1, 0, "host", "id", ratio, None)
        self.traces = RootTraces(
            self.clock,
            identity,
            finished=self.finished.append,
            submit=self.spans.append if spans else None,
            count=lambda *what: self.counted.append(what),
            max_entries=max_entries,
        )
        self.traces.prepare()
        self.clock.start()

    def parents(self) -> dict[str, str | None]:
        """The parent's name of every entry of the last trace."""
        last = self.spans[-1]
        return {e.region: e.parent.region if e.parent else None for e in last.entries}


@pytest.fixture
def sampled() -> Iterator[Telemetry]:
    """Gives telemetry that samples every step."""
    telemetry = Telemetry(1.0)
    yield telemetry
    telemetry.clock.stop()


@pytest.fixture
def unsampled() -> Iterator[Telemetry]:
    """Gives telemetry that samples no step."""
    telemetry = Telemetry(0.0)
    yield telemetry
    telemetry.clock.stop()


def _step(number: int = 1, **attributes: object) -> None:
    with profiler_region(STEP, step=number, **attributes), profiler_region("training_forward"):
        with profiler_region("dmd2_critic_loss"):
            pass
        with profiler_region("dmd2_student_rollout"):
            pass


def test_every_region_is_timed_from_the_start(unsampled: Telemetry) -> None:
    """Every registered region has a count and a duration, zero before it is entered."""
    before = unsampled.clock.snapshot()
    _step()
    after = unsampled.clock.snapshot()
    assert set(before) == {region.short_name for region in profiler.list_profiler_regions()}
    assert set(before.values()) == {(0, 0.0)}
    assert {name: count for name, (count, _) in after.items() if count} == {
        STEP: 1,
        "training_forward": 1,
        "dmd2_critic_loss": 1,
        "dmd2_student_rollout": 1,
    }
    assert 0 < after["training_forward"][1] < after[STEP][1]


def test_sampled_and_unsampled_steps_add_up_to_one_duration(sampled: Telemetry) -> None:
    """What is entered inside and outside of sampled traces is counted together."""
    with profiler_region("training_forward"):
        pass
    _step()
    assert sampled.clock.snapshot()["training_forward"][0] == 2


def test_a_sampled_step_leaves_a_span_for_every_region(sampled: Telemetry) -> None:
    """The entries of a step name their parents; the step's own entry is the root."""
    _step(7, step_kind="critic")
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
    _step(3)
    (finished,) = unsampled.finished
    assert unsampled.spans == []
    assert (finished.step, finished.sampled_trace_id) == (3, None)
    assert 0 < finished.children_ns < finished.duration_ns


def test_the_sample_follows_from_the_ids_alone() -> None:
    """At a ratio of a half, the steps in the sample are those whose ids say so."""
    telemetry = Telemetry(0.5)
    for step in range(1, 101):
        _step(step)
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
    _step(2)
    assert [spans.step for spans in sampled.spans] == [1, 2]
    assert len(sampled.spans[1].entries) == 4


def test_step_and_trace_can_be_asked_for_anywhere(sampled: Telemetry) -> None:
    """Logs learn the step, and inside of a sampled region its trace and span."""
    with profiler_region(STEP, step=12), profiler_region("training_forward"):
        trace_id, span_id = current_trace()
        assert current_step() == 12
    entry = next(e for e in sampled.spans[0].entries if e.region == "training_forward")
    assert trace_id == f"{step_trace_id('run', '0-a', 12):032x}"
    assert span_id == f"{entry.span_id:016x}"
    assert current_trace() == (None, None)
    assert current_step() == 12


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
    _step(5)
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


def test_interleaved_tasks_have_the_right_parents(sampled: Telemetry) -> None:
    """Each asyncio task sees its own nesting."""

    async def work(outer: str, inner: str) -> None:
        with profiler_region(outer):
            await asyncio.sleep(0)
            with profiler_region(inner):
                await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(
            work("inference_denoising", "distillation_student_forward"),
            work("inference_decoding", "distillation_teacher_forward"),
        )

    with profiler_region(STEP, step=1):
        asyncio.run(both())
    parents = sampled.parents()
    assert parents["distillation_student_forward"] == "inference_denoising"
    assert parents["distillation_teacher_forward"] == "inference_decoding"


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
    _step()
    profiler.detach(recorder)
    segments = {entry.region: entry.segment for entry in sampled.spans[0].entries}
    assert segments[STEP] == f"trace_{STEP}.json.gz"
    assert segments["training_forward"] == "trace_training_forward.json.gz"


def test_random_numbers_of_the_program_are_not_touched(sampled: Telemetry) -> None:
    """Drawing span ids does not move Python's global generator."""
    random.seed(5)
    expected = random.random()
    random.seed(5)
    _step()
    assert all(entry.span_id for entry in sampled.spans[0].entries)
    assert random.random() == expected


class Spans:
    """A host program's own OpenTelemetry."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def parent_of(self, name: str) -> tuple[int, int] | None:
        """Trace and span id of the parent of the span called ``name``."""
        (span,) = [s for s in self.exporter.get_finished_spans() if s.name == name]
        return (span.parent.trace_id, span.parent.span_id) if span.parent else None


@pytest.fixture
def mine() -> Iterator[Spans]:
    """Gives the spans of a host program."""
    spans = Spans()
    yield spans
    spans.provider.shutdown()


def _entry(telemetry: Telemetry, region: str) -> SampledEntry:
    (entry,) = [e for e in telemetry.spans[-1].entries if e.region == region]
    return entry  # type: ignore[return-value]


def test_a_span_of_the_program_gets_the_region_as_its_parent(
    sampled: Telemetry, mine: Spans
) -> None:
    """Code that calls the OpenTelemetry API inside a region continues the step's trace."""
    with profiler_region(STEP, step=1):
        with mine.tracer.start_as_current_span("in the step"):
            pass
        with profiler_region("training_forward"), mine.tracer.start_as_current_span("in forward"):
            pass
    trace_id = step_trace_id("run", "0-a", 1)
    assert mine.parent_of("in the step") == (trace_id, sampled.spans[0].root.span_id)
    assert mine.parent_of("in forward") == (trace_id, _entry(sampled, "training_forward").span_id)


def test_a_region_inside_a_span_of_the_program_is_its_child(
    sampled: Telemetry, mine: Spans
) -> None:
    """Region, own span, region, own span: each is the child of the one around it."""
    with (
        profiler_region(STEP, step=1),
        mine.tracer.start_as_current_span("around") as around,
        profiler_region("training_forward"),
        mine.tracer.start_as_current_span("inside"),
    ):
        pass
    forward = _entry(sampled, "training_forward")
    assert forward.foreign_parent is not None
    assert forward.foreign_parent.span_id == around.get_span_context().span_id
    assert mine.parent_of("inside") == (forward.foreign_parent.trace_id, forward.span_id)
    assert _entry(sampled, STEP).foreign_parent is None


def test_baggage_does_not_hide_the_region(sampled: Telemetry, mine: Spans) -> None:
    """A context that only adds baggage still has the region as its span."""
    with profiler_region(STEP, step=1), profiler_region("training_forward"):
        token = context.attach(baggage.set_baggage("tenant", "a"))
        with profiler_region("dmd2_critic_loss"), mine.tracer.start_as_current_span("inside"):
            pass
        context.detach(token)
    assert _entry(sampled, "dmd2_critic_loss").foreign_parent is None
    assert mine.parent_of("inside") == (
        step_trace_id("run", "0-a", 1),
        _entry(sampled, "dmd2_critic_loss").span_id,
    )


def test_spans_of_the_program_in_other_threads_get_their_region(
    sampled: Telemetry, mine: Spans
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
        _entry(sampled, "training_dataloader").span_id,
    )


def test_a_task_of_an_earlier_step_has_the_regions_of_this_one(sampled: Telemetry) -> None:
    """What a long-lived task does inside a region belongs to the step that is open then."""

    async def serve(requests: asyncio.Queue[asyncio.Future[int]]) -> None:
        while True:
            answer = await requests.get()
            with profiler_region("dmd2_critic_loss"):
                answer.set_result(trace.get_current_span().get_span_context().trace_id)

    async def steps() -> list[int]:
        requests: asyncio.Queue[asyncio.Future[int]] = asyncio.Queue()
        answers = []
        task = None
        for number in (1, 2):
            with profiler_region(STEP, step=number), profiler_region("training_forward"):
                task = task or asyncio.create_task(serve(requests))
                answer = asyncio.get_running_loop().create_future()
                requests.put_nowait(answer)
                answers.append(await answer)
        assert task is not None
        task.cancel()
        return answers

    assert asyncio.run(steps()) == [step_trace_id("run", "0-a", number) for number in (1, 2)]
    assert [len(spans.entries) for spans in sampled.spans] == [3, 3]


def test_a_generator_of_an_earlier_step_does_not_become_a_parent(
    sampled: Telemetry, mine: Spans
) -> None:
    """Closed in a later step, it leaves that step's root as what is innermost."""

    def batches() -> Iterator[int]:
        with profiler_region("training_dataloader"):
            yield 1

    kept = batches()
    with profiler_region(STEP, step=1), profiler_region("training_forward"):
        next(kept)
    with profiler_region(STEP, step=2):
        kept.close()  # type: ignore[attr-defined]
        logged = current_trace()[1]
        with mine.tracer.start_as_current_span("mine"):
            pass
    root = sampled.spans[1].root.span_id
    assert logged == f"{root:016x}"
    assert mine.parent_of("mine") == (step_trace_id("run", "0-a", 2), root)


def test_in_an_unsampled_step_spans_of_the_program_are_not_sampled(
    unsampled: Telemetry, mine: Spans
) -> None:
    """The usual parent-based sampler leaves them out with the step."""
    with profiler_region(STEP, step=1), mine.tracer.start_as_current_span("left out"):
        pass
    with mine.tracer.start_as_current_span("after"):
        pass
    assert [span.name for span in mine.exporter.get_finished_spans()] == ["after"]
    assert mine.parent_of("after") is None


def test_after_a_step_the_context_is_as_before(sampled: Telemetry) -> None:
    """A span that was current before the step is current after it."""
    outer = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    token = context.attach(trace.set_span_in_context(outer))
    _step()
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


def test_a_second_clock_takes_over_and_the_first_cannot_stop_it() -> None:
    """Stopping a clock that was replaced changes nothing."""
    first, second = Telemetry(0.0), Telemetry(0.0)
    first.clock.stop()
    _step()
    second.clock.stop()
    _step()
    assert (len(first.finished), len(second.finished)) == (0, 1)


def test_events_at_one_step_are_different_traces(sampled: Telemetry) -> None:
    """Two validations after the same step have two ids, and their own regions."""
    _step(5)
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
    _step(2)
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


def test_entries_past_the_limit_of_a_step_are_timed_and_counted() -> None:
    """Only so many leave spans; durations hold all of them, and the trace says what is missing."""
    telemetry = Telemetry(1.0, max_entries=100)
    for step in (1, 2):
        with profiler_region(STEP, step=step):
            for _ in range(150):
                with profiler_region("training_forward"), profiler_region("dmd2_critic_loss"):
                    pass
    _step(3)
    telemetry.clock.stop()
    assert [len(spans.entries) for spans in telemetry.spans] == [101, 101, 4]
    assert [spans.omitted for spans in telemetry.spans] == [200, 200, 0]
    assert telemetry.counted == [("dropped", "step_limit", 200)] * 2
    snapshot = telemetry.clock.snapshot()
    assert snapshot["training_forward"][0] == 301
    assert snapshot["dmd2_critic_loss"][0] == 301
    assert 0 < snapshot["dmd2_critic_loss"][1] < snapshot["training_forward"][1]
    assert 0 < telemetry.finished[0].children_ns < telemetry.finished[0].duration_ns


def test_past_the_limit_regions_of_all_threads_are_counted_once() -> None:
    """Threads that share the last entries lose no duration, and the limit is not passed."""
    telemetry = Telemetry(1.0, max_entries=500)
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for _ in range(500):
            with profiler_region("training_forward"):
                pass

    with profiler_region(STEP, step=1):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    telemetry.clock.stop()
    (spans,) = telemetry.spans
    assert (len(spans.entries), spans.omitted) == (501, 3500)
    assert telemetry.clock.snapshot()["training_forward"][0] == 4000


def test_validation_inside_of_a_step_counts_for_its_limit() -> None:
    """A root inside of another one is a region like any other, past the limit as well."""
    telemetry = Telemetry(1.0, max_entries=3)
    with profiler_region(STEP, step=1):
        for _ in range(5):
            with profiler_region("training_validation"):
                pass
    telemetry.clock.stop()
    assert (len(telemetry.spans[0].entries), telemetry.spans[0].omitted) == (4, 2)
    assert telemetry.clock.snapshot()["training_validation"][0] == 5


def test_spans_of_the_program_past_the_limit_have_a_parent_that_is_sent(mine: Spans) -> None:
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
    forward = _entry(telemetry, "training_forward")
    assert mine.parent_of("inside") == (telemetry.spans[0].trace_id, forward.span_id)


def test_the_memory_of_a_step_is_bounded() -> None:
    """Regions past the limit take no memory, with attributes or without."""
    telemetry = Telemetry(1.0, max_entries=100)
    with profiler_region(STEP, step=1):
        for number in range(200):
            with profiler_region("training_forward", number=number):
                pass
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(20_000):
            with profiler_region("training_forward", number=number):
                pass
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    telemetry.clock.stop()
    assert after - before < 10_000


@pytest.mark.parametrize("region", ["training_forward", "training_train_one_step"])
def test_regions_that_are_never_entered_take_no_memory(region: str, unsampled: Telemetry) -> None:
    """Their timers are used again, and what those have counted stays."""
    for number in range(500):
        with profiler_region(region, step=number):
            pass
        profiler_region(region)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(5000):
        profiler_region(region)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 20_000
    assert unsampled.clock.snapshot()[region][0] == 500


def test_a_timer_that_is_in_use_is_not_taken_for_forgotten(unsampled: Telemetry) -> None:
    """Regions that are open, or kept to be entered later, keep their timers to themselves."""
    kept = [profiler_region("training_forward") for _ in range(40)]

    def descend(depth: int) -> None:
        with profiler_region("training_forward"):
            profiler_region("training_forward")
            if depth:
                descend(depth - 1)

    descend(100)
    assert len(set(map(id, kept))) == 40
    for region in kept:
        with region:
            descend(10)
    timers = unsampled.clock.snapshot()["training_forward"]
    assert timers[0] == 101 + 40 * 12


def test_regions_that_sinks_hear_use_their_timers_again(unsampled: Telemetry) -> None:
    """A kernel trace of many regions takes no timer for each of them."""
    sink = RecordingSink()
    sink.wants = lambda region: region.short_name == "training_forward"  # type: ignore[method-assign]
    sink.enter = sink.exit = lambda *_: None  # type: ignore[assignment, method-assign]
    profiler.attach(sink)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(5000):
        with profiler_region("training_forward"):
            pass
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    profiler.detach(sink)
    assert after - before < 20_000
    assert unsampled.clock.snapshot()["training_forward"][0] == 5000


REQUEST = "inference_request"


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
        _step()
    finally:
        telemetry.clock.stop()
    (spans,) = telemetry.spans
    assert (spans.trace_id, spans.request_parent) == (0x123, 0x456)
