"""NVTX ranges for Nsight Systems: of one's own, and of every region.

Ranges are pushed and popped, because only those are projected onto the kernels they launched. A
range that is left out of order, or on another thread, is popped once it is on top.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Final, Protocol

import torch
from torch.compiler import is_dynamo_compiling

from fastvideo import envs
from fastvideo.profiler.region import attach

if TYPE_CHECKING:
    from types import TracebackType

    from fastvideo.profiler.registry import ProfilerRegion
    from fastvideo.profiler.sinks import Attributes


class Nvtx(Protocol):
    """The part of ``torch.cuda.nvtx`` that is used here."""

    def range_push(self, msg: str) -> object:
        """Opens a range on this thread."""

    def range_pop(self) -> object:
        """Closes the range this thread opened last."""


class _Range:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = False


class NvtxRanges:
    """A sink that opens an NVTX range per entry of any region.

    Args:
        nvtx: ``torch.cuda.nvtx``, or a stand-in.
    """

    def __init__(self, nvtx: Nvtx) -> None:
        self._nvtx = nvtx
        self._local = threading.local()

    def wants(self, region: ProfilerRegion) -> bool:
        """Wants every region."""
        del region
        return True

    def enter(self, region: ProfilerRegion, annotation: str, attributes: Attributes) -> object:
        """Opens a range that is called like the annotation in a kernel trace."""
        del region, attributes
        return self.push(annotation)

    def exit(self, token: object, error: type[BaseException] | None) -> None:
        """Closes the range."""
        del error
        self.leave(token)

    def push(self, name: str) -> object:
        """Opens a range on this thread and returns what :meth:`leave` needs to close it."""
        stack = self._stack()
        self._pop_left(stack)
        self._nvtx.range_push(name)
        entry = _Range()
        stack.append(entry)
        return entry

    def leave(self, token: object) -> None:
        """Closes a range now, or when the ranges above it are closed."""
        if isinstance(token, _Range):
            token.left = True
            self._pop_left(self._stack())

    def _pop_left(self, stack: list[_Range]) -> None:
        while stack and stack[-1].left:
            stack.pop()
            self._nvtx.range_pop()

    def _stack(self) -> list[_Range]:
        try:
            stack: list[_Range] = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
        return stack


class _NvtxRange:
    """One range, as a context manager."""

    __slots__ = ("_name", "_ranges", "_token")

    def __init__(self, ranges: NvtxRanges, name: str) -> None:
        self._ranges = ranges
        self._name = name
        self._token: object = None

    def __enter__(self) -> None:
        self._token = self._ranges.push(self._name)

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ranges.leave(self._token)


_NOOP: Final[contextlib.nullcontext[None]] = contextlib.nullcontext()


def nvtx_range(name: str) -> contextlib.AbstractContextManager[None, None]:
    """Marks the body of a ``with`` statement as an NVTX range.

    A no-op unless ``FASTVIDEO_NVTX_PROFILE`` is set, without CUDA, and while compiling.

    Args:
        name: What Nsight Systems shows.
    """
    if is_dynamo_compiling() or not envs.FASTVIDEO_NVTX_PROFILE:
        return _NOOP
    ranges = shared_ranges()
    return _NOOP if ranges is None else _NvtxRange(ranges, name)


def start_region_ranges() -> NvtxRanges | None:
    """Gives every region an NVTX range, if ``FASTVIDEO_NVTX_PROFILE`` is set and there is CUDA.

    Returns:
        The attached sink, the same each time; or None.
    """
    ranges = shared_ranges() if envs.FASTVIDEO_NVTX_PROFILE else None
    if ranges is not None:
        attach(ranges)
    return ranges


@functools.cache
def shared_ranges() -> NvtxRanges | None:
    """Returns the ranges of this process, or None without CUDA; decided once."""
    return NvtxRanges(torch.cuda.nvtx) if torch.cuda.is_available() else None
