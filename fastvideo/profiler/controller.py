"""Kernel tracing of one process: armed once, it records a segment per selected region."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.profiler import ProfilerActivity

from fastvideo.logger import init_logger
from fastvideo.profiler import torch_session, trace_report
from fastvideo.profiler.config import TorchProfilerConfig
from fastvideo.profiler.export import SegmentExporter
from fastvideo.profiler.lifecycle import LifecycleHooks
from fastvideo.profiler.nvtx import start_region_ranges
from fastvideo.profiler.passing import must_pass
from fastvideo.profiler.ranks import current_rank, current_world_size
from fastvideo.profiler.recorder import SegmentRecorder
from fastvideo.profiler.region import (
    ANNOTATION_PREFIX,
    attach,
    detach,
    profiler_region,
    resolve_profiler_region,
)
from fastvideo.profiler.registry import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from fastvideo.profiler.lifecycle import Chain
    from fastvideo.profiler.segment import TorchProfiler
    from fastvideo.profiler.segment_record import SegmentRecord

logger = init_logger(__name__)

_STOP_S: Final = 30.0
_SIGTERM_S: Final = 10.0
_HELPER_ENDS_S: Final = 1.0
_OTHER_THREAD_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ExportTotals:
    """What exporting segments took, all of it off the training thread.

    Attributes:
        segments: Segments that are done with.
        seconds: Time it took.
        written_bytes: Size of the traces on disk.
    """

    segments: int
    seconds: float
    written_bytes: int


class TorchProfilerController:
    """Decides for one process what is traced, and writes it.

    Between :meth:`start` and :meth:`stop` it listens to every region of the process. Nothing it
    does raises into the traced program: what goes wrong is logged once and counted.

    Attributes:
        config: What is traced.
        trace_dir: Absolute directory of the traces; None: nothing is written.
    """

    def __init__(
        self,
        profiler: TorchProfiler | None,
        activities: Iterable[ProfilerActivity],
        config: TorchProfilerConfig | None = None,
        disabled: bool = False,  # noqa: FBT001, FBT002 - the signature is older than this class
        profiler_factory: Callable[[], TorchProfiler] | None = None,
        trace_dir: str | os.PathLike[str] | None = None,
        *,
        exporter_factory: Callable[..., SegmentExporter] = SegmentExporter,
    ) -> None:
        """Prepares a controller; nothing happens before :meth:`start`.

        Args:
            profiler: A profiler that was never started, which the first segment uses; or None.
            activities: What is recorded; activities this machine does not have are left out.
            config: What is traced; None: as the environment says.
            disabled: Whether this controller never does anything.
            profiler_factory: Makes the profiler of one segment; None: ``torch.profiler.profile``
                with the options of ``config``.
            trace_dir: Directory of the traces; ``~`` is expanded, and a relative path is resolved
                now. None: nothing is written, which leaves it to the profilers' own handlers.
            exporter_factory: Makes what exports segments, called like :class:`SegmentExporter`.

        Raises:
            ValueError: ``config`` is None and the environment selects no registered region.
        """
        sources = (profiler, profiler_factory, trace_dir)
        self._enabled = not disabled and any(source is not None for source in sources)
        if config is None:
            config = TorchProfilerConfig.from_env() if self._enabled else _NOTHING
        self.config = config
        self.trace_dir = _absolute(trace_dir) if trace_dir else None
        present = torch_session.existing_activities()
        self._activities = tuple(one for one in activities if one in present)
        self._first_profiler = profiler
        self._factory = profiler_factory or functools.partial(
            _torch_profiler, self._activities or present[:1], config
        )
        self._exporter_factory = exporter_factory
        self._exporters: dict[int, SegmentExporter] = {}
        self._exported: Counter[str] = Counter()
        self._exports = ExportTotals(0, 0.0, 0)
        self._hooks = LifecycleHooks(self)
        self._recorder = self._new_recorder()
        self._started = self._forked = self._announced = self._ranks_are_checked = False
        self._end_by: float | None = None
        self._lock = threading.RLock()

    @property
    def is_enabled(self) -> bool:
        """Whether a segment is being recorded right now."""
        return self._recorder.is_recording

    @property
    def has_profiler(self) -> bool:
        """Whether this controller can record at all."""
        return self._enabled

    @property
    def is_started(self) -> bool:
        """Whether every region of the process reaches this controller, without :meth:`region`."""
        return self._started

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child's copy, which never records."""
        return self._forked

    @property
    def activities(self) -> tuple[ProfilerActivity, ...]:
        """What is recorded, as far as this machine has it."""
        return self._activities

    @property
    def counters(self) -> dict[str, int]:
        """Segments by what became of them.

        ``recorded``, ``failed`` and ``skipped`` are counted on the training thread;
        ``exported_<status>`` when the exporter reports, by the status in the segment index.
        """
        for exporter in list(self._exporters.values()):
            exporter.poll()
        return {**self._recorder.counters, **self._exported}

    @property
    def exports(self) -> ExportTotals:
        """What exporting took so far, as far as the exporter has reported."""
        for exporter in list(self._exporters.values()):
            exporter.poll()
        return self._exports

    def is_region_enabled(self, name: str) -> bool:
        """Tells whether entries of the region called ``name`` are recorded."""
        return self._enabled and self.config.selects_region(name)

    def region(self, name: str) -> AbstractContextManager[object, bool | None]:
        """Marks the body of a ``with`` statement as an entry of a region.

        The same as :func:`profiler_region` while this controller is started; before, it records
        for this controller alone.

        Args:
            name: A registered name, short or long.
        """
        region = resolve_profiler_region(name)
        if self._started or region is None or not self.is_region_enabled(region.name):
            return profiler_region(name)
        if torch.compiler.is_compiling():
            return profiler_region(name)
        return _DirectEntry(self._recorder, name)

    def start(self) -> None:
        """Arms tracing: from now on, selected regions of this process are recorded."""
        with self._lock:
            if not self._enabled or self._started:
                return
            self._started = True
            self._end_by = None
            torch_session.warm_up()
            self._announce()
            selected = self.config.selects_rank(current_rank())
            if selected and self.trace_dir is not None:
                self._exporter_of(self.trace_dir, current_rank())
            if selected and self.config.with_stack:
                logger.warning(
                    "kernel trace: FASTVIDEO_TORCH_PROFILER_WITH_STACK slows everything inside a "
                    "segment, torch.compile most, and replaces a sys.setprofile hook meanwhile"
                )
            self._recorder.arm()
            attach(self._recorder)
            self._hooks.install()

    def stop(self) -> None:
        """Closes the open segment, waits for what is being exported, and disarms.

        Waits half a minute at most, and after SIGTERM for what is left of its ten seconds; the
        helper process goes on with the rest. Further calls do nothing; :meth:`start` arms again.
        """
        with self._lock:
            if not self._started:
                return
            self._started = False
            detach(self._recorder)
            self._end_open_segment()
            self._recorder.disarm()
            end_by = time.monotonic() + _STOP_S if self._end_by is None else self._end_by
            for exporter in self._exporters.values():
                exporter.close(max(_HELPER_ENDS_S, end_by - time.monotonic()))
            self._exporters.clear()
            self._hooks.remove()
            self._report()

    def at_exit(self) -> None:
        """Stops at the end of the process."""
        self.stop()

    def on_sigterm(self, chain: Chain) -> None:
        """Closes the open segment and flushes, then does what SIGTERM did before.

        Waiting takes ten seconds at most, together with a :meth:`stop` that what SIGTERM did
        before leads to.

        Args:
            chain: What it did before.
        """

        def finish() -> None:
            self._recorder.paused = True
            before = self._end_by  # of a signal that is being handled: another one adds no time
            self._end_by = time.monotonic() + _SIGTERM_S if before is None else before
            try:
                self._end_open_segment()
                for exporter in list(self._exporters.values()):
                    exporter.flush(max(0.0, self._end_by - time.monotonic()))
            except Exception as error:
                if must_pass(error):
                    raise
                logger.exception("kernel trace: cannot finish before the process is terminated")
            finally:
                try:
                    chain()
                finally:
                    self._recorder.paused = False
            self._end_by = before  # unless the program ends by an exception

        self._recorder.when_settled(finish)

    def in_child(self) -> None:
        """Becomes inert: a forked child has neither the threads nor the files of its parent."""
        if self._recorder.is_recording:
            torch_session.release_after_fork()
        self._forked = True
        self._recorder.abandon()
        self._recorder.foreign.unwatch()
        self._exporters = {}
        self._enabled = self._started = False
        self._lock = threading.RLock()

    def _end_open_segment(self) -> None:
        if not self._recorder.close_open(_OTHER_THREAD_S):
            self._recorder.give_up_open()
            logger.error(
                "kernel trace: the segment that is open on another thread could not be closed "
                "and is lost; only its own thread can do that, by leaving the region"
            )

    def _new_recorder(self) -> SegmentRecorder:
        on_cuda = ProfilerActivity.CUDA in self._activities
        return SegmentRecorder(
            self.config,
            new_profiler=self._new_profiler,
            submit=self._submit,
            directory=self.trace_dir,
            device="cuda" if on_cuda else "cpu",
            synchronize=torch.cuda.synchronize if on_cuda else None,
        )

    def _new_profiler(self) -> TorchProfiler:
        given, self._first_profiler = self._first_profiler, None
        return given if given is not None else self._factory()

    def _submit(self, record: SegmentRecord) -> None:
        self._exporter_of(record.directory, record.rank).submit(record)

    def _exporter_of(self, directory: Path, rank: int) -> SegmentExporter:
        """Returns the exporter of ``rank``; a rank known late gets its own."""
        exporter = self._exporters.get(rank)
        if exporter is None:
            self._announce()
            exporter = self._exporter_factory(directory, rank, on_finished=self._on_finished)
            self._exporters[rank] = exporter
            exporter.start()
        return exporter

    def _on_finished(self, line: dict[str, Any]) -> None:
        self._exported[f"exported_{line['status']}"] += 1
        before = self._exports
        self._exports = ExportTotals(
            before.segments + 1,
            before.seconds + (line.get("export_s") or 0.0),
            before.written_bytes + (line.get("bytes") or 0),
        )

    def _announce(self) -> None:
        """Says what is traced and where, and what cannot be, once."""
        if self.trace_dir is None or self._announced:
            return
        self._announced = True
        trace_report.announce(self.trace_dir, self.config)
        self._ranks_are_checked = trace_report.warn_of_missing_ranks(self.config)

    def _report(self) -> None:
        """Says how tracing went, and why there is nothing where something was expected."""
        recorder, counters = self._recorder, self.counters
        if not self._ranks_are_checked:
            world_size = max(recorder.world_size, current_world_size())
            self._ranks_are_checked = trace_report.warn_of_missing_ranks(self.config, world_size)
        if self.config.selects_rank(current_rank()):
            if recorder.entered and not any(counters.values()):
                trace_report.warn_of_no_segment(self.config, recorder.entered, recorder.steps_seen)
            self._say_what_was_never_entered()
        if self.trace_dir is not None:
            trace_report.report_end(self.trace_dir, counters)

    def _say_what_was_never_entered(self) -> None:
        missing = sorted(self.config.regions - self._recorder.entered)
        if missing:
            names = ", ".join(name.removeprefix(PREFIX) for name in missing)
            logger.warning(
                "kernel trace: enabled but never entered in this process: %s (inside of compiled "
                "functions, regions are not recorded)",
                names,
            )


class _DirectEntry:
    """One entry of a region that only one controller hears of."""

    __slots__ = ("_name", "_recorder", "_token")

    def __init__(self, recorder: SegmentRecorder, name: str) -> None:
        self._recorder = recorder
        self._name = name
        self._token: object = None

    def __enter__(self) -> None:
        region = resolve_profiler_region(self._name)
        if region is not None:
            self._token = self._recorder.enter(region, ANNOTATION_PREFIX + self._name, {})

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recorder.exit(self._token, error_type)


_NOTHING: Final = TorchProfilerConfig(frozenset())

_global_controller: TorchProfilerController | None = None
_global_lock = threading.Lock()


def get_or_create_profiler(trace_dir: str | os.PathLike[str] | None) -> TorchProfilerController:
    """Returns the controller of this process, armed; the first call makes it.

    Args:
        trace_dir: Directory of the traces. Blank or None: tracing is off, unless an earlier call
            turned it on.

    Returns:
        The controller that all pipelines of the process share, or one that does nothing.

    Raises:
        ValueError: The environment selects no registered region, or holds a value that cannot be
            parsed.
    """
    start_region_ranges()
    with _global_lock:
        present = get_global_controller()
        if present is not None and (present.has_profiler or present.is_forked):
            present.start()
            return present
        if not trace_dir or not os.fspath(trace_dir).strip():
            return TorchProfilerController(None, (), disabled=True)
        controller = TorchProfilerController(
            None, torch_session.existing_activities(), trace_dir=trace_dir
        )
        controller.start()
        set_global_controller(controller)
        return controller


def get_global_controller() -> TorchProfilerController | None:
    """Returns the controller of this process, or None."""
    return _global_controller


def set_global_controller(controller: TorchProfilerController | None) -> None:
    """Makes ``controller`` the one that :func:`get_or_create_profiler` returns from now on."""
    global _global_controller  # noqa: PLW0603 - part of the public interface since before
    _global_controller = controller


def _torch_profiler(
    activities: tuple[ProfilerActivity, ...], config: TorchProfilerConfig
) -> TorchProfiler:
    return torch.profiler.profile(
        activities=activities,
        record_shapes=config.record_shapes,
        profile_memory=config.profile_memory,
        with_stack=config.with_stack,
        with_flops=config.with_flops,
    )


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 - Path.expanduser can raise
