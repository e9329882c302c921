"""What is current: step, trace and region, on threads and in tasks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from opentelemetry import trace
from root_traces import STEP

from fastvideo.observability.current import current_step, current_trace
from fastvideo.observability.tracing.ids import step_trace_id
from fastvideo.profiler import profiler_region

if TYPE_CHECKING:
    from collections.abc import Iterator

    from root_traces import HostSpans, Telemetry


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
    sampled: Telemetry, mine: HostSpans
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
