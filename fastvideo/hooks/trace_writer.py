"""A thread that turns what was recorded into lines of a file, and writes it in large pieces."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger = init_logger(__name__)

_MAX_QUEUED: Final = 8


class LineWriter:
    """Writes a file from its beginning, in a thread.

    What the file system has is always a beginning of the whole, in which every line but perhaps
    the last is complete. A forked child must not use it.

    Args:
        path: The file; one that exists is overwritten.
        first: What is written at once.

    Attributes:
        stopped: Whether nothing is written any more: after an error, and in a forked child.

    Raises:
        ConfigError: The file cannot be written.
    """

    def __init__(self, path: Path, first: bytes) -> None:
        self._path = path
        self._jobs: deque[Callable[[], bytes]] = deque()
        self._changed = threading.Condition()
        self._submitted = self._written = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self.stopped = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o666)
            self._write(first)
        except OSError as error:
            message = f"FASTVIDEO_TRACE_OUTPUT: cannot write {path}: {error.strerror}"
            raise ConfigError(message) from error

    def submit(self, job: Callable[[], bytes]) -> int:
        """Has the thread write something; waits only while much else is to be written.

        Args:
            job: Makes the bytes, in the thread.

        Returns:
            A number for :meth:`wait`.
        """
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="activation-trace", daemon=True
                )
                self._thread.start()
            while len(self._jobs) >= _MAX_QUEUED and not self.stopped:
                self._changed.wait()
            self._submitted += 1
            self._jobs.append(job)
            self._changed.notify_all()
            return self._submitted

    def wait(self, number: int, timeout_s: float | None = None) -> bool:
        """Waits until something is written.

        Args:
            number: What :meth:`submit` returned; it and everything before it.
            timeout_s: Seconds to wait at most; None: as long as it takes.

        Returns:
            Whether it is written.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self._written >= number or self.stopped, timeout_s
            )

    def close(self, timeout_s: float) -> None:
        """Writes what is left, and closes the file.

        Args:
            timeout_s: Seconds to wait at most.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.warning("%s is incomplete: writing it took too long", self._path)
                return
        os.close(self._file)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs) or self._closing)
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                self._changed.notify_all()
            try:
                if not self.stopped:
                    self._write(job())
            except Exception as error:  # noqa: BLE001 - a trace never ends the program
                self.stopped = True
                logger.error(  # noqa: TRY400 - one line is enough
                    "%s ends here, activations are traced no longer: %s: %s",
                    self._path,
                    type(error).__name__,
                    error,
                )
            with self._changed:
                self._written += 1
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
