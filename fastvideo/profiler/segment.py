"""One segment: torch's profiler started at a region's entry and stopped at its exit."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fastvideo.profiler import torch_session
from fastvideo.profiler.segment_record import SegmentRecord
from fastvideo.profiler.trace_metadata import plain_attributes, trace_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from fastvideo.profiler.registry import ProfilerRegion
    from fastvideo.profiler.stems import Stem


class TorchProfiler(Protocol):
    """What a segment needs of ``torch.profiler.profile``."""

    def start(self) -> None:
        """Begins to record on the calling thread."""

    def stop(self) -> None:
        """Ends recording; only the thread that started can do this."""

    def export_chrome_trace(self, path: str) -> None:
        """Writes the native trace to ``path``."""


class SegmentError(Exception):
    """A segment cannot be trusted or was not written, and is not handed over."""


class Segment:
    """A segment from the entry of its region to the native trace on disk.

    It belongs to the thread that makes it; only :meth:`annotate` and :meth:`end_annotation` may be
    called on others. Annotations that are still open when it stops are ended before: one that
    outlived its session would be written into the next.

    Attributes:
        region: The region that opened it.
        step: The step at its entry, or None.
        attributes: The entry's attributes, as plain values.
        owner: Identifier of the thread it belongs to.
        thread: Name and native id of that thread.
        recording: Whether annotations reach the trace.
        close_requested: Whether its own thread is to close it at the next opportunity.
        closed: Set when it is over.
        start_unix_ns: When recording began, in nanoseconds since the epoch.
        wall_ns: How long the region took.
        stall_ns: What starting, stopping and writing cost its thread.
    """

    __slots__ = (
        "_annotations",
        "_hook",
        "_profiler",
        "_started_ns",
        "attributes",
        "close_requested",
        "closed",
        "owner",
        "recording",
        "region",
        "stall_ns",
        "start_unix_ns",
        "step",
        "thread",
        "wall_ns",
    )

    def __init__(
        self, region: ProfilerRegion, *, step: int | None, attributes: Mapping[str, object]
    ) -> None:
        self.region = region
        self.step = step
        self.attributes = plain_attributes(attributes)
        self.owner = threading.get_ident()
        self.thread = f"{threading.current_thread().name} ({threading.get_native_id()})"
        self.recording = False
        self.close_requested = False
        self.closed = threading.Event()
        self.start_unix_ns = self.wall_ns = self.stall_ns = 0
        self._started_ns = 0
        self._profiler: TorchProfiler | None = None
        self._hook: Any = None
        self._annotations: dict[int, torch_session.Annotation] = {}

    def start(self, profiler: TorchProfiler, *, keep_hook: bool = False) -> None:
        """Begins to record.

        Args:
            profiler: A profiler that was never started.
            keep_hook: Whether to give back the thread's ``sys.setprofile`` hook afterwards, which
                recording stacks replaces.

        Raises:
            Exception: What the profiler raised; it does not run then.
        """
        before = time.perf_counter_ns()
        self._profiler = profiler
        self._hook = sys.getprofile() if keep_hook else None
        try:
            profiler.start()
        except BaseException:
            self._force_off()
            raise
        self.recording = True
        self.start_unix_ns = time.time_ns()
        self._started_ns = time.perf_counter_ns()
        self.stall_ns += self._started_ns - before

    def annotate(self, text: str) -> torch_session.Annotation | None:
        """Opens an annotation, on any thread; None when the segment does not record."""
        if not self.recording:
            return None
        annotation = torch_session.begin_annotation(text)
        self._annotations[id(annotation)] = annotation
        return annotation

    def end_annotation(self, annotation: torch_session.Annotation) -> None:
        """Ends an annotation, unless that happened already."""
        if self._annotations.pop(id(annotation), None) is not None:
            torch_session.end_annotation(annotation)

    def stop(self, *, synchronize: Callable[[], None] | None = None) -> None:
        """Ends open annotations, the inner ones first, then recording.

        Args:
            synchronize: Waits for the device, so that all work the region launched is inside.

        Raises:
            SegmentError: Another profiler ran meanwhile.
            Exception: What the profiler raised; it does not run then.
        """
        profiler = self._profiler
        if profiler is None or not self.recording:
            return
        before = time.perf_counter_ns()
        self.wall_ns = before - self._started_ns
        self.recording = False
        stopped = False
        try:
            self._end_all_annotations()
            if synchronize is not None:
                synchronize()
            _refuse_interference(profiler)
            profiler.stop()
            stopped = True
        finally:
            if stopped:
                self._restore_hook()
            else:
                self._force_off()
            self.stall_ns += time.perf_counter_ns() - before

    def export(self, path: Path) -> None:
        """Writes the native trace to ``path``, where an empty file may be; frees the profiler.

        Raises:
            SegmentError: Nothing was written. Kineto does not say so itself.
            Exception: What the profiler raised.
        """
        profiler = self._profiler
        if profiler is None:
            return
        before = time.perf_counter_ns()
        try:
            profiler.export_chrome_trace(str(path))
        finally:
            del profiler
            self.release()
            self.stall_ns += time.perf_counter_ns() - before
        if not path.exists() or path.stat().st_size == 0:
            message = f"nothing was written to {path.parent}; is the disk full?"
            raise SegmentError(message)

    def release(self) -> None:
        """Lets go of the profiler, whose events are freed now unless somebody else holds it.

        The profiler refers to itself through this table, and would live until the next garbage
        collection.
        """
        profiler, self._profiler = self._profiler, None
        if isinstance(profiler, torch.profiler.profile):
            profiler.action_map.clear()

    def record(
        self,
        stem: Stem,
        *,
        rank: int,
        world_size: int,
        options: dict[str, bool],
        device: str,
        error: type[BaseException] | None,
    ) -> SegmentRecord:
        """Returns what the exporter needs to know.

        Args:
            stem: The name of its files.
            rank: Global rank of this process.
            world_size: Number of ranks.
            options: The options of the profiler.
            device: ``"cuda"`` or ``"cpu"``.
            error: The type of the exception that left the region, or None.
        """
        metadata = trace_metadata(self.step)
        if error is not None:
            metadata["error"] = error.__name__
        return SegmentRecord(
            raw_path=stem.raw_path,
            directory=stem.raw_path.parent,
            stem=stem.name,
            rank=rank,
            world_size=world_size,
            index=stem.index,
            region=self.region.short_name,
            step=self.step,
            start_unix_ns=self.start_unix_ns,
            wall_ns=self.wall_ns,
            stall_ns=self.stall_ns,
            thread=self.thread,
            attributes=self.attributes,
            options=options,
            device=device,
            metadata=metadata,
        )

    def _end_all_annotations(self) -> None:
        while self._annotations:
            with contextlib.suppress(KeyError):  # its own thread was faster
                _, annotation = self._annotations.popitem()
                torch_session.end_annotation(annotation)

    def _force_off(self) -> None:
        self.recording = False
        torch_session.force_off()
        self._restore_hook()

    def _restore_hook(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None and sys.getprofile() is not hook:
            sys.setprofile(hook)


def _refuse_interference(profiler: TorchProfiler) -> None:
    if isinstance(profiler, torch.profiler.profile) and not torch_session.session_is_intact():
        message = (
            "another torch profiler was started while the region ran, which ends this one; start "
            "your own around the region or after it"
        )
        raise SegmentError(message)
