"""Spans of one step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import SpanContext, TraceFlags

from fastvideo.observability.tracing.builder import StepBuilder
from fastvideo.observability.tracing.ids import step_root_span_id
from fastvideo.observability.tracing.settings import SpanLimits

if TYPE_CHECKING:
    from types import ModuleType

    from fastvideo.observability.tracing.records import SpanRecord, StepSpans

RUN_START = (11, 12)


def _build(spans: StepSpans, *, rank: int = 0) -> list[SpanRecord]:
    records, _ = StepBuilder(rank, RUN_START, SpanLimits()).build(spans, lambda _: None)
    return records


def _parents(records: list[SpanRecord]) -> dict[str, str | None]:
    names = {record.span_id: record.name for record in records}
    return {record.name: names.get(record.parent_span_id) for record in records}


def test_rank_0_sends_the_root(steps: ModuleType) -> None:
    """Rank 0's step has one root with the derived id, which links to the start of the run."""
    spans = steps.make_step(7, step_kind="generator")
    records = _build(spans)
    (root,) = [record for record in records if not record.parent_span_id]
    assert (root.name, root.span_id) == ("training_step", step_root_span_id(spans.trace_id))
    assert root.links == (RUN_START,)
    assert root.attributes == {"fastvideo.step": 7, "fastvideo.step_kind": "generator"}
    assert _parents(records) == {
        "training_step": None,
        "training_train_one_step": "training_step",
        "training_forward": "training_train_one_step",
    }
    assert {record.trace_id for record in records} == {spans.trace_id}
    assert len({record.span_id for record in records}) == len(records)


def test_other_ranks_are_below_the_root_of_rank_0(steps: ModuleType) -> None:
    """Other ranks send no root; their step's parent is the span that rank 0 sends."""
    spans = steps.make_step(7)
    records = _build(spans, rank=5)
    assert all(record.parent_span_id for record in records)
    assert records[0].parent_span_id == step_root_span_id(spans.trace_id)
    assert [record.remote_parent for record in records] == [True, False, False, False]


def test_the_kind_of_a_step_is_no_longer_than_other_texts(steps: ModuleType) -> None:
    """The limit for texts holds on the step and on the root."""
    step, root, *_ = _build(steps.make_step(7, step_kind="k" * 10_000))
    for record in (step, root):
        assert record.attributes["fastvideo.step_kind"] == "k" * 4096


def test_attributes_of_a_region(steps: ModuleType) -> None:
    """A span carries the step, what the call site said, device time and segment."""
    spans = steps.make_step(7, children=1)
    entry = spans.entries[0]
    entry.attributes = {"microbatch": 2, "step": 99, "nothing": None}
    entry.device_ms = 12.5
    entry.segment = "trace_rank0_segment0000_training_forward.pt.trace.json.gz"
    assert _build(spans)[2].attributes == {
        "fastvideo.microbatch": 2,
        "fastvideo.step": 7,
        "fastvideo.device_duration_ms": 12.5,
        "fastvideo.trace_segment": entry.segment,
    }


def test_errors_are_told_by_type_only(steps: ModuleType) -> None:
    """An exception marks the spans it left with its type, also the step's and the root."""
    spans = steps.make_step(1, children=1, error=ValueError)
    spans.entries[0].error = ValueError
    assert [record.error_type for record in _build(spans)] == ["ValueError"] * 3


def test_ids_that_were_drawn_stay(steps: ModuleType) -> None:
    """An id that somebody has seen before is the id of the span, and is reported as such."""
    spans = steps.make_step(1, children=2)
    spans.root.span_id = 42
    spans.entries[0].span_id = 43
    records, drawn = StepBuilder(1, RUN_START, SpanLimits()).build(spans, lambda _: None)
    assert [record.span_id for record in records[:2]] == [42, 43]
    assert records[2].span_id == spans.entries[1].span_id != 0
    assert drawn == {42, 43}


def test_the_programs_own_span_in_the_trace_is_the_parent(steps: ModuleType) -> None:
    """A region inside a span of the program's own, in this trace, hangs on that."""
    spans = steps.make_step(1, children=1)
    spans.entries[0].foreign_parent = SpanContext(
        spans.trace_id, 77, is_remote=False, trace_flags=TraceFlags(1)
    )
    record = _build(spans)[2]
    assert (record.parent_span_id, record.links) == (77, ())


def test_the_programs_own_span_in_another_trace_is_a_link(steps: ModuleType) -> None:
    """A step keeps its own trace and links to the span of another trace that is around it."""
    spans = steps.make_step(1, children=1)
    around = SpanContext(5, 6, is_remote=False, trace_flags=TraceFlags(1))
    spans.root.foreign_parent = around
    record = _build(spans)[0]
    assert record.parent_span_id == step_root_span_id(spans.trace_id)
    assert record.links == ((5, 6),)


def test_no_orphans(steps: ModuleType) -> None:
    """Regions whose parent is open, or of another step, hang on the nearest one that is sent."""
    spans = steps.make_step(1, children=0)
    around = steps.Entry("training_train", 1, 0)
    opened = steps.Entry("training_backward", 2, 0, parent=around)
    inner = steps.Entry("training_optimizer", 3, 4, parent=opened)
    innermost = steps.Entry("training_callbacks", 3, 4, parent=inner)
    spans.entries = [inner, innermost, opened]
    assert _parents(_build(spans)) == {
        "training_step": None,
        "training_train_one_step": "training_step",
        "training_optimizer": "training_train_one_step",
        "training_callbacks": "training_optimizer",
    }


def test_a_ring_of_parents_ends(steps: ModuleType) -> None:
    """Even parents that go round in a circle do not stop the worker."""
    spans = steps.make_step(1, children=0)
    a, b = steps.Entry("a", 1, 0), steps.Entry("b", 1, 0)
    a.parent, b.parent = b, a
    spans.entries = [steps.Entry("c", 1, 2, parent=a)]
    assert _parents(_build(spans))["c"] == "training_train_one_step"


def test_a_step_that_is_open_lasts_as_long_as_its_regions(steps: ModuleType) -> None:
    """A step handed over before it ended covers its finished regions."""
    spans = steps.make_step(1, children=2)
    spans.root.end_ns = 0
    step = _build(spans)[0]
    assert step.end_unix_ns - step.start_unix_ns == 100_000_000


@pytest.mark.parametrize("stepped_back_s", [0, 3600])
def test_the_clock_may_step_back(steps: ModuleType, stepped_back_s: int) -> None:
    """A wall clock that is set back between steps changes no duration and no nesting."""
    spans = steps.make_step(1, anchor_unix_ns=steps.UNIX_NS - stepped_back_s * 10**9)
    records = _build(spans)
    root = records[1]
    for record in records:
        assert root.start_unix_ns <= record.start_unix_ns <= record.end_unix_ns
        assert record.end_unix_ns <= root.end_unix_ns
    assert root.end_unix_ns - root.start_unix_ns == 100_000_000


def test_a_clock_before_1970_gives_no_negative_times(steps: ModuleType) -> None:
    """OTLP's times are unsigned, so a machine without a set clock starts at 0."""
    records = _build(steps.make_step(1, anchor_unix_ns=-(10**12)))
    assert all(record.start_unix_ns == 0 <= record.end_unix_ns for record in records)


def test_regions_of_other_threads(steps: ModuleType) -> None:
    """A region of a pool thread hangs on the step, unless it has a parent of its own."""
    spans = steps.make_step(1, children=1)
    made: list[Any] = []
    thread = threading.Thread(
        target=lambda: made.append(steps.Entry("dmd2_critic_loss", 1_000_000_001, 1_000_000_002))
    )
    thread.start()
    thread.join()
    spans.entries.extend(made)
    assert _parents(_build(spans))["dmd2_critic_loss"] == "training_train_one_step"


def test_what_is_missing_for_want_of_room_is_said(steps: ModuleType) -> None:
    """The step's span says how many entries left none."""
    records = _build(steps.make_step(children=2, omitted=990))
    said = [record.attributes.get("fastvideo.spans_omitted") for record in records]
    assert said == [990, None, None, None]


def test_attributes_of_one_region_are_not_those_of_another(steps: ModuleType) -> None:
    """What most regions share is not changed by what one has besides."""
    spans = steps.make_step(5, children=3)
    spans.entries[1].attributes = {"frames": 16}
    spans.entries[2].device_ms = 2.0
    _, _, *regions = _build(spans)
    assert [record.attributes for record in regions] == [
        {"fastvideo.step": 5},
        {"fastvideo.step": 5, "fastvideo.frames": 16},
        {"fastvideo.step": 5, "fastvideo.device_duration_ms": 2.0},
    ]


@pytest.mark.parametrize("parent", [0, 99])
def test_a_request_hangs_on_its_caller_and_has_no_other_root(
    steps: ModuleType, parent: int
) -> None:
    """Its own span is the root or the caller's child, is no step, and links to the run's start."""
    spans = steps.make_step(7)
    spans.request_parent = parent
    first, *others = _build(spans)
    assert (first.parent_span_id, first.remote_parent) == (parent, bool(parent))
    assert first.links == (RUN_START,)
    assert all(record.parent_span_id for record in others)
    assert not any("fastvideo.step" in record.attributes for record in others)
