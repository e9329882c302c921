"""Exports on a daemon thread of this process: what is done when there is no helper process."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger
from fastvideo.profiler.segment_export import export_segment, refuse_segment

if TYPE_CHECKING:
    from pathlib import Path

    from fastvideo.profiler.segment_record import SegmentRecord

logger = init_logger(__name__)

_TOO_BIG: Final = "the trace is too big to be exported in the trainer's own process"

MAX_RAW_BYTES: Final = 256_000_000
"""Native traces above this size are not read in the trainer's process: they could take its memory,
as they may have taken the helper's."""


class ExportThread:
    """Runs :func:`export_segment` for one segment after the other."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[int, SegmentRecord, bool] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fastvideo-export", daemon=True)
        self._thread.start()

    def submit(self, job: int, record: SegmentRecord, *, again: bool = False) -> None:
        """Queues one segment.

        Args:
            job: Number that comes back with the result.
            record: The segment.
            again: Whether another exporter may have begun or even finished it.
        """
        self._jobs.put((job, record, again))

    def receive(self) -> list[dict[str, Any]]:
        """Returns the results that are there: objects with ``job`` and ``line``.

        The line is None for a segment whose record is of no use.
        """
        self._ready.clear()
        results = []
        while True:
            try:
                results.append(self._results.get_nowait())
            except queue.Empty:
                return results

    def wait_ready(self, timeout_s: float) -> None:
        """Waits for a result, at most ``timeout_s`` seconds."""
        self._ready.wait(timeout_s)

    def close(self) -> None:
        """Lets the thread end once it has done what is queued."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, record, again = item
            line: dict[str, Any] | None = None
            try:
                if _size(record.raw_path) > MAX_RAW_BYTES:
                    line = refuse_segment(record, _TOO_BIG)
                else:
                    line = export_segment(record, again=again)
            except Exception:  # one bad record must not end the export of the others
                logger.exception("kernel-trace segment %s cannot be exported", record.stem)
            self._results.put({"job": job, "line": line})
            self._ready.set()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
