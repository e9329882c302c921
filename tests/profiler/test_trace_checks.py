"""What a trace says about its own completeness."""

from __future__ import annotations

from typing import Any

import pytest

from fastvideo.profiler import trace_checks
from fastvideo.profiler.trace_checks import TraceChecks, check_trace, warnings_of
from fastvideo.profiler.trace_events import TraceEvents

GOOD = TraceChecks(
    kernels=3,
    launches=3,
    launches_without_kernel=0,
    kernels_without_launch=0,
    kernels_before_launch=0,
    overlapping_slices=0,
)


def check(builder: Any) -> TraceChecks:
    """Checks a synthetic trace."""
    events = TraceEvents()
    events.add(builder.events)
    return check_trace(events)


def warnings(checks: TraceChecks, device: str = "cuda", **more: Any) -> list[str]:
    """Returns the kinds of the warnings."""
    defaults: dict[str, Any] = {"trace_bytes": 1000, "options": {}}
    return [w.partition(":")[0] for w in warnings_of(checks, device=device, **(defaults | more))]


def test_a_whole_trace(cuda_step: Any) -> None:
    """Kernels are counted, copies are not, and nothing is wrong."""
    assert check(cuda_step) == GOOD
    assert warnings(GOOD) == []


def test_launches_without_kernel(cuda_step: Any) -> None:
    """A kernel that the profiler lost is noticed by its launch; other calls launch nothing."""
    cuda_step.runtime(310, correlation=9001)
    cuda_step.runtime(312, correlation=9002, name="cuLaunchKernelEx")
    cuda_step.runtime(314, correlation=9003, name="cudaLaunchHostFunc")
    cuda_step.runtime(316, correlation=9004, name="cudaEventRecord")
    checks = check(cuda_step)
    assert (checks.launches, checks.launches_without_kernel) == (5, 2)
    assert warnings(checks) == ["launches_without_kernel"]


def test_one_graph_launch_has_many_kernels(builder: Any) -> None:
    """The kernels of a CUDA graph share the correlation of its launch."""
    builder.runtime(0, correlation=5, name="cudaGraphLaunch")
    for start in (10, 20, 30):
        builder.kernel("k", start, 5, correlation=5)
    assert check(builder) == GOOD.__class__(3, 1, 0, 0, 0, 0)


def test_kernels_without_launch(cuda_step: Any) -> None:
    """A kernel that was launched before recording began is noticed."""
    cuda_step.kernel("stray", 250, 5, correlation=4711)
    checks = check(cuda_step)
    assert (checks.kernels, checks.kernels_without_launch) == (4, 1)
    assert warnings(checks) == ["kernels_without_launch"]


def test_kernels_before_their_launch(builder: Any) -> None:
    """A kernel that starts before the call that launches it is out of step with the CPU."""
    builder.launch(100, start=90, dur=5)
    builder.launch(110, start=110, dur=5)
    checks = check(builder)
    assert checks.kernels_before_launch == 1
    assert warnings(checks) == ["kernels_before_launch"]


@pytest.mark.parametrize(
    ("spans", "overlaps"),
    [
        ([(0, 10), (2, 3), (5, 5), (10, 4)], 0),
        ([(0, 10), (0, 10), (0, 4)], 0),
        ([(0, 10), (5, 10)], 1),
        ([(0, 10), (5, 10), (8, 10), (15, 2)], 2),
        ([(0, 20), (2, 8), (5, 10), (12, 3)], 1),
    ],
)
def test_overlapping_slices(builder: Any, spans: list[tuple[float, float]], overlaps: int) -> None:
    """Slices that overlap without nesting are counted; slices that nest or touch are not."""
    for start, duration in spans:
        builder.op("aten::add", start, duration)
    assert check(builder).overlapping_slices == overlaps
    assert warnings(check(builder), "cpu") == ["overlapping_slices"] * bool(overlaps)


def test_tracks_do_not_overlap_each_other(builder: Any) -> None:
    """Slices of different streams may overlap, and slices of unknown kinds count as well."""
    builder.kernel("a", 0, 10, tid=7)
    builder.kernel("b", 5, 10, tid=8)
    builder.slice("Trace", "span", 0, 10, tid="PyTorch Profiler")
    assert check(builder).overlapping_slices == 0
    builder.slice("Trace", "span", 5, 10, tid="PyTorch Profiler")
    assert check(builder).overlapping_slices == 1


def test_a_cuda_segment_without_kernels_is_loud() -> None:
    """Lost kernels are told apart from a region that did not use the device."""
    lost = TraceChecks(0, 4, 4, 0, 0, 0)
    unused = TraceChecks(0, 0, 0, 0, 0, 0)
    assert warnings(lost) == ["kernels_lost"]
    assert warnings(unused) == ["no_kernels"]
    assert warnings(unused, "cpu") == []


def test_numbers_agree_with_their_nouns() -> None:
    """One slice overlaps, two slices overlap."""

    def sentences(number: int) -> list[str]:
        checks = TraceChecks(number, number, number, number, number, number)
        found = warnings_of(checks, device="cuda", trace_bytes=0, options={})
        return [warning.partition(": ")[2] for warning in found]

    launch, kernel, start, overlap = sentences(1)
    assert (
        launch == "1 of 1 kernel launch left no kernel in the trace, so device times are too small"
    )
    assert kernel.startswith("the launch of 1 of 1 kernel is not in the trace; it was before")
    assert start.startswith("the start of 1 of 1 kernel is before the launch, so device times do")
    assert overlap == "1 slice overlaps another one without nesting; Perfetto leaves it out"
    assert sentences(2)[0].startswith("2 of 2 kernel launches left")
    assert sentences(2)[1].startswith("the launch of 2 of 2 kernels is")
    assert sentences(2)[3] == "2 slices overlap others without nesting; Perfetto leaves them out"


def test_a_trace_that_browsers_cannot_open() -> None:
    """The warning names the size and the variables that are worth switching off."""
    options = {"with_stack": True, "record_shapes": True, "with_flops": False}
    at_limit = warnings(GOOD, trace_bytes=trace_checks.MAX_TRACE_BYTES)
    assert at_limit == []
    [warning] = warnings_of(GOOD, device="cuda", trace_bytes=612_000_000, options=options)
    assert warning == (
        "trace_too_big: the trace has 612 MB before compression and browsers open 500 MB at most; "
        "set FASTVIDEO_TORCH_PROFILER_WITH_STACK=0 and FASTVIDEO_TORCH_PROFILER_RECORD_SHAPES=0, "
        "or record a smaller region"
    )
    [plain] = warnings_of(GOOD, device="cpu", trace_bytes=612_000_000, options={})
    assert plain.endswith("at most; record a smaller region")
