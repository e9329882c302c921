"""The export helper: reads jobs on standard input, exports them, answers on standard output.

Run by file path with ``python -I -S`` and the process id of the trainer, so that it starts fast
and imports nothing but the standard library and its siblings. It takes what a launcher sends to the
trainer's process group and goes on, because the last segments of a run are handed over when the run
is already being ended: it stops when its input ends, when it is told to, or when the trainer is
gone, after exporting what it was handed, and never later than :data:`DRAIN_LIMIT_S` after that.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import queue
import select
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any, Final, NoReturn

DRAIN_LIMIT_S: Final = 120
"""How long the helper works on after the trainer is gone, in seconds."""

_PARENT_CHECK_MS: Final = 1000
_READ_BYTES: Final = 1 << 16
_NICE: Final = 10
_OOM_SCORE: Final = "500"
_PACKAGE: Final = "fastvideo_segment_export"


class _OutOfTime(BaseException):
    """The drain limit has passed."""


def import_sibling(name: str) -> Any:  # noqa: ANN401 - a module
    """Imports a module of this folder without importing the packages around it."""
    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE)
        package.__path__ = [str(Path(__file__).resolve().parent)]
        sys.modules[_PACKAGE] = package
    return importlib.import_module(f"{_PACKAGE}.{name}")


class JobReader(threading.Thread):
    """Empties standard input at once, so that the trainer's pipe never fills.

    Attributes:
        jobs: The jobs that have come in; None after the last one.
    """

    def __init__(self, descriptor: int, parent: int) -> None:
        """Reads nothing yet.

        Args:
            descriptor: File descriptor of the input.
            parent: Process id of the trainer.
        """
        super().__init__(name="jobs", daemon=True)
        self.jobs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._descriptor = descriptor
        self._parent = parent

    def run(self) -> None:
        """Reads until the input ends, a closing message comes, or the trainer has gone."""
        pending = b""
        while data := self._read():
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if message.get("close"):
                        self._end()
                        return
                    self.jobs.put(message)
        self._end()

    def _read(self) -> bytes:
        """Waits for input; b"" when there will be no more.

        Forked children of the trainer can hold its end of the pipe open, so the end of the
        trainer ends the input too.
        """
        waiter = select.poll()
        waiter.register(self._descriptor, select.POLLIN)
        while not waiter.poll(_PARENT_CHECK_MS):
            if os.getppid() != self._parent:
                return b""
        try:
            return os.read(self._descriptor, _READ_BYTES)
        except OSError:
            return b""

    def _end(self) -> None:
        self.jobs.put(None)
        signal.setitimer(signal.ITIMER_REAL, DRAIN_LIMIT_S)


def main() -> int:
    """Exports jobs until there are no more."""
    _settle()
    records = import_sibling("segment_record")
    exports = import_sibling("segment_export")
    # The trainer can be gone before this process looks for it, so it says who it is.
    parent = int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid()
    reader = JobReader(sys.stdin.fileno(), parent)
    reader.start()
    try:
        while (message := reader.jobs.get()) is not None:
            line = None
            # One bad record must not end the export of the others.
            with contextlib.suppress(Exception):
                record = records.SegmentRecord.from_json(json.dumps(message["record"]))
                line = exports.export_segment(record, again=bool(message.get("again")))
            _answer({"job": message.get("job"), "line": line})
    except _OutOfTime:
        return 1
    return 0


def _answer(message: dict[str, Any]) -> None:
    """Sends a result. When the trainer has gone nobody reads it; the index has it anyway."""
    data = import_sibling("strict_json").dumps(message) + b"\n"
    with contextlib.suppress(OSError):
        view = memoryview(data)
        while view:
            view = view[os.write(sys.stdout.fileno(), view) :]


def _settle() -> None:
    """Steps back behind training: lower priority, first to go when memory runs out."""
    ignored = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)
    signal.signal(signal.SIGALRM, _out_of_time)
    # A trace is parsed into very many objects without cycles.
    gc.disable()
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, "ascii")


def _out_of_time(_number: int, _frame: object) -> NoReturn:
    raise _OutOfTime


if __name__ == "__main__":
    sys.exit(main())
