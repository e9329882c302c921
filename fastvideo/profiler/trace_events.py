"""The slices of a trace, reduced to what the summary and the checks need."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from .flops import count_flops

Track: TypeAlias = "tuple[Any, Any]"
"""Process and thread (or device and stream) of a slice, as the trace names them."""

CPU, ANNOTATION, KERNEL, DEVICE_ANNOTATION, LAUNCH = range(5)
"""Kinds of slices: what runs on the CPU, the user's regions there, what runs on a device, the
user's regions drawn on its streams, and calls into the CUDA runtime or driver."""

_KINDS: Final = {
    "cpu_op": CPU,
    "python_function": CPU,
    "overhead": CPU,
    "user_annotation": ANNOTATION,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "kernel": KERNEL,
    "gpu_memcpy": KERNEL,
    "gpu_memset": KERNEL,
    "gpu_user_annotation": DEVICE_ANNOTATION,
}
_MEMORY: Final = "[memory]"
_OUT_OF_MEMORY: Final = "[OutOfMemory]"


class Slice(NamedTuple):
    """One slice. Sorting slices puts a parent before its children.

    Attributes:
        start_ns: When it began, on the clock of the trace.
        neg_end_ns: When it ended, negated: of two that begin together the longer comes first.
        order: Its place in the file.
        name: Its name.
        category: Its category as the trace has it.
        kind: One of the kinds above.
        track: Where it ran.
        external_id: The operator it is, or was launched by; 0 for none.
        correlation: Links a launch with what it launched; 0 for none.
        dims: Shapes of its inputs, if recorded.
        flops: Floating point operations by torch's formulas; None where it has none.
    """

    start_ns: int
    neg_end_ns: int
    order: int
    name: str
    category: str
    kind: int
    track: Track
    external_id: int
    correlation: int
    dims: list[Any] | None
    flops: int | None

    @property
    def duration_ns(self) -> int:
        """How long it ran."""
        return -self.neg_end_ns - self.start_ns


class TraceEvents:
    """Collects the events of one trace.

    Attributes:
        event_count: All events, of every kind.
        slices: The slices of the kinds that are known, in the order of the file.
        other_slices: Start and negated end of the slices of other kinds, by track.
        memory_ns: When memory was allocated or freed.
        out_of_memory_ns: When an allocation failed.
    """

    def __init__(self, *, with_shapes: bool = False, with_flops: bool = False) -> None:
        """Starts empty.

        Args:
            with_shapes: Keep the shapes of inputs.
            with_flops: Count floating point operations.
        """
        self.event_count = 0
        self.slices: list[Slice] = []
        self.other_slices: dict[Track, list[tuple[int, int]]] = {}
        self.memory_ns: list[int] = []
        self.out_of_memory_ns: list[int] = []
        self._with_shapes = with_shapes
        self._with_flops = with_flops

    def add(self, events: list[dict[str, Any]]) -> None:
        """Takes in events as the trace file holds them; what is malformed is only counted."""
        self.event_count += len(events)
        for event in events:
            try:
                phase = event["ph"]
                if phase == "X":
                    self._add_slice(event)
                elif phase == "i":
                    self._add_instant(event)
            except (KeyError, TypeError, ValueError, OverflowError):
                continue

    def _add_slice(self, event: dict[str, Any]) -> None:
        # The trace counts microseconds from a base that is chosen such that nanoseconds survive
        # the way through a double.
        start_ns = round(event["ts"] * 1000)
        end_ns = start_ns + round(event["dur"] * 1000)
        category = event.get("cat", "")
        track = (event["pid"], event["tid"])
        kind = _KINDS.get(category)
        if kind is None:
            self.other_slices.setdefault(track, []).append((start_ns, -end_ns))
            return
        args = event.get("args", {})
        name = str(event["name"])
        self.slices.append(
            Slice(
                start_ns,
                -end_ns,
                len(self.slices),
                name,
                category,
                kind,
                track,
                args.get("External id", 0),
                args.get("correlation", 0),
                args.get("Input Dims") if self._with_shapes else None,
                count_flops(name, args) if self._with_flops else None,
            )
        )

    def _add_instant(self, event: dict[str, Any]) -> None:
        name = event["name"]
        if name == _MEMORY:
            self.memory_ns.append(round(event["ts"] * 1000))
        elif name == _OUT_OF_MEMORY:
            self.out_of_memory_ns.append(round(event["ts"] * 1000))
