"""A thread that turns what was recorded into lines of a file, and writes it in large pieces."""

from __future__ import annotations

import fcntl
import itertools
import os
import stat
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

logger = init_logger(__name__)

_MAX_QUEUED: Final = 8


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was written and closed, as it can be known again.

    Attributes:
        device: Number of its file system.
        inode: Its number there.
    """

    device: int
    inode: int


class LineWriter:
    """Writes a file from its beginning, in a thread.

    What the file system has is always a beginning of the whole, in which every line but perhaps
    the last is complete. A forked child must not use it. Two processes never write one file: the
    second has a name of its own.

    Args:
        path: The file; one that exists is overwritten.
        first: What is written at once.
        before: What this process has written there before: if it is still there, it is not
            overwritten but gets another name.

    Attributes:
        path: The file; another name than was asked for where another process writes that one.
        stopped: Whether nothing is written any more: after an error, and in a forked child.

    Raises:
        ConfigError: The file cannot be written.
    """

    def __init__(self, path: Path, first: bytes, *, before: WrittenFile | None = None) -> None:
        self._jobs: deque[Callable[[], bytes]] = deque()
        self._changed = threading.Condition()
        self._submitted = self._written = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self.stopped = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _set_aside(path, before)
            self.path, self._file = _open_alone(path)
            try:
                self._write(first)
            except OSError:
                os.close(self._file)
                raise
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

    def close(self, timeout_s: float) -> WrittenFile | None:
        """Writes what is left, and closes the file.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            What was written; None where it took too long.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                logger.warning("%s is incomplete: writing it took too long", self.path)
                return None
        about = os.fstat(self._file)
        _unlock(self._file)
        os.close(self._file)
        return WrittenFile(about.st_dev, about.st_ino)

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
                    self.path,
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


def _set_aside(path: Path, before: WrittenFile | None) -> None:
    """Gives a file another name if it is the one that was written before."""
    if before is None or not path.is_file():
        return
    about = path.stat()
    if (about.st_dev, about.st_ino) != (before.device, before.inode):
        return
    aside = next(name for name in _names_beside(path) if not name.exists())
    path.rename(aside)
    logger.warning("what this process traced to %s before is now %s", path, aside)


def _open_alone(path: Path) -> tuple[Path, int]:
    """Opens and empties a file: this one, or a new one beside it if another process writes it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return path, file
    if _lock(file):
        os.ftruncate(file, 0)
        return path, file
    os.close(file)
    for name in _names_beside(path):
        with suppress(FileExistsError):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            break
    _lock(file)
    logger.warning("another process is tracing to %s: this one traces to %s", path, name)
    return name, file


def _names_beside(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.stem}_{n}{path.suffix}") for n in itertools.count(1))


def _lock(file: int) -> bool:
    """Returns False if another process has locked a file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # its file system has no locks
    return True


def _unlock(file: int) -> None:
    """Gives a file up on behalf of forked children, too, which have it open as well."""
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)
