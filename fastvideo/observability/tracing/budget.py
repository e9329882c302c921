"""Keeps the trace of one step, over all ranks, below a size.

Trace stores refuse or cut traces that are too large (Tempo: 5 MB), and a step of a thousand ranks
gets there. Each rank decides alone, by what it knows: its own spans and the number of ranks. The
shares add up to the budget at most, so no rank has to know what the others do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.records import OMITTED_ATTRIBUTE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastvideo.observability.tracing.records import SpanRecord

_FIRST_PART: Final = 8
"""One part in this many is for rank 0, which sends everything as far as that goes."""

_NODES_PART: Final = 4
"""One part in this many is for the first ranks of the other nodes."""

_NODE_BYTES: Final = 4000
"""What the first rank of each node must get for them to be treated otherwise than the rest."""

_LEAST_BYTES: Final = 1200
"""The least share that is worth having; where there is less, ranks take turns."""

_MARK_BYTES: Final = 40
"""What the attribute adds that says how many spans are missing."""


@dataclass(frozen=True, slots=True)
class TraceBudget:
    """The size of a step's trace, and this rank's place in it.

    Attributes:
        max_bytes: Size of the trace over all ranks, as protobuf before compression.
        world_size: Number of ranks.
        rank: Of this process.
        local_rank: Of this process, on its node.
        local_world_size: Ranks on a node, 0 if unknown.
        overhead: Bytes that each rank sends once per step: resource and framing.
    """

    max_bytes: int
    world_size: int
    rank: int
    local_rank: int
    local_world_size: int
    overhead: int

    def choose(
        self, records: Sequence[SpanRecord], sizes: Sequence[int], drawn: set[int]
    ) -> list[int]:
        """Chooses the spans of one step that are sent.

        Where all of them are too many, rank 0, and one rank per node as far as that fits, still
        send theirs. The others send the step's span and the longest below it. A rank whose share
        does not hold even that sends nothing, for the benefit of the next.

        Args:
            records: The spans, the step's own first; is marked when some are left out.
            sizes: Bytes of each.
            drawn: Ids that spans of somebody else may hang on; these come before longer ones.

        Returns:
            Indices into ``records``, in order.
        """
        if self.holds(sizes):
            return list(range(len(records)))
        allowance = self._allowance() - self.overhead
        if allowance >= sum(sizes):
            return list(range(len(records)))
        kept = _longest(records, sizes, drawn, allowance - _MARK_BYTES)
        if kept:
            attributes = records[kept[0]].attributes
            before = attributes.get(OMITTED_ATTRIBUTE)
            left_out = len(records) - len(kept)
            attributes[OMITTED_ATTRIBUTE] = left_out + (before if isinstance(before, int) else 0)
        return kept

    def holds(self, sizes: Sequence[int]) -> bool:
        """Tells whether spans of these sizes fit on every rank."""
        return (sum(sizes) + self.overhead) * self.world_size <= self.max_bytes

    def _allowance(self) -> int:
        """Returns how many bytes this rank may send of a step that is too large as a whole.

        Goes by what all ranks know alike, so that their shares add up.
        """
        for_first = self.max_bytes // _FIRST_PART
        for_nodes = self.max_bytes // _NODES_PART
        if self.rank == 0:
            return for_first
        nodes = -(-self.world_size // self.local_world_size) if self.local_world_size else 1
        per_node = nodes > 1 and for_nodes // (nodes - 1) >= _NODE_BYTES
        if per_node and self.local_rank == 0:
            return for_nodes // (nodes - 1)
        others = self.world_size - (nodes if per_node else 1)
        for_others = self.max_bytes - for_first - (for_nodes if per_node else 0)
        share = for_others // max(1, others)
        if share >= _LEAST_BYTES:
            return share
        every = -(-others * _LEAST_BYTES // for_others)
        return _LEAST_BYTES if self.rank % every == 0 else 0


def _longest(
    records: Sequence[SpanRecord], sizes: Sequence[int], drawn: set[int], allowance: int
) -> list[int]:
    """Returns the indices of the step's span and of the longest ones that fit, with their parents.

    Rank 0's root and step are kept whatever they take: all other spans hang on them.
    """
    has_root = any(not record.parent_span_id for record in records)
    kept = {i for i, record in enumerate(records) if i == 0 or not record.parent_span_id}
    used = sum(sizes[i] for i in kept)
    if used > allowance and not has_root:
        return []
    place = {record.span_id: i for i, record in enumerate(records)}
    order = sorted(
        (i for i in range(len(records)) if i not in kept),
        key=lambda i: (
            records[i].span_id not in drawn,
            records[i].start_unix_ns - records[i].end_unix_ns,
        ),
    )
    for i in order:
        missing = _with_parents(i, records, place, kept)
        cost = sum(sizes[j] for j in missing)
        if used + cost <= allowance:
            kept |= missing
            used += cost
    return sorted(kept)


def _with_parents(
    index: int, records: Sequence[SpanRecord], place: dict[int, int], kept: set[int]
) -> set[int]:
    """Returns what has to be kept for a span to hang on something: itself and its parents."""
    missing: set[int] = set()
    at: int | None = index
    while at is not None and at not in kept and at not in missing:
        missing.add(at)
        at = place.get(records[at].parent_span_id)
    return missing
