"""NVTX ranges, with a stand-in for torch.cuda.nvtx."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.profiler import detach, nvtx, profiler_region
from fastvideo.profiler.nvtx import NvtxRanges, nvtx_range, start_region_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeNvtx:
    """Remembers what is pushed and popped."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def range_push(self, msg: str) -> int:
        self.calls.append(msg)
        return len(self.calls)

    def range_pop(self) -> int:
        self.calls.append("pop")
        return len(self.calls)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvtx]:
    """Gives a fake NVTX that the module uses, with the variable set."""
    recording = FakeNvtx()
    ranges = NvtxRanges(recording)
    monkeypatch.setenv("FASTVIDEO_NVTX_PROFILE", "1")
    monkeypatch.setattr(nvtx, "shared_ranges", lambda: ranges)
    yield recording
    detach(ranges)


def test_a_range_is_pushed_and_popped(fake: FakeNvtx) -> None:
    """Ranges nest, and an exception closes them."""

    def body() -> None:
        with nvtx_range("outer"), nvtx_range("inner"):
            raise KeyError

    with pytest.raises(KeyError):
        body()
    assert fake.calls == ["outer", "inner", "pop", "pop"]


def test_regions_get_ranges_called_like_their_annotations(fake: FakeNvtx) -> None:
    """Every region is a range, once, however often ranges are started."""
    assert start_region_ranges() is start_region_ranges()
    with profiler_region("training_forward"):
        pass
    assert fake.calls == ["fastvideo.region::training_forward", "pop"]


def test_nothing_happens_while_the_variable_is_unset(
    fake: FakeNvtx, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without FASTVIDEO_NVTX_PROFILE a range is a shared no-op."""
    monkeypatch.setenv("FASTVIDEO_NVTX_PROFILE", "0")
    assert start_region_ranges() is None
    assert nvtx_range("a") is nvtx_range("b")
    with nvtx_range("a"):
        pass
    assert fake.calls == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_without_cuda_ranges_are_no_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable alone does not make a range on a machine without CUDA."""
    monkeypatch.setenv("FASTVIDEO_NVTX_PROFILE", "1")
    assert start_region_ranges() is None
    with nvtx_range("a"):
        pass
    assert nvtx_range("a") is nvtx_range("b")


def test_ranges_left_out_of_order_are_popped_when_they_are_on_top() -> None:
    """NVTX pops the newest range, so an older one waits for it."""
    fake = FakeNvtx()
    ranges = NvtxRanges(fake)
    first, second = ranges.push("first"), ranges.push("second")
    ranges.leave(first)
    assert fake.calls == ["first", "second"]
    ranges.leave(second)
    assert fake.calls == ["first", "second", "pop", "pop"]


def test_a_range_left_on_another_thread_is_popped_on_its_own() -> None:
    """Threads have stacks of their own in NVTX; the next push of the thread tidies up."""
    fake = FakeNvtx()
    ranges = NvtxRanges(fake)
    first = ranges.push("first")
    thread = threading.Thread(target=ranges.leave, args=(first,))
    thread.start()
    thread.join()
    assert fake.calls == ["first"]
    ranges.leave(ranges.push("second"))
    assert fake.calls == ["first", "pop", "second", "pop"]


def test_compiled_functions_have_no_ranges_and_no_graph_breaks(fake: FakeNvtx) -> None:
    """While compiling, a range is a no-op, and fullgraph=True passes."""

    def function(x: torch.Tensor) -> torch.Tensor:
        with nvtx_range("inside"):
            return x + 1

    compile_it: Any = torch.compile
    compiled = compile_it(function, fullgraph=True, backend="eager")
    assert compiled(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert fake.calls == []
