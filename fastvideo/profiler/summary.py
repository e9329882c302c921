"""Operator totals of a segment, computed from its trace in one pass.

The totals are those of ``torch.profiler``'s ``key_averages``, at a tenth of the cost: times of
operators include what they call, self times do not; an operator that only calls itself again
counts once; kernels belong to the operator that launched them and are listed by themselves too.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Final

from .strict_json import dumps
from .trace_events import ANNOTATION, CPU, DEVICE_ANNOTATION, KERNEL, LAUNCH, Slice, TraceEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_IGNORED: Final = {
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
}
"""Operators that key_averages leaves out, too."""

_UNLINKED: Final = ("", "launches of no operator")


@dataclasses.dataclass(slots=True)
class OperatorTotal:
    """All calls of one operator, or all runs of one kernel. Times are in nanoseconds.

    Attributes:
        name: Name of the operator, kernel or region.
        kind: One of the kinds of :mod:`trace_events`; calls into CUDA count as ``CPU``.
        shapes: Shapes of the inputs where totals are grouped by them, else empty.
        self_cpu_ns: CPU time without what it called.
        cpu_ns: CPU time.
        self_device_ns: Time of the kernels that it launched itself; of a kernel, its own time.
        device_ns: Time of the kernels that it and what it called launched.
        count: How often it was called.
        flops: Floating point operations; 0 where they were not counted.
    """

    name: str
    kind: int
    shapes: list[Any]
    self_cpu_ns: int = 0
    cpu_ns: int = 0
    self_device_ns: int = 0
    device_ns: int = 0
    count: int = 0
    flops: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What a segment consisted of.

    Attributes:
        totals: Operators, regions and kernels, the longest self device time first, then the
            longest self CPU time.
        threads: CPU threads that ran operators.
        device_busy_ns: Time in which at least one kernel or copy ran on a device; simultaneous
            ones count once.
        operator_ns: Self time of all operators, on the device if any kernel ran, else on the CPU.
        counted_ns: The part of it in operators whose floating point operations were counted.
        uncounted: Operators that were not, with their self time, the longest first.
    """

    totals: list[OperatorTotal]
    threads: int
    device_busy_ns: int
    operator_ns: int
    counted_ns: int
    uncounted: list[tuple[str, int]]


def summarise(events: TraceEvents) -> Summary:
    """Adds up the slices of a trace."""
    return _Adder(events).run()


def totals_json(totals: Iterable[OperatorTotal]) -> bytes:
    """Returns the totals as a JSON list, one total per line, times in microseconds."""
    rows = [
        dumps(
            {
                "name": total.name,
                "shapes": total.shapes,
                "self_cpu_us": total.self_cpu_ns / 1000,
                "cpu_us": total.cpu_ns / 1000,
                "self_device_us": total.self_device_ns / 1000,
                "device_us": total.device_ns / 1000,
                "count": total.count,
            }
        )
        for total in totals
    ]
    return b"[\n" + b",\n".join(rows) + b"\n]\n" if rows else b"[]\n"


class _Adder:
    """Walks the slices of every thread and keeps the sums."""

    def __init__(self, events: TraceEvents) -> None:
        self._events = events
        self._totals: dict[tuple[str, int, str], OperatorTotal] = {}
        self._device_ns: collections.Counter[int] = collections.Counter()
        self._has_device = False
        self._operator_ns = 0
        self._counted_ns = 0
        self._uncounted: collections.Counter[str] = collections.Counter()

    def run(self) -> Summary:
        host = [s for s in self._events.slices if s.kind in _HOST and s.name not in _IGNORED]
        device = [s for s in self._events.slices if s.kind not in _HOST]
        kernels = [s for s in device if s.kind == KERNEL]
        self._has_device = bool(kernels)
        for kernel in kernels:
            if kernel.external_id:
                self._device_ns[kernel.external_id] += kernel.duration_ns
        tracks = _threads(host)
        for slices in tracks.values():
            self._add_thread(slices)
        for item in device:
            self._add_device(item)
        self._add_memory(host)
        return Summary(
            totals=sorted(
                self._totals.values(), key=lambda t: (-t.self_device_ns, -t.self_cpu_ns, t.name)
            ),
            threads=len({s.track for s in host if s.category == "cpu_op"}),
            device_busy_ns=_union_ns((s.start_ns, -s.neg_end_ns) for s in kernels),
            operator_ns=self._operator_ns,
            counted_ns=self._counted_ns,
            uncounted=self._uncounted.most_common(),
        )

    def _add_thread(self, slices: list[Slice]) -> None:
        """Adds the slices of one thread; they nest, so a stack tells who called whom."""
        slices.sort()
        parents = _parents(slices)
        owners = _merge_repeats(slices, parents)
        called_ns = [0] * len(slices)
        own_device_ns = [0] * len(slices)
        for i, item in enumerate(slices):
            if item.external_id and item.kind != LAUNCH:
                own_device_ns[owners[i]] += self._device_ns.get(item.external_id, 0)
            if owners[i] == i and parents[i] >= 0:
                called_ns[parents[i]] += item.duration_ns
        device_ns = own_device_ns.copy()
        for i in reversed(range(len(slices))):
            if owners[i] == i and parents[i] >= 0:
                device_ns[parents[i]] += device_ns[i]
        counted = [False] * len(slices)
        for i, item in enumerate(slices):
            parent = parents[i]
            counted[i] = item.flops is not None or (parent >= 0 and counted[parent])
            if owners[i] != i:
                continue
            total = self._total(item)
            self_ns = item.duration_ns - called_ns[i]
            total.self_cpu_ns += self_ns
            total.cpu_ns += item.duration_ns
            total.self_device_ns += own_device_ns[i]
            total.device_ns += device_ns[i]
            total.count += 1
            total.flops += item.flops or 0
            if item.category == "cpu_op":
                self._cover(
                    item.name, own_device_ns[i] if self._has_device else self_ns, counted[i]
                )

    def _cover(self, name: str, self_ns: int, counted: bool) -> None:  # noqa: FBT001
        self._operator_ns += self_ns
        if counted:
            self._counted_ns += self_ns
        else:
            self._uncounted[name] += self_ns

    def _add_device(self, item: Slice) -> None:
        total = self._total(item)
        total.self_device_ns += item.duration_ns
        total.device_ns += item.duration_ns
        total.count += 1

    def _add_memory(self, host: list[Slice]) -> None:
        """Counts allocations outside of every operator, the way key_averages lists them."""
        outside = _outside(self._events.memory_ns, host)
        for name, count in (
            ("[memory]", outside),
            ("[OutOfMemory]", len(self._events.out_of_memory_ns)),
        ):
            if count:
                total = self._totals.setdefault((name, CPU, "[]"), OperatorTotal(name, CPU, []))
                total.count += count

    def _total(self, item: Slice) -> OperatorTotal:
        name = "ProfilerStep*" if item.name.startswith("ProfilerStep#") else item.name
        kind = CPU if item.kind == LAUNCH else item.kind
        shapes = [] if item.dims is None else [_shape(dims) for dims in item.dims]
        key = (name, kind, str(shapes))
        total = self._totals.get(key)
        if total is None:
            total = self._totals[key] = OperatorTotal(name, kind, shapes)
        return total


_HOST: Final = (CPU, ANNOTATION, LAUNCH)


def _shape(dims: Any) -> Any:  # noqa: ANN401 - whatever the trace holds
    """Returns the shape of one input; a list of tensors has none, as in key_averages."""
    return [] if isinstance(dims, list) and dims and isinstance(dims[0], list) else dims


def _threads(host: list[Slice]) -> dict[Any, list[Slice]]:
    """Sorts slices by thread. A launch runs where its operator runs; one without stands alone."""
    home = {s.external_id: s.track for s in host if s.external_id and s.kind != LAUNCH}
    threads: dict[Any, list[Slice]] = collections.defaultdict(list)
    for item in host:
        track = item.track if item.kind != LAUNCH else home.get(item.external_id, _UNLINKED)
        threads[track].append(item)
    return threads


def _parents(slices: list[Slice]) -> list[int]:
    """Returns for each slice the innermost one around it, or -1; ``slices`` are sorted."""
    parents = [-1] * len(slices)
    around: list[int] = []
    for i, item in enumerate(slices):
        start_ns, neg_end_ns = item[0], item[1]
        while around:
            parent_neg_end_ns = slices[around[-1]][1]
            if start_ns < -parent_neg_end_ns and neg_end_ns >= parent_neg_end_ns:
                parents[i] = around[-1]
                break
            around.pop()
        around.append(i)
    return parents


def _merge_repeats(slices: list[Slice], parents: list[int]) -> list[int]:
    """Merges a slice into its parent where it is the only child and has the same name.

    ``parents`` is brought up to date.

    Returns:
        For each slice the one it is merged into, itself if none.
    """
    children = collections.Counter(parents)
    owners = list(range(len(slices)))
    for i, item in enumerate(slices):
        if parents[i] < 0:
            continue
        parent = parents[i] = owners[parents[i]]
        if children[parent] == 1 and slices[parent].name == item.name:
            owners[i] = parent
            children[parent] = children[i]
    return owners


def _outside(times_ns: list[int], host: list[Slice]) -> int:
    """Counts the times that fall into none of the slices."""
    spans = sorted((s.start_ns, -s.neg_end_ns) for s in host)
    starts = [start for start, _ in spans]
    latest = list(itertools.accumulate((end for _, end in spans), max))
    outside = 0
    for time_ns in times_ns:
        before = bisect.bisect_right(starts, time_ns)
        outside += before == 0 or latest[before - 1] < time_ns
    return outside


def _union_ns(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in _merged(sorted(spans)))


def _merged(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Joins sorted spans that touch or overlap."""
    joined: tuple[int, int] | None = None
    for start, end in spans:
        if joined is None:
            joined = (start, end)
        elif start <= joined[1]:
            joined = (joined[0], max(joined[1], end))
        else:
            yield joined
            joined = (start, end)
    if joined is not None:
        yield joined


def is_operator(total: OperatorTotal) -> bool:
    """Whether the total is of something that ran on the CPU, and not of a kernel."""
    return total.kind in _HOST


def is_region(total: OperatorTotal) -> bool:
    """Whether the total is of a user's region, on the CPU or as drawn on a device."""
    return total.kind in (ANNOTATION, DEVICE_ANNOTATION)
