"""The pipeline as a whole, in one process."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.tracing.ids import step_root_span_id
from fastvideo.observability.tracing.inbox import Inbox
from fastvideo.observability.tracing.run_spans import run_start_record
from fastvideo.observability.tracing.settings import BatchSettings, TraceSettings
from fastvideo.observability.tracing.worker import SpanPipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json", "grpc"])
def test_spans_arrive(
    protocol: str,
    request: pytest.FixtureRequest,
    start_pipeline: Callable[..., SpanPipeline],
    steps: ModuleType,
    counts: Any,
) -> None:
    """A receiver of OpenTelemetry's own classes gets whole traces, over every protocol."""
    receiver = request.getfixturevalue("grpc_receiver" if protocol == "grpc" else "http_receiver")
    pipeline = start_pipeline(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    )
    for step in range(5):
        pipeline.submit_step(steps.make_step(step))
    assert pipeline.flush(5)
    spans = receiver.inbox.spans()
    assert len(spans) == 25
    by_id = {span.span_id: span for span in spans}
    roots = [span for span in spans if not span.parent_span_id]
    assert len(roots) == len({span.trace_id for span in spans}) == 5
    for span in spans:
        if span.parent_span_id:
            assert by_id[span.parent_span_id].trace_id == span.trace_id
    for root in roots:
        assert int.from_bytes(root.span_id) == step_root_span_id(int.from_bytes(root.trace_id))
    assert dict(counts.seen) == {("exported", "otlp"): 25}


def test_a_clock_before_1970(
    start_pipeline: Callable[..., SpanPipeline], steps: ModuleType, counts: Any, http_receiver: Any
) -> None:
    """What OTLP has no time for is 0, and costs no span."""
    pipeline = start_pipeline({"OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint})
    start = run_start_record(steps.make_identity(), start_unix_ns=-9, end_unix_ns=-7)
    pipeline.submit(start)
    pipeline.submit_step(steps.make_step(anchor_unix_ns=-50_000_000))  # ends after 1970
    assert pipeline.flush(5)
    times = {(s.start_time_unix_nano, s.end_time_unix_nano) for s in http_receiver.inbox.spans()}
    assert min(start for start, _ in times) == 0
    assert max(end for _, end in times) == 50_000_000
    assert dict(counts.seen) == {("exported", "otlp"): 6}


def test_the_resource_says_who_sends(
    start_pipeline: Callable[..., SpanPipeline], steps: ModuleType, http_receiver: Any
) -> None:
    """Run, attempt, rank and host are in the resource, beside what the user adds."""
    pipeline = start_pipeline(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint,
            "OTEL_RESOURCE_ATTRIBUTES": "team=video",
        },
        rank=3,
        local_rank=1,
        world_size=4,
    )
    pipeline.submit_step(steps.make_step(1))
    assert pipeline.flush(5)
    (resource,) = http_receiver.inbox.resource_spans()
    values = {
        pair.key: pair.value.string_value or pair.value.int_value
        for pair in resource.resource.attributes
    }
    identity = steps.make_identity(rank=3)
    assert values == {
        "service.name": "fastvideo",
        "service.instance.id": identity.service_instance_id,
        "host.name": "node-0",
        "host.id": "0123456789abcdef",
        "fastvideo.run": "tiny",
        "fastvideo.run_id": "run-1",
        "fastvideo.attempt": "0-abcd",
        "fastvideo.rank": 3,
        "fastvideo.local_rank": 1,
        "fastvideo.world_size": 4,
        "team": "video",
    }


def test_a_step_stays_in_one_request(
    start_pipeline: Callable[..., SpanPipeline], steps: ModuleType, http_receiver: Any
) -> None:
    """Spans of a step are not torn apart unless they are more than one request holds."""
    pipeline = start_pipeline(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint,
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "12",
        }
    )
    for step in range(6):
        pipeline.submit_step(steps.make_step(step))
    pipeline.submit_step(steps.make_step(6, children=23))
    assert pipeline.flush(5)
    sizes = []
    for received in http_receiver.inbox.received:
        spans = received.request.resource_spans[0].scope_spans[0].spans
        sizes.append((len(spans), len({span.trace_id for span in spans})))
    assert sizes == [(10, 2), (10, 2), (10, 2), (12, 1), (12, 1), (1, 1)]


def test_spans_are_sent_without_being_asked_for(
    start_pipeline: Callable[..., SpanPipeline], steps: ModuleType, http_receiver: Any
) -> None:
    """Spans leave after the schedule delay, and earlier when a batch is full."""
    pipeline = start_pipeline(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "150"}
    )
    pipeline.submit_step(steps.make_step(1))
    assert http_receiver.inbox.wait_for(lambda: len(http_receiver.inbox.spans()) == 5)
    patient = start_pipeline(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "600000",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
        }
    )
    for step in range(2, 4):
        patient.submit_step(steps.make_step(step))
    assert http_receiver.inbox.wait_for(lambda: len(http_receiver.inbox.spans()) == 15)


def test_the_start_of_a_run_is_sent_at_once(
    start_pipeline: Callable[..., SpanPipeline], steps: ModuleType, http_receiver: Any
) -> None:
    """``run_start`` does not wait for a batch: the process may not live that long."""
    pipeline = start_pipeline(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    )
    pipeline.submit(run_start_record(steps.make_identity(), start_unix_ns=1, end_unix_ns=2))
    assert http_receiver.inbox.wait_for(lambda: len(http_receiver.inbox.spans()) == 1)


def test_the_queue_is_bounded(steps: ModuleType, counts: Any) -> None:
    """What the worker cannot take in time is counted, whole steps at a time."""
    settings = TraceSettings.from_env(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100",
        }
    )
    pipeline = SpanPipeline(settings, steps.make_identity(), count=counts)
    pipeline._started = True  # without its threads, so that nothing is taken out
    for step in range(100):
        pipeline.submit_step(steps.make_step(step))
    assert len(pipeline._inbox) == 100
    assert dict(counts.seen) == {("dropped", "queue_full"): 400}
    pipeline.shutdown(0.1)
    assert counts.seen["dropped", "shutdown"] == 100


def test_a_step_larger_than_the_queue_arrives_whole(
    start_pipeline: Callable[..., SpanPipeline], steps: ModuleType, counts: Any, http_receiver: Any
) -> None:
    """Where the collector is there, no queue is too small for one step."""
    pipeline = start_pipeline(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint,
            "OTEL_BSP_MAX_QUEUE_SIZE": "64",
        }
    )
    pipeline.submit(run_start_record(steps.make_identity(), start_unix_ns=1, end_unix_ns=2))
    pipeline.submit_step(steps.make_step(1, children=998))
    assert pipeline.flush(5)
    assert dict(counts.seen) == {("exported", "otlp"): 1001}


def test_what_the_worker_has_taken_is_counted_once(steps: ModuleType, counts: Any) -> None:
    """A step that is being built when telemetry ends is not counted as one that waits, too."""
    settings = TraceSettings.from_env({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    pipeline = SpanPipeline(settings, steps.make_identity(), count=counts)
    pipeline._started = True  # without its threads: the test is the reader
    pipeline.submit_step(steps.make_step(1))
    pipeline.submit_step(steps.make_step(2))
    assert pipeline._inbox.take() is not None
    pipeline.shutdown(0.1)
    assert dict(counts.seen) == {("dropped", "shutdown"): 5}


def test_the_queue_may_be_emptied_while_it_is_read(steps: ModuleType) -> None:
    """A reader that is giving way between looking and taking finds nothing, and goes on."""

    class Emptied(deque[Any]):
        def __bool__(self) -> bool:
            return True

    inbox = Inbox(BatchSettings())
    inbox._queue = Emptied()
    assert inbox.take() is None


def test_what_was_left_in_a_later_step_is_late(
    start_pipeline: Callable[..., SpanPipeline], steps: ModuleType, counts: Any, http_receiver: Any
) -> None:
    """A region of an earlier step is no part of the one that is open when it is left."""
    pipeline = start_pipeline({"OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint})
    step = steps.make_step(2)
    step.entries.insert(0, steps.Entry("training_backward", 1, step.root.start_ns + 1))
    pipeline.submit_step(step)
    assert pipeline.flush(5)
    assert "training_backward" not in {span.name for span in http_receiver.inbox.spans()}
    assert dict(counts.seen) == {("exported", "otlp"): 5, ("dropped", "late"): 1}


def test_submitting_never_waits(
    start_pipeline: Callable[..., SpanPipeline], steps: ModuleType, http_receiver: Any
) -> None:
    """With a silent collector and a full queue, handing over a step stays below a millisecond."""
    http_receiver.inbox.behaviour = "silent"
    pipeline = start_pipeline(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    )
    step = steps.make_step(0, children=28)
    took = []
    for _ in range(2000):
        begin = time.perf_counter()
        pipeline.submit_step(step)
        took.append(time.perf_counter() - begin)
    assert sorted(took)[len(took) // 2] < 1e-3


def test_over_budget_the_rest_is_counted(
    start_pipeline: Callable[..., SpanPipeline],
    steps: ModuleType,
    counts: Any,
    http_receiver: Any,
) -> None:
    """Spans that a trace has no room for are counted, and the step says how many."""
    pipeline = start_pipeline(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint,
            "FASTVIDEO_TRACE_MAX_BYTES": "2000000",
            "LOCAL_WORLD_SIZE": "8",
        },
        rank=9,
        local_rank=1,
        world_size=1024,
    )
    pipeline.submit_step(steps.make_step(1, children=40))
    assert pipeline.flush(5)
    spans = http_receiver.inbox.spans()
    omitted = [
        pair.value.int_value
        for span in spans
        for pair in span.attributes
        if pair.key == "fastvideo.spans_omitted"
    ]
    assert omitted == [41 - len(spans)]
    assert counts.seen["dropped", "trace_budget"] == omitted[0] > 0
    assert http_receiver.inbox.received[0].request.ByteSize() <= 2_000_000 / 1024


def test_what_cannot_be_built_costs_one_step(
    start_pipeline: Callable[..., SpanPipeline],
    steps: ModuleType,
    counts: Any,
    http_receiver: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A step of nonsense is counted, said once, and the next one arrives."""
    pipeline = start_pipeline({"OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint})
    for step in range(3):
        broken = steps.make_step(step)
        broken.entries[0].start_ns = "password"
        pipeline.submit_step(broken)
    pipeline.submit_step(steps.make_step(9))
    assert pipeline.flush(5)
    assert dict(counts.seen) == {("dropped", "error"): 15, ("exported", "otlp"): 5}
    assert caplog.text.count("could not be built (TypeError)") == 1
    assert "password" not in caplog.text


def test_a_counter_that_raises_reaches_nobody(steps: ModuleType) -> None:
    """Even the counter may fail without the training thread noticing."""

    def count(outcome: str, reason: str, spans: int) -> None:
        message = "no"
        raise RuntimeError(message)

    settings = TraceSettings.from_env({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    pipeline = SpanPipeline(settings, steps.make_identity(), count=count)
    pipeline.submit_step(steps.make_step(1))
    pipeline.shutdown()
    pipeline.submit_step(steps.make_step(1))


def test_a_directory_that_cannot_be_written(
    start_pipeline: Callable[..., SpanPipeline],
    steps: ModuleType,
    counts: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A span directory that is a file costs its spans and one line; training goes on."""
    occupied = tmp_path / "spans"
    occupied.write_text("a file")
    pipeline = start_pipeline({"FASTVIDEO_SPAN_DIR": str(occupied)})
    for step in range(3):
        pipeline.submit_step(steps.make_step(step))
        pipeline.flush(2)
    assert dict(counts.seen) == {("dropped", "file"): 15}
    assert caplog.text.count("spans do not reach") == 1


def test_two_destinations(
    start_pipeline: Callable[..., SpanPipeline],
    steps: ModuleType,
    counts: Any,
    http_receiver: Any,
    tmp_path: Path,
) -> None:
    """A silent collector does not keep spans from the file."""
    http_receiver.inbox.behaviour = "silent"
    pipeline = start_pipeline(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "FASTVIDEO_SPAN_DIR": str(tmp_path),
        }
    )
    for step in range(4):
        pipeline.submit_step(steps.make_step(step))
        assert counts.wait_for("exported", 5 * (step + 1))
    assert counts.seen["exported", "file"] == 20


def test_disabled(steps: ModuleType, counts: Any) -> None:
    """``OTEL_SDK_DISABLED`` starts nothing and counts nothing."""
    settings = TraceSettings.from_env(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}
    )
    pipeline = SpanPipeline(settings, steps.make_identity(), count=counts)
    pipeline.start()
    pipeline.submit_step(steps.make_step(1))
    assert pipeline.flush(0.1)
    pipeline.shutdown()
    assert not counts.seen
    assert not [thread for thread in threading.enumerate() if "spans" in thread.name]


def test_spans_without_a_destination_are_counted(
    start_pipeline: Callable[..., SpanPipeline], steps: ModuleType, counts: Any
) -> None:
    """Nothing is lost without a word, also where nothing was set up."""
    pipeline = start_pipeline({})
    pipeline.submit_step(steps.make_step(1))
    assert pipeline.flush(2)
    assert dict(counts.seen) == {("dropped", "no_destination"): 5}


def test_threads_of_a_pool_submit(
    start_pipeline: Callable[..., SpanPipeline],
    steps: ModuleType,
    counts: Any,
    http_receiver: Any,
) -> None:
    """Several threads hand over steps at once, and every span is accounted for."""
    pipeline = start_pipeline(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_BSP_MAX_QUEUE_SIZE": "20000",
        }
    )

    def submit(first: int) -> None:
        for step in range(first, first + 200):
            pipeline.submit_step(steps.make_step(step))

    threads = [threading.Thread(target=submit, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pipeline.flush(10)
    assert dict(counts.seen) == {("exported", "otlp"): 4000}
    assert len({span.span_id for span in http_receiver.inbox.spans()}) == 4000
