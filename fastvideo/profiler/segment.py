"""One segment: torch's profiler started at a region's entry and stopped at its exit."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from fastvideo.profiler import torch_session
from fastvideo.profiler.segment_record import SegmentRecord
from fastvideo.profiler.trace_metadata import plain, plain_attributes, trace_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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

    It belongs to the thread that makes it; only :meth:`annotate`, :meth:`end_annotation` and
    :meth:`give_up` may be called on others. Annotations that are still open when it stops are
    ended before: one that outlived its session would be written into the next.

    Attributes:
        region: The region that opened it.
        step: The step at its entry, or None.
        attributes: The entry's attributes, as plain values.
        owner: Native identifier of the thread it belongs to, which no later thread gets.
        thread: Name and native id of that thread.
        stem: The name of its files, as long as nobody else is responsible for them.
        recording: Whether annotations reach the trace.
        close_requested: Whether its own thread is to close it at the next opportunity.
        left: Whether the entry that opened it is over.
        given_up: Whether its session is not to be relied on any more, and only let go of.
        closed: Set when it is over.
        start_unix_ns: When recording began, in nanoseconds since the epoch.
        wall_ns: How long the region took.
        stall_ns: What starting, stopping and writing cost its thread.
    """

    __slots__ = (
        "_annotations",
        "_hook",
        "_profiler",
        "_session_is_open",
        "_started_ns",
        "_thread",
        "attributes",
        "close_requested",
        "closed",
        "given_up",
        "left",
        "owner",
        "recording",
        "region",
        "stall_ns",
        "start_unix_ns",
        "stem",
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
        self.owner = threading.get_native_id()
        self._thread = threading.current_thread()
        self.thread = f"{plain(self._thread.name)} ({self.owner})"
        self.stem: Stem | None = None
        self.recording = False
        self.close_requested = self.left = self.given_up = False
        self.closed = threading.Event()
        self.start_unix_ns = self.wall_ns = self.stall_ns = 0
        self._started_ns = 0
        self._session_is_open = False
        self._profiler: TorchProfiler | None = None
        self._hook: Any = None
        self._annotations: dict[int, torch_session.Annotation] = {}

    @property
    def is_mine(self) -> bool:
        """Whether it belongs to the calling thread."""
        return self.owner == threading.get_native_id()

    @property
    def owner_is_alive(self) -> bool:
        """Whether the thread it belongs to still runs."""
        if not self._thread.is_alive():
            return False
        # Python says of a thread that it did not start itself that it is alive for ever.
        if (_TASKS / str(threading.get_native_id())).exists():
            return (_TASKS / str(self.owner)).exists()
        return any(thread.native_id == self.owner for thread in threading.enumerate())

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
            self._session_is_open = True
            profiler.start()
            self.recording = True
        except BaseException:
            self.let_go()
            raise
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
        try:
            self._end_all_annotations()
            if synchronize is not None:
                synchronize()
            _refuse_interference(profiler)
            profiler.stop()
            self._session_is_open = False
        finally:
            self.let_go()
            self.stall_ns += time.perf_counter_ns() - before

    def give_up(self) -> None:
        """Ends recording without a result, on any thread.

        What torch keeps on the owner's thread stays there until :meth:`let_go`, or ends with it.
        """
        self.recording = False
        if self._session_is_open and not self.given_up:
            torch_session.clear_flag()
        self.given_up = True
        self.release()
        if not self.owner_is_alive:
            self._session_is_open = False
            self._forget_annotations()

    def let_go(self) -> None:
        """Takes back what is left of the session, on the owner's thread."""
        self.recording = False
        if self._session_is_open:
            self._session_is_open = False
            self._end_all_annotations()
            torch_session.force_off(ours=not self.given_up)
        self._restore_hook()

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
            _export(profiler, path)
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

    def take_files(self, stem: Stem) -> None:
        """Takes responsibility for the files of this name."""
        self.stem = stem

    def discard_files(self) -> None:
        """Removes the files of a segment that nobody else took responsibility for."""
        stem, self.stem = self.stem, None
        if stem is not None:
            stem.discard()

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

    def _forget_annotations(self) -> None:
        """Ends annotations whose session is gone, or keeps them from ending in somebody else's.

        Ending writes to where the annotation began, unless nothing records on this thread.
        """
        if torch_session.records_here():
            _unended.extend(self._annotations.values())
            self._annotations.clear()
        else:
            self._end_all_annotations()

    def _restore_hook(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None and sys.getprofile() is not hook:
            sys.setprofile(hook)


_TASKS: Final = Path("/proc/self/task")
_FILES: Final = Path("/proc/self/fd")
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9._/+=@,:~-]*")
_unended: list[torch_session.Annotation] = []


def _export(profiler: TorchProfiler, path: Path) -> None:
    """Writes the native trace where kineto can: it rewrites percent signs and blanks in names.

    A directory whose name it would change is reached through a descriptor.
    """
    if _PLAIN_PATH.fullmatch(str(path)) or not _FILES.exists():
        profiler.export_chrome_trace(str(path))
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        profiler.export_chrome_trace(str(_FILES / str(directory) / path.name))
    finally:
        os.close(directory)


def _refuse_interference(profiler: TorchProfiler) -> None:
    if isinstance(profiler, torch.profiler.profile) and not torch_session.session_is_intact():
        message = (
            "another torch profiler was started while the region ran, which ends this one; start "
            "your own around the region or after it"
        )
        raise SegmentError(message)
