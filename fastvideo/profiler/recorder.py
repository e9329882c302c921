"""The sink that begins and ends segments: which entry opens one, and which exit closes it."""

from __future__ import annotations

import contextlib
import operator
import shutil
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import torch

from fastvideo.logger import init_logger
from fastvideo.profiler import torch_session
from fastvideo.profiler.foreign import ForeignProfilers
from fastvideo.profiler.moves import Moves, require_stack
from fastvideo.profiler.ranks import current_rank, current_world_size
from fastvideo.profiler.segment import Segment
from fastvideo.profiler.stems import claim_stem
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
        self._left_behind: dict[int, Segment] = {}
        self._is_armed = False
        self._step: _Token | None = None
        self._begun = 0
        self._ended_because = ""
        self._kineto_is_silent = False
        self._said: set[str] = set()
        self._moves = Moves()
        self._lacked_stack = False

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
        step = _step_of(attributes) if attributes else None
        if step is not None:
            token = _Token()
            token.step, token.before = step, self._step
            self._step = token
            first, last = self.steps_seen or (step, step)
            self.steps_seen = min(first, step), max(last, step)
        if region.name not in self._selected:
            return token
        self.entered.add(region.name)
        token = token or _Token()
        try:
            self._enter_selected(token, region, annotation, attributes)
        except BaseException:  # the entry that raises is never left
            self._leave_step(token)
            if token.owns and token.segment is not None:
                self._close(token.segment, None)
            raise
        return token

    def _enter_selected(
        self, token: _Token, region: ProfilerRegion, annotation: str, attributes: Attributes
    ) -> None:
        if self._left_behind:
            self._let_go_here()
        segment = self._open
        if segment is not None and (segment.close_requested or not segment.is_mine):
            self._settle(segment)
            segment = self._open
        if segment is None:
            self._open_or_annotate(token, region, annotation, attributes)
        else:
            token.segment = segment
            token.annotation = segment.annotate(annotation)

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
        if token.owns:
            segment.left = segment.close_requested = True
        elif annotation is not None:
            segment.end_annotation(annotation)
        if segment.close_requested:
            require_stack()
            self._close(segment, error)

    def _leave_step(self, token: _Token) -> None:
        token.done = True
        before, token.before = token.before, None
        if token is self._step:
            self._step = before if before is not None and not before.done else None

    def close_open(self, timeout_s: float) -> bool:
        """Closes the segment that is open, if there is one.

        A segment of another thread is closed by that thread, at its next entry or exit. If that
        thread has ended, its segment is given up.

        Args:
            timeout_s: How long to wait for another thread, in seconds.

        Returns:
            Whether no segment is open any more.
        """
        self._say_what_lacked_stack()
        segment = self._open
        if segment is None:
            return True
        if segment.is_mine:
            self._close(segment, None)
        elif segment.owner_is_alive and segment.recording:
            segment.close_requested = True
            segment.closed.wait(timeout_s)
        else:
            self._give_up(segment, "ended", timeout_s=timeout_s)
        return self._open is not segment

    def give_up_open(self) -> None:
        """Gives up the segment that :meth:`close_open` could not close, and its files."""
        segment = self._open
        if segment is not None:
            self._give_up(segment, "", timeout_s=_OTHER_THREAD_S)

    def arm(self) -> None:
        """Begins to watch for the profilers of others."""
        self._is_armed = True
        self.foreign.watch()

    def disarm(self) -> None:
        """Ends what :meth:`arm` began, as soon as no thread keeps a session of ours."""
        self._is_armed = False
        self._unwatch_if_done()

    def when_settled(self, action: Callable[[], None]) -> None:
        """Runs ``action`` now, or as soon as this thread has finished opening or closing.

        A signal handler runs in the middle of whatever its thread does; the profiler must not be
        stopped while it is being started.
        """
        self._moves.when_settled(action)

    def abandon(self) -> None:
        """Forgets the open segment without touching it: what a forked child does."""
        self._open = None
        self._left_behind = {}
        self._moves = Moves()
        self._ended_because = "forked"

    def _open_or_annotate(
        self, token: _Token, region: ProfilerRegion, annotation: str, attributes: Attributes
    ) -> None:
        step = self._step.step if self._step is not None else None
        if self.paused or self._ended_because or not self._config.selects_step(step):
            return
        try:
            require_stack()
        except RecursionError:
            self.counters["skipped"] += 1
            self._lacked_stack = True
            return
        self._say_what_lacked_stack()
        with self._moves.taken() as taken:
            if not taken or self._open is not None:
                return
            if self.foreign.present():
                self._skip("foreign")
                token.annotation = torch_session.begin_annotation(annotation)
            elif self._may_begin():
                self._begin(token, region, annotation, attributes)

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
        if self._config.with_stack and torch_session.a_hook_cannot_be_restored():
            self._skip("hook")
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
                claim_stem(
                    self._directory, current_rank(), region.short_name, tell=segment.take_files
                )
            segment.stall_ns = time.perf_counter_ns() - before
            self._start(segment)
            token.annotation = segment.annotate(annotation)
            token.segment_file = None if segment.stem is None else segment.stem.trace_file
        except Exception as error:  # noqa: BLE001 - profiling never stops training
            self._fail("begin", segment, error)
        except BaseException:
            self.counters["failed"] += 1
            self._dispose_of(segment)
            raise

    def _start(self, segment: Segment) -> None:
        silence = (
            contextlib.nullcontext if self._kineto_is_silent else torch_session.kineto_silenced
        )
        with self.foreign.own(), silence():
            segment.start(self._new_profiler(), keep_hook=self._config.with_stack)
        self._kineto_is_silent = True

    def _make_way(self) -> None:
        """Ends the open segment, because another profiler is about to begin."""
        with self._moves.taken(_OTHER_THREAD_S):
            segment = self._open
        if segment is not None and segment.recording:
            self._say_once("displaced")
            if not self.close_open(_OTHER_THREAD_S):
                self.give_up_open()
        self._let_go_here()

    def _settle(self, segment: Segment) -> None:
        """Closes a segment whose end is due, or gives up one that nobody is going to close."""
        if segment.is_mine:
            require_stack()
            self._close(segment, None)
        elif not segment.owner_is_alive:
            self._give_up(segment, "ended")
        elif segment.left:
            self._give_up(segment, "left")

    def _close(self, segment: Segment, error: type[BaseException] | None) -> None:
        if not segment.is_mine:
            segment.close_requested = True
            return
        with self._moves.taken(_OTHER_THREAD_S) as taken:
            if taken and not segment.closed.is_set():
                self._end(segment, error)
        if segment.given_up:
            self._let_go_here()

    def _end(self, segment: Segment, error: type[BaseException] | None) -> None:
        try:
            if segment.recording:
                self._finish(segment, error)
        except BaseException:
            self.counters["failed"] += 1
            raise
        finally:
            self._dispose_of(segment)

    def _dispose_of(self, segment: Segment) -> None:
        """Sees that nothing is left of a segment of this thread, however it ended."""
        self._open = None
        try:
            segment.let_go()
        finally:
            segment.release()
            segment.discard_files()
            segment.closed.set()

    def _give_up(self, segment: Segment, reason: str, *, timeout_s: float = 0.0) -> None:
        """Makes room for other segments, where the thread of this one cannot close it.

        Its session stays with that thread, which lets go of it at its next entry or exit.

        Args:
            segment: The open segment.
            reason: Key of what is logged; "": the caller says it.
            timeout_s: How long to wait for a thread that is opening or closing, in seconds.
        """
        with self._moves.taken(timeout_s) as taken:
            if not taken or segment is not self._open:
                return
            self._open = None
            was_recording = segment.recording
            segment.give_up()
            segment.discard_files()
            if segment.owner_is_alive:
                self._left_behind[segment.owner] = segment
            segment.closed.set()
        if was_recording:
            self.counters["failed"] += 1
            if reason and reason not in self._said:
                self._said.add(reason)
                logger.warning(_LOST[reason], segment.thread, segment.region.short_name)

    def _let_go_here(self) -> None:
        """Ends the session of a given-up segment that this thread keeps, once no other one runs."""
        thread = threading.get_native_id()
        if thread not in self._left_behind:
            return
        with self._moves.taken() as taken:
            if not taken or self.is_recording or self.foreign.keep_kineto_busy():
                return
            self._left_behind.pop(thread).let_go()
        self._unwatch_if_done()

    def _unwatch_if_done(self) -> None:
        kept = list(self._left_behind.values())
        if not self._is_armed and not any(segment.owner_is_alive for segment in kept):
            self.foreign.unwatch()

    def _say_what_lacked_stack(self) -> None:
        if self._lacked_stack:
            self._lacked_stack = False
            self._say_once("stack")

    def _finish(self, segment: Segment, error: type[BaseException] | None) -> None:
        """Stops, writes and hands over: all that the training thread does."""
        try:
            segment.stop(synchronize=self._synchronize)
        except Exception as failure:  # noqa: BLE001 - profiling never stops training
            self._fail("stop", segment, failure)
            return
        stem = segment.stem
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
        segment.stem = None
        self._submit(record)
        self.counters["recorded"] += 1

    def _fail(self, phase: str, segment: Segment, error: Exception) -> None:
        """Counts a failed segment, removes its files, and says it once per kind of failure."""
        self.counters["failed"] += 1
        segment.release()
        segment.discard_files()
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


def _step_of(attributes: Attributes) -> int | None:
    """Returns the step that an entry names: any kind of whole number, but nothing on a device."""
    given: Any = attributes.get("step")
    if given is None or (isinstance(given, torch.Tensor) and not _is_cheap(given)):
        return None
    try:
        step = operator.index(given)
    except Exception:  # noqa: BLE001 - then it is no whole number
        return None
    return step if step.bit_length() <= _STEP_BITS else None


def _is_cheap(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor can be read without waiting for anything."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and tensor.dim() == 0


_STEP_BITS: Final = 63

_LOST: Final = {
    "ended": (
        "kernel trace: thread %s has ended inside region %s, and the segment is lost with it; a "
        "region is to be left on the thread that enters it"
    ),
    "left": (
        "kernel trace: thread %s entered region %s, which was left on another one; only its own "
        "could have closed the segment, which is given up for the next one"
    ),
}

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
    "hook": (
        "kernel trace: cProfile or another profiler written in C runs on this thread, which "
        "FASTVIDEO_TORCH_PROFILER_WITH_STACK would end, so no segment is written to %s meanwhile"
    ),
    "stack": (
        "kernel trace: a region was entered so deep in nested calls that a profiler could not be "
        "started there; its segment is missing from %s"
    ),
    "foreign": (
        "kernel trace: another torch profiler runs in this process, so regions are annotated in "
        "it and no segment is written to %s meanwhile"
    ),
}
