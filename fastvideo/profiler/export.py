"""Hands finished segments to whoever exports them, and never makes the training thread wait.

A helper process does the work. When it cannot start, or ends before its time, the same function
runs on a daemon thread of this process instead: slower for training, but nothing is lost.
"""

from __future__ import annotations

import collections
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger
from fastvideo.profiler.export_process import HelperProcess
from fastvideo.profiler.export_thread import ExportThread
from fastvideo.profiler.segment_export import keep_native
from fastvideo.profiler.segment_record import SegmentRecord
from fastvideo.profiler.strict_json import dumps
from fastvideo.profiler.trace_words import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["SegmentExporter", "SegmentRecord"]

logger = init_logger(__name__)

MAX_WAITING: Final = 512
"""Segments that may wait for export. More than the most a process records by default."""

_WAIT_S: Final = 0.2
_LOUD: Final = {"failed", "summary_failed", "no_kernels", "kernels_lost"}


class SegmentExporter:
    """Exports segments of one rank away from the training thread.

    No method raises, and only :meth:`flush` and :meth:`close` wait. All of them may be called from
    any thread, from a signal handler, and, to no effect, in a forked child.

    Attributes:
        directory: Where the segments are written.
        rank: The rank they belong to.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        *,
        on_finished: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Starts nothing yet.

        Args:
            directory: Absolute directory of the traces.
            rank: Global rank of this process.
            on_finished: Called with the index line of each segment that is done, on the thread
                that happens to notice: one that submits, polls, flushes or closes.
        """
        self.directory = directory
        self.rank = rank
        self._on_finished = on_finished
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._helper: HelperProcess | None = None
        self._thread: ExportThread | None = None
        self._waiting: dict[int, SegmentRecord] = {}
        self._next_job = 0
        self._finished: collections.deque[dict[str, Any]] = collections.deque()
        self._said: set[str] = set()
        self._closed = False

    def start(self) -> None:
        """Starts the helper, or says once in the log why there is none."""
        if self._foreign or self._closed:
            return
        with self._lock:
            if self._helper is None and self._thread is None:
                try:
                    self._helper = HelperProcess()
                except Exception as error:  # noqa: BLE001 - profiling never stops training
                    self._use_thread(f"cannot start: {error}")

    def submit(self, record: SegmentRecord) -> None:
        """Queues one segment for export. Returns at once.

        A segment that finds :data:`MAX_WAITING` others waiting is not exported; its native trace
        is kept, and the log says where.
        """
        if self._foreign:
            return
        self.start()
        with self._lock:
            if self._closed or len(self._waiting) >= MAX_WAITING:
                self._refuse(record)
                return
            job = self._next_job
            self._next_job += 1
            self._waiting[job] = record
            if self._helper is not None:
                self._helper.send(_job_line(job, record))
            elif self._thread is not None:
                self._thread.submit(job, record)
        self._collect()

    def poll(self) -> list[dict[str, Any]]:
        """Returns the index lines of the segments finished since the last call, without waiting.

        They are the objects that ``segments_rank<N>.jsonl`` holds.
        """
        if self._foreign:
            return []
        self._collect()
        lines = []
        while self._finished:
            lines.append(self._finished.popleft())
        return lines

    def flush(self, timeout_s: float) -> bool:
        """Waits for everything that was submitted.

        Args:
            timeout_s: How long at most, in seconds.

        Returns:
            Whether all of it is done.
        """
        if self._foreign:
            return True
        deadline = time.monotonic() + timeout_s
        while True:
            self._collect()
            left = deadline - time.monotonic()
            if not self._waiting:
                return True
            if left <= 0:
                return False
            self._wait(min(left, _WAIT_S))

    def close(self, timeout_s: float) -> bool:
        """Flushes, then ends the helper. Later calls do nothing.

        A helper that still works when the time is up is left to finish what it was handed.

        Args:
            timeout_s: How long to wait at most, in seconds.

        Returns:
            Whether everything is exported and the helper has ended.
        """
        if self._foreign or self._closed:
            return True
        deadline = time.monotonic() + timeout_s
        self._closed = True
        if self._helper is not None:
            self._helper.send(dumps({"close": True}))
        done = self.flush(timeout_s)
        with self._lock:
            if self._helper is not None:
                done = self._helper.wait(deadline - time.monotonic()) and done
            if self._thread is not None:
                self._thread.close()
        if self._waiting:
            one = len(self._waiting) == 1
            logger.warning(
                "%s %s still being exported after %.1f s; the helper process goes on with %s in %s",
                counted(len(self._waiting), "kernel-trace segment"),
                "was" if one else "were",
                timeout_s,
                "it" if one else "them",
                self.directory,
            )
        return done

    @property
    def _foreign(self) -> bool:
        """Whether this is a forked child, which must not touch its parent's pipes."""
        return os.getpid() != self._owner

    def _collect(self) -> None:
        """Takes in what is finished, and replaces a helper that has gone away."""
        with self._lock:
            messages: list[dict[str, Any]] = []
            if self._helper is not None:
                self._helper.pump()
                messages += self._helper.receive()
            if self._thread is not None:
                messages += self._thread.receive()
            lines = [self._finish(message) for message in messages]
            if self._helper is not None and self._helper.broken and self._waiting:
                self._use_thread(f"ended early: {self._helper.last_words()}")
        for line in lines:
            if line is not None:
                self._tell(line)

    def _finish(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Crosses one job off the list; None for a message that is no result."""
        line = message.get("line")
        record = self._waiting.pop(message.get("job", -1), None)
        if record is None:
            return None
        if not isinstance(line, dict):
            self._say_once(
                "record",
                "kernel-trace segment %s of region %s cannot be exported: the exporter cannot "
                "read its record",
                record.index,
                record.region,
            )
            return None
        self._finished.append(line)
        return line

    def _tell(self, line: dict[str, Any]) -> None:
        """Logs what is wrong with a finished segment, each kind of fault once."""
        if line["error"] is not None:
            what, where = "cannot be exported", "nothing of it is left"
            if line["files"]:
                what, where = "has no summary", f"its trace is {line['files']['trace']}"
            elif line["raw_file"]:
                where = f"its native trace is kept as {line['raw_file']}"
            self._say_once(
                line["status"],
                "kernel-trace segment %s of region %s %s: %s; %s. Training goes on, and later "
                "failures of this kind are only in the segment index",
                line["index"],
                line["region"],
                what,
                line["error"],
                where,
            )
        for warning in line["warnings"]:
            self._say_once(
                warning.partition(":")[0],
                "kernel-trace segment %s of region %s: %s",
                line["index"],
                line["region"],
                warning,
            )
        if self._on_finished is not None:
            try:
                self._on_finished(line)
            except Exception as error:  # noqa: BLE001 - a listener never stops training
                self._say_once("listener", "a listener of finished segments failed: %r", error)

    def _say_once(self, kind: str, message: str, *args: object) -> None:
        if kind in self._said:
            return
        self._said.add(kind)
        logger.log(logging.ERROR if kind in _LOUD else logging.WARNING, message, *args)

    def _refuse(self, record: SegmentRecord) -> None:
        kept = keep_native(record)
        self._say_once(
            "refused",
            "kernel-trace segment %d of region %s is not exported (%s); its native trace is kept "
            "as %s. Later ones are only kept",
            record.index,
            record.region,
            "the exporter is closed" if self._closed else f"{MAX_WAITING} others are waiting",
            kept,
        )

    def _use_thread(self, reason: str) -> None:
        """Goes on without a helper process, with everything that it has not finished."""
        logger.error(
            "the export helper for kernel traces %s; segments are exported on a thread of this "
            "process instead, which costs training more",
            reason,
        )
        if self._helper is not None:
            self._helper.kill()
            self._helper = None
        self._thread = ExportThread()
        for job, record in self._waiting.items():
            self._thread.submit(job, record, again=True)

    def _wait(self, timeout_s: float) -> None:
        helper, thread = self._helper, self._thread
        if helper is not None:
            helper.wait_ready(timeout_s)
        elif thread is not None:
            thread.wait_ready(timeout_s)


def _job_line(job: int, record: SegmentRecord) -> bytes:
    return b'{"job": %d, "record": %s}' % (job, record.to_json())
