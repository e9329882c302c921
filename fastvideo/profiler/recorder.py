"""The sink that begins and ends segments: which entry opens one, and which exit closes it."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger
from fastvideo.profiler import torch_session
from fastvideo.profiler.foreign import ForeignProfilers
from fastvideo.profiler.ranks import current_rank, current_world_size
from fastvideo.profiler.segment import Segment
from fastvideo.profiler.stems import Stem, claim_stem
from fastvideo.profiler.trace_words import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastvideo.profiler.config import TorchProfilerConfig
    from fastvideo.profiler.registry import ProfilerRegion
    from fastvideo.profiler.segment import TorchProfiler
    from fastvideo.profiler.segment_record import SegmentRecord
    from fastvideo.profiler.sinks import Attributes

logger = init_logger(__name__)

_OTHER_THREAD_S: Final = 1.0
_STEP: Final = "training_train_one_step"


class _Token:
    """What one entry of a region has to undo at its exit.

    Attributes:
        segment_file: Name of the trace that the entry opened, or None; for who links to it.
    """

    __slots__ = ("annotation", "before", "done", "owns", "segment", "segment_file", "step")

    def __init__(self) -> None:
        self.done = False
        self.segment_file: str | None = None
        self.segment: Segment | None = None
        self.annotation: torch_session.Annotation | None = None
        self.owns = False
        self.step: int | None = None
        self.before: _Token | None = None


class SegmentRecorder:
    """Records one segment per outermost entry of a selected region.

    A thread never waits for another one here: an entry that cannot open a segment because another
    thread is opening or closing one goes unrecorded.

    Attributes:
        entered: Long names of the selected regions that were entered.
        counters: Segments by what became of them: ``recorded`` (handed over for export),
            ``failed``, and ``skipped`` (not begun: cap, disk, foreign profiler).
        steps_seen: First and last step that a region was entered in so far, or None.
        world_size: Number of ranks when a segment was last to begin, as far as it was known.
        paused: Whether no new segments are begun for the time being.
        foreign: The profilers of others, which segments make way for.
    """

    def __init__(
        self,
        config: TorchProfilerConfig,
        *,
        new_profiler: Callable[[], TorchProfiler],
        submit: Callable[[SegmentRecord], None],
        directory: Path | None,
        device: str = "cpu",
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        """Records nothing until regions are entered.

        Args:
            config: What to record.
            new_profiler: Makes a profiler that was never started.
            submit: Takes over a finished segment.
            directory: Absolute directory of the traces; None: nothing is written, which leaves
                the traces to the profilers' own handlers.
            device: ``"cuda"`` when CUDA is recorded, else ``"cpu"``.
            synchronize: Waits for the device.
        """
        self.entered: set[str] = set()
        self.counters: Counter[str] = Counter()
        self.steps_seen: tuple[int, int] | None = None
        self.world_size = 1
        self.paused = False
        self.foreign = ForeignProfilers(self._make_way)
        self._config = config
        self._selected = frozenset(config.regions)
        self._new_profiler = new_profiler
        self._submit = submit
        self._directory = directory
        self._device = device
        self._synchronize = synchronize
        self._open: Segment | None = None
        self._stem: Stem | None = None
        self._step: _Token | None = None
        self._begun = 0
        self._ended_because = ""
        self._kineto_is_silent = False
        self._said: set[str] = set()
        self._moving = threading.Lock()
        self._moving_thread = 0
        self._afterwards: list[tuple[int, Callable[[], None]]] = []

    @property
    def is_recording(self) -> bool:
        """Whether a segment is open and records."""
        segment = self._open
        return segment is not None and segment.recording

    def wants(self, region: ProfilerRegion) -> bool:
        """Wants the selected regions, and whatever may say which step runs."""
        if region.name in self._selected or region.short_name == _STEP:
            return True
        return bool(self._config.steps)

    def enter(
        self, region: ProfilerRegion, annotation: str, attributes: Attributes
    ) -> _Token | None:
        """Opens a segment, or annotates the open one; None when there is nothing to undo."""
        token: _Token | None = None
        step = attributes.get("step") if attributes else None
        if isinstance(step, int):
            token = _Token()
            token.step, token.before = step, self._step
            self._step = token
            first, last = self.steps_seen or (step, step)
            self.steps_seen = min(first, step), max(last, step)
        if region.name not in self._selected:
            return token
        self.entered.add(region.name)
        token = token or _Token()
        segment = self._open
        if segment is not None and segment.close_requested:
            self._close(segment, None)
            segment = self._open
        if segment is None:
            self._open_or_annotate(token, region, annotation, attributes)
        else:
            token.segment = segment
            token.annotation = segment.annotate(annotation)
        return token

    def exit(self, token: object, error: type[BaseException] | None) -> None:
        """Closes what the entry opened, in whatever order and on whatever thread exits come."""
        if not isinstance(token, _Token):
            return
        self._leave_step(token)
        segment, annotation = token.segment, token.annotation
        if segment is None:
            if annotation is not None:
                torch_session.end_annotation(annotation)
            return
        if annotation is not None and not token.owns:
            segment.end_annotation(annotation)
        if token.owns or segment.close_requested:
            self._close(segment, error)

    def _leave_step(self, token: _Token) -> None:
        token.done = True
        before, token.before = token.before, None
        if token is self._step:
            self._step = before if before is not None and not before.done else None

    def close_open(self, timeout_s: float) -> bool:
        """Closes the segment that is open, if there is one.

        A segment of another thread is closed by that thread, at its next entry or exit.

        Args:
            timeout_s: How long to wait for another thread, in seconds.

        Returns:
            Whether no segment is open any more.
        """
        segment = self._open
        if segment is None:
            return True
        if segment.owner == threading.get_ident():
            self._close(segment, None)
        else:
            segment.close_requested = True
            segment.closed.wait(timeout_s)
        return self._open is not segment

    def when_settled(self, action: Callable[[], None]) -> None:
        """Runs ``action`` now, or as soon as this thread has finished opening or closing.

        A signal handler runs in the middle of whatever its thread does; the profiler must not be
        stopped while it is being started.
        """
        thread = threading.get_ident()
        if self._moving_thread == thread:
            self._afterwards.append((thread, action))
        else:
            action()

    def abandon(self) -> None:
        """Forgets the open segment without touching it: what a forked child does."""
        self._open = self._stem = None
        self._moving = threading.Lock()
        self._afterwards.clear()
        self._ended_because = "forked"

    def _open_or_annotate(
        self, token: _Token, region: ProfilerRegion, annotation: str, attributes: Attributes
    ) -> None:
        step = self._step.step if self._step is not None else None
        if self.paused or self._ended_because or not self._config.selects_step(step):
            return
        if not self._begin_move():
            return
        try:
            if self._open is not None:
                return
            if self.foreign.present():
                self._skip("foreign")
                token.annotation = torch_session.begin_annotation(annotation)
            elif self._may_begin():
                self._begin(token, region, annotation, attributes)
        finally:
            self._end_move()

    def _may_begin(self) -> bool:
        self.world_size = max(self.world_size, current_world_size())
        if not self._config.selects_rank(current_rank()):
            return False
        if self._begun >= self._config.max_segments:
            self._ended_because = "cap"
        elif self._disk_is_full():
            self._ended_because = "disk"
        if self._ended_because:
            self._skip(self._ended_because)
            return False
        return self._device != "cuda" or not torch_session.a_graph_is_captured()

    def _disk_is_full(self) -> bool:
        if self._directory is None:
            return False
        try:
            return shutil.disk_usage(self._directory).free < self._config.min_free_bytes
        except OSError:
            return False  # taking the name says what is wrong

    def _begin(
        self, token: _Token, region: ProfilerRegion, annotation: str, attributes: Attributes
    ) -> None:
        """Starts a segment. One that fails still stands open, so that nothing nested tries too."""
        before = time.perf_counter_ns()
        step = self._step.step if self._step is not None else None
        segment = Segment(region, step=step, attributes=attributes)
        token.segment, token.owns = segment, True
        self._open = segment
        self._begun += 1
        try:
            if self._directory is not None:
                self._stem = claim_stem(self._directory, current_rank(), region.short_name)
            segment.stall_ns = time.perf_counter_ns() - before
            self._start(segment)
            token.annotation = segment.annotate(annotation)
            token.segment_file = None if self._stem is None else self._stem.trace_file
        except Exception as error:  # noqa: BLE001 - profiling never stops training
            self._fail("begin", segment, error)

    def _start(self, segment: Segment) -> None:
        silence = (
            contextlib.nullcontext if self._kineto_is_silent else torch_session.kineto_silenced
        )
        with self.foreign.own(), silence():
            segment.start(self._new_profiler(), keep_hook=self._config.with_stack)
        self._kineto_is_silent = True

    def _make_way(self) -> None:
        """Ends the open segment, because another profiler is about to begin."""
        if self.is_recording:
            self._say_once("displaced")
            self.close_open(_OTHER_THREAD_S)

    def _close(self, segment: Segment, error: type[BaseException] | None) -> None:
        if segment is not self._open:
            return
        if segment.owner != threading.get_ident():
            segment.close_requested = True
            return
        if not self._begin_move(timeout_s=_OTHER_THREAD_S):
            return
        try:
            if segment.recording:
                self._finish(segment, error)
        finally:
            stem, self._stem = self._stem, None
            self._open = None
            segment.release()
            if stem is not None:
                stem.discard()
            segment.closed.set()
            self._end_move()

    def _finish(self, segment: Segment, error: type[BaseException] | None) -> None:
        """Stops, writes and hands over: all that the training thread does."""
        try:
            segment.stop(synchronize=self._synchronize)
        except Exception as failure:  # noqa: BLE001 - profiling never stops training
            self._fail("stop", segment, failure)
            return
        stem = self._stem
        if stem is None:
            self.counters["recorded"] += 1
            return
        try:
            segment.export(stem.raw_path)
            record = segment.record(
                stem,
                rank=current_rank(),
                world_size=current_world_size(),
                options=self._config.options,
                device=self._device,
                error=error,
            )
        except Exception as failure:  # noqa: BLE001 - profiling never stops training
            self._fail("write", segment, failure)
            return
        self._stem = None
        self._submit(record)
        self.counters["recorded"] += 1

    def _fail(self, phase: str, segment: Segment, error: Exception) -> None:
        """Counts a failed segment, removes its files, and says it once per kind of failure."""
        self.counters["failed"] += 1
        stem, self._stem = self._stem, None
        segment.release()
        if stem is not None:
            stem.discard()
        kind = f"{phase} {type(error).__name__}"
        if kind in self._said:
            logger.debug("kernel trace: cannot %s a segment: %r", phase, error)
            return
        self._said.add(kind)
        logger.error(
            "kernel trace: cannot %s the segment of region %s (%s: %s). Training goes on without "
            "it; the directory is %s. Later failures of this kind are only counted",
            phase,
            segment.region.short_name,
            type(error).__name__,
            error,
            self._directory,
        )

    def _skip(self, reason: str) -> None:
        self.counters["skipped"] += 1
        self._say_once(reason)

    def _say_once(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            logger.warning(_WARNINGS[reason], self._reason_value(reason))

    def _reason_value(self, reason: str) -> object:
        if reason != "cap":
            return self._directory
        count = self._config.max_segments
        return f"{counted(count, 'segment')} {'was' if count == 1 else 'were'}"

    def _begin_move(self, timeout_s: float = 0.0) -> bool:
        """Takes the right to start or stop a profiler; False when it is taken.

        Only a thread that finds out that it came too late holds it while a segment is open, so
        the thread that closes one waits for an instant at most.
        """
        thread = threading.get_ident()
        if self._moving_thread == thread or not self._moving.acquire(timeout=timeout_s):
            return False
        self._moving_thread = thread
        return True

    def _end_move(self) -> None:
        thread = threading.get_ident()
        self._moving_thread = 0
        self._moving.release()
        for entry in [entry for entry in self._afterwards if entry[0] == thread]:
            self._afterwards.remove(entry)
            entry[1]()


_WARNINGS: Final = {
    "cap": (
        "kernel trace: %s recorded, no more will be in this process; raise "
        "FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS, or choose steps with FASTVIDEO_TORCH_PROFILE_STEPS"
    ),
    "disk": (
        "kernel trace: the disk of %s has less than 2 GiB free, no more segments are recorded in "
        "this process"
    ),
    "displaced": (
        "kernel trace: another torch profiler begins inside a region, whose segment in %s ends "
        "here, for there can be only one"
    ),
    "foreign": (
        "kernel trace: another torch profiler runs in this process, so regions are annotated in "
        "it and no segment is written to %s meanwhile"
    ),
}
