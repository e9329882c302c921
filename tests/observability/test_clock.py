"""The clock of all regions: counts and durations, and the timers that are used again."""

from __future__ import annotations

import tracemalloc

import pytest
from root_traces import STEP, Telemetry, take_step

from fastvideo import profiler
from fastvideo.profiler import RecordingSink, profiler_region


def test_every_region_is_timed_from_the_start(unsampled: Telemetry) -> None:
    """Every registered region has a count and a duration, zero before it is entered."""
    before = unsampled.clock.snapshot()
    take_step()
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
    take_step()
    assert sampled.clock.snapshot()["training_forward"][0] == 2


def test_a_second_clock_takes_over_and_the_first_cannot_stop_it() -> None:
    """Stopping a clock that was replaced changes nothing."""
    first, second = Telemetry(0.0), Telemetry(0.0)
    first.clock.stop()
    take_step()
    second.clock.stop()
    take_step()
    assert (len(first.finished), len(second.finished)) == (0, 1)


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
