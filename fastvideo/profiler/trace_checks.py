"""What a trace says about its own completeness."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from .trace_events import KERNEL, LAUNCH, TraceEvents, Track

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TRACE_BYTES: Final = 500_000_000
"""What browsers open at most, before compression."""

_SWITCHES: Final = {
    "with_stack": "FASTVIDEO_TORCH_PROFILER_WITH_STACK",
    "record_shapes": "FASTVIDEO_TORCH_PROFILER_RECORD_SHAPES",
    "profile_memory": "FASTVIDEO_TORCH_PROFILER_WITH_PROFILE_MEMORY",
    "with_flops": "FASTVIDEO_TORCH_PROFILER_WITH_FLOPS",
}


@dataclasses.dataclass(frozen=True, slots=True)
class TraceChecks:
    """Counts, all of one trace; 0 is the good value of those from the third on.

    Attributes:
        kernels: Kernels that ran on a device.
        launches: Calls that launch kernels.
        launches_without_kernel: Launches whose kernel is not in the trace.
        kernels_without_launch: Kernels whose launch is not in the trace.
        kernels_before_launch: Kernels that start before the call that launches them: their clock
            is wrong, or they belong to an earlier session.
        overlapping_slices: Slices that overlap another one of their track without being nested in
            it; Perfetto leaves them out.
    """

    kernels: int
    launches: int
    launches_without_kernel: int
    kernels_without_launch: int
    kernels_before_launch: int
    overlapping_slices: int


def check_trace(events: TraceEvents) -> TraceChecks:
    """Counts what is missing, misplaced or overlapping in a trace."""
    kernels = [s for s in events.slices if s.category == "kernel"]
    calls = {s.correlation: s for s in events.slices if s.kind == LAUNCH and s.correlation}
    launches = [s for s in events.slices if s.kind == LAUNCH and _launches(s.name)]
    arrived = {s.correlation for s in events.slices if s.kind == KERNEL}
    launched = [(s, calls[s.correlation]) for s in kernels if s.correlation in calls]
    return TraceChecks(
        kernels=len(kernels),
        launches=len(launches),
        launches_without_kernel=sum(s.correlation not in arrived for s in launches),
        kernels_without_launch=len(kernels) - len(launched),
        kernels_before_launch=sum(k.start_ns < call.start_ns for k, call in launched),
        overlapping_slices=sum(map(_count_overlaps, _tracks(events).values())),
    )


def warnings_of(
    checks: TraceChecks, *, device: str, trace_bytes: int, options: Mapping[str, bool]
) -> list[str]:
    """Returns what a person has to know, each as ``<kind>: <sentence>``.

    Args:
        checks: The counts.
        device: ``"cuda"`` or ``"cpu"``.
        trace_bytes: Size of the trace before compression.
        options: The torch.profiler options that the segment was recorded with.
    """
    found = []
    if device == "cuda" and checks.kernels == 0:
        found.append(_no_kernels(checks))
    elif checks.launches_without_kernel:
        share = _share(checks.launches_without_kernel, checks.launches, "kernel launch", "es")
        found.append(
            f"launches_without_kernel: {share} left no kernel in the trace, so device times are "
            "too small"
        )
    if checks.kernels_without_launch:
        share = _share(checks.kernels_without_launch, checks.kernels, "kernel")
        found.append(
            f"kernels_without_launch: the launch of {share} is not in the trace; it was before "
            "recording began, or was lost"
        )
    if checks.kernels_before_launch:
        share = _share(checks.kernels_before_launch, checks.kernels, "kernel")
        found.append(
            f"kernels_before_launch: the start of {share} is before the launch, so device times do "
            "not line up with the CPU"
        )
    if checks.overlapping_slices:
        overlaps = "1 slice overlaps another one without nesting; Perfetto leaves it out"
        if checks.overlapping_slices != 1:
            overlaps = (
                f"{checks.overlapping_slices} slices overlap others without nesting; Perfetto "
                "leaves them out"
            )
        found.append(f"overlapping_slices: {overlaps}")
    if trace_bytes > MAX_TRACE_BYTES:
        found.append(f"trace_too_big: {_how_to_shrink(trace_bytes, options)}")
    return found


def _no_kernels(checks: TraceChecks) -> str:
    if checks.launches:
        return (
            f"kernels_lost: {_share(0, checks.launches, 'launched kernel')} was recorded on the "
            "CUDA device; the profiler lost them, and the segment's device times are worthless"
        )
    return (
        "no_kernels: the segment was recorded on a CUDA machine but holds no kernel and no launch; "
        "either the region does not use the device, or the profiler recorded nothing of it"
    )


def _share(part: int, whole: int, noun: str, plural: str = "s") -> str:
    return f"{part or 'none'} of {whole} {noun}{'' if whole == 1 else plural}"


def _how_to_shrink(trace_bytes: int, options: Mapping[str, bool]) -> str:
    on = [variable for option, variable in _SWITCHES.items() if options.get(option)]
    advice = f"set {' and '.join(f'{name}=0' for name in on)}, or " if on else ""
    return (
        f"the trace has {trace_bytes / 1e6:.0f} MB before compression and browsers open "
        f"{MAX_TRACE_BYTES / 1e6:.0f} MB at most; {advice}record a smaller region"
    )


def _launches(name: str) -> bool:
    return "Launch" in name and "HostFunc" not in name


def _tracks(events: TraceEvents) -> dict[Track, list[tuple[int, int]]]:
    tracks = {track: list(spans) for track, spans in events.other_slices.items()}
    for item in events.slices:
        tracks.setdefault(item.track, []).append((item.start_ns, item.neg_end_ns))
    return tracks


def _count_overlaps(spans: list[tuple[int, int]]) -> int:
    """Counts the slices of one track that end after a slice they begin in."""
    spans.sort()
    open_ends: list[int] = []
    overlaps = 0
    for start, neg_end in spans:
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and -neg_end > open_ends[-1]:
            overlaps += 1
        else:
            open_ends.append(-neg_end)
    return overlaps
