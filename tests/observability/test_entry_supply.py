"""The limit of entries that leave spans: what is past it is timed, counted and free."""

from __future__ import annotations

import threading
import tracemalloc

from root_traces import STEP, Telemetry, take_step

from fastvideo.profiler import profiler_region


def test_entries_past_the_limit_of_a_step_are_timed_and_counted() -> None:
    """Only so many leave spans; durations hold all of them, and the trace says what is missing."""
    telemetry = Telemetry(1.0, max_entries=100)
    for step in (1, 2):
        with profiler_region(STEP, step=step):
            for _ in range(150):
                with profiler_region("training_forward"), profiler_region("dmd2_critic_loss"):
                    pass
    take_step(3)
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
