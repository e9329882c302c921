"""The size of a step's trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.tracing import wire
from fastvideo.observability.tracing.budget import TraceBudget
from fastvideo.observability.tracing.builder import StepBuilder
from fastvideo.observability.tracing.settings import SpanLimits

if TYPE_CHECKING:
    from types import ModuleType

    from fastvideo.observability.tracing.records import SpanRecord

OVERHEAD = 450


def _choose(
    steps: ModuleType, *, rank: int, children: int, max_bytes: int = 4_000_000, **place: Any
) -> tuple[int, list[SpanRecord], int]:
    """Returns the bytes of a rank's step as it is sent, its spans, and how many there were."""
    builder = StepBuilder(rank, (1, 2), SpanLimits())
    records, drawn = builder.build(steps.make_step(3, children=children), lambda _: None)
    for index, record in enumerate(records):
        record.end_unix_ns = record.start_unix_ns + 1000 * index + (10**9 if index == 0 else 0)
    sizes = [len(wire.encode_span(record)) for record in records]
    budget = TraceBudget(
        max_bytes=max_bytes, rank=rank, overhead=OVERHEAD, **{"local_rank": rank % 8, **place}
    )
    kept = [records[i] for i in budget.choose(records, sizes, drawn)]
    size = sum(len(wire.encode_span(record)) for record in kept)
    return size + OVERHEAD if kept else 0, kept, len(records)


@pytest.mark.parametrize("children", [0, 5, 30, 400])
@pytest.mark.parametrize("world_size", [1, 2, 64, 1024, 4096, 20_000])
def test_a_trace_is_never_too_large(steps: ModuleType, world_size: int, children: int) -> None:
    """Whatever the number of ranks and regions, all ranks together stay below the budget."""
    place = {"world_size": world_size, "local_world_size": 8}
    first, _, _ = _choose(steps, rank=0, children=children, **place)
    node, _, _ = _choose(steps, rank=8, children=children, **place)
    others = [_choose(steps, rank=r, children=children, **place)[0] for r in range(1, 50) if r % 8]
    nodes = -(-world_size // 8)
    mean = sum(others) / len(others)
    assert first + (nodes - 1) * node + (world_size - nodes) * mean <= 4_000_000


def test_small_traces_are_whole(steps: ModuleType) -> None:
    """As long as everything fits, nothing is left out and nothing is said about it."""
    _, kept, total = _choose(steps, rank=3, children=30, world_size=512, local_world_size=8)
    assert len(kept) == total
    assert "fastvideo.spans_omitted" not in kept[0].attributes


def test_one_rank_per_node_stays_whole(steps: ModuleType) -> None:
    """Past the budget, rank 0 and each node's first rank send everything they have."""
    place = {"world_size": 1024, "local_world_size": 8, "max_bytes": 3_000_000}
    for rank in (0, 8, 1016):
        _, kept, total = _choose(steps, rank=rank, children=30, **place)
        assert len(kept) == total


def test_the_others_send_the_longest_and_say_so(steps: ModuleType) -> None:
    """Past the budget, the others send the step's span and the longest below it."""
    place = {"world_size": 1024, "local_world_size": 8, "max_bytes": 3_000_000}
    _, kept, total = _choose(steps, rank=9, children=30, **place)
    assert 1 < len(kept) < total
    assert kept[0].name == "training_train_one_step"
    assert kept[0].attributes["fastvideo.spans_omitted"] == total - len(kept)
    durations = [record.end_unix_ns - record.start_unix_ns for record in kept[1:]]
    assert min(durations) == 1000 * (total - len(kept) + 1)


def test_parents_come_along(steps: ModuleType) -> None:
    """No span is kept without the spans it hangs on, even where these are shorter."""
    spans = steps.make_step(1, children=40)
    deep = steps.Entry("dmd2_critic_loss", 1, 10**12, parent=spans.entries[3])
    spans.entries.append(deep)
    records, drawn = StepBuilder(9, (1, 2), SpanLimits()).build(spans, lambda _: None)
    sizes = [len(wire.encode_span(record)) for record in records]
    budget = TraceBudget(
        max_bytes=2_000_000, world_size=1024, rank=9, local_rank=1, local_world_size=8, overhead=450
    )
    kept = [records[i] for i in budget.choose(records, sizes, drawn)]
    ids = {record.span_id for record in kept}
    assert deep.span_id in ids
    assert all(record.parent_span_id in ids for record in kept[1:])
    assert len(kept) < len(records)


def test_spans_that_others_hang_on_come_first(steps: ModuleType) -> None:
    """A span whose id the program has seen is kept before longer ones."""
    spans = steps.make_step(1, children=40)
    spans.entries[17].span_id = 99
    spans.entries[17].end_ns = spans.entries[17].start_ns + 1
    records, drawn = StepBuilder(9, (1, 2), SpanLimits()).build(spans, lambda _: None)
    sizes = [len(wire.encode_span(record)) for record in records]
    budget = TraceBudget(
        max_bytes=2_000_000, world_size=1024, rank=9, local_rank=1, local_world_size=8, overhead=450
    )
    assert 99 in {records[i].span_id for i in budget.choose(records, sizes, drawn)}


def test_without_a_known_node_size_only_rank_0_is_whole(steps: ModuleType) -> None:
    """Where it is not known how many ranks a node has, no rank but 0 takes itself for the first."""
    place = {"world_size": 1024, "local_world_size": 0, "max_bytes": 3_000_000}
    _, kept, total = _choose(steps, rank=0, children=30, **place)
    assert len(kept) == total
    _, kept, total = _choose(steps, rank=8, children=30, **place)
    assert len(kept) < total


def test_what_was_missing_before_is_added(steps: ModuleType) -> None:
    """Entries that the step had no room for count with the spans that are left out here."""
    spans = steps.make_step(3, children=300, omitted=7)
    records, drawn = StepBuilder(9, (1, 2), SpanLimits()).build(spans, lambda _: None)
    sizes = [len(wire.encode_span(record)) for record in records]
    budget = TraceBudget(4_000_000, 1024, 9, 1, 8, 500)
    kept = budget.choose(records, sizes, drawn)
    missing = len(records) - len(kept)
    assert records[0].attributes["fastvideo.spans_omitted"] == missing + 7 > 7
