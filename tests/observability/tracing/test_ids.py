"""Ids of traces and spans."""

from __future__ import annotations

import random

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from fastvideo.observability.tracing.ids import (
    draw_span_id,
    event_trace_id,
    is_sampled,
    step_root_span_id,
    step_trace_id,
)


def test_step_trace_ids_are_stable() -> None:
    """Ids never change between versions, or ranks of a rolling restart would disagree."""
    assert f"{step_trace_id('run', '0', 7):032x}" == "7d258215d52c787d4fb9c453e00305c3"
    assert f"{step_root_span_id(1):016x}" == "f74d4cb26cd09916"


def test_every_part_counts() -> None:
    """Another run, attempt, step or event gives another trace, even where texts join alike."""
    ids = {
        step_trace_id("run", "1", 23),
        step_trace_id("run", "12", 3),
        step_trace_id("run1", "", 23),
        step_trace_id("other", "1", 23),
        event_trace_id("run", "1", "23"),
        event_trace_id("run", "1", "run_start"),
        event_trace_id("run", "1", "training_validation", 1),
        event_trace_id("run", "1", "training_validation", 2),
    }
    assert len(ids) == 8


@pytest.mark.parametrize("ratio", [0.0, 0.001, 0.1, 0.5, 0.999, 1.0])
def test_sampling_decides_like_the_sdk(ratio: float) -> None:
    """The decision for a trace is the one that OpenTelemetry's ratio sampler takes."""
    theirs = TraceIdRatioBased(ratio)
    for step in range(500):
        trace_id = step_trace_id("run", "0", step)
        decision = theirs.should_sample(None, trace_id, "x").decision
        assert is_sampled(trace_id, ratio) == (decision is Decision.RECORD_AND_SAMPLE)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5])
def test_steps_are_sampled_evenly(ratio: float) -> None:
    """Consecutive steps are sampled at the ratio, and not all or nothing."""
    sampled = sum(is_sampled(step_trace_id("run", "0", step), ratio) for step in range(20_000))
    assert sampled / 20_000 == pytest.approx(ratio, rel=0.15)


def test_drawn_ids_leave_the_seed_alone() -> None:
    """Drawing ids neither follows a seed of the program nor moves its random numbers."""
    random.seed(1)
    first = [draw_span_id() for _ in range(4)]
    after = random.random()
    random.seed(1)
    second = [draw_span_id() for _ in range(4)]
    random.seed(1)
    assert after == random.random()
    assert not set(first) & set(second)
    assert all(0 < drawn < 1 << 64 for drawn in first)
