"""A lock on a run's output directory, so that two live runs never save into the same one.

The lock is the kernel's (``flock``) on a file in the directory. It is gone when the process that
holds it is, however that ended and whatever the file says, so nothing stale can stop a restart.
Children do not hold it on: the descriptor is closed when a program is executed, and in children
that Python forks, such as workers of a loader that outlive a killed run.

The file says who holds the lock, for the message that another run gets. It is never removed: a run
that still waits for the removed file and one that makes a new file would both get their lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from fastvideo.distributed import get_world_group
from fastvideo.errors import FastVideoError
from fastvideo.logger import init_logger
from fastvideo.train.checkpoint.directory import check_writable
from fastvideo.train.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = init_logger(__name__)

LOCK: Final = ".run.lock"
"""Name of the file in the output directory."""

_KEY: Final = "training.checkpoint.output_dir"
_WAIT_S: Final = 10.0
_POLL_S: Final = 0.1
_held: Final[set[int]] = set()
_forks: Final[list[bool]] = []


class OutputInUseError(CheckpointError):
    """Another live run saves into the output directory."""


@final
class OutputLock:
    """Keeps other runs from an output directory until it is released or this process ends.

    Args:
        output_dir: The directory, which exists.
        run_id: What other runs are told of this one.
    """

    def __init__(self, output_dir: Path, *, run_id: str = "") -> None:
        self._path = output_dir / LOCK
        self._run_id = run_id
        self._descriptor: int | None = None

    def acquire(self, wait_s: float | None = None) -> None:
        """Takes the lock; where the file system knows none, a warning says so.

        Args:
            wait_s: How long to wait for a run that may be about to end; None: ten seconds.

        Raises:
            OutputInUseError: Another run holds it; the message says which.
        """
        try:
            descriptor = self._wait(_WAIT_S if wait_s is None else wait_s)
        except OSError as error:
            logger.warning(
                "%s: %s cannot be locked (%s): nothing keeps a second run from saving there too",
                *(_KEY, self._path.parent, error.strerror or error),
            )
            return
        _forget_in_children()
        _held.add(descriptor)
        self._descriptor = descriptor
        about = {"host": socket.gethostname(), "pid": os.getpid(), "run_id": self._run_id}
        _write(descriptor, json.dumps({**about, "since": time.time()}) + "\n")

    def release(self) -> None:
        """Lets other runs have the directory; does nothing without the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        _write(descriptor, "")
        _held.discard(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for copies that others may have
        os.close(descriptor)

    def _wait(self, wait_s: float) -> int:
        end = time.monotonic() + wait_s
        told = False
        while (descriptor := _try_lock(self._path)) is None:
            holder = _holder(self._path)
            if time.monotonic() >= end:
                raise OutputInUseError(_in_use(self._path, holder))
            if not told:
                logger.info(
                    "%s is in use by another run%s; waiting %g s for its end",
                    *(self._path.parent, holder, wait_s),
                )
                told = True
            time.sleep(_POLL_S)
        return descriptor


@contextmanager
def output_dir_held(output_dir: str | Path, *, run_id: str = "") -> Iterator[None]:
    """Keeps other runs from an output directory while the body runs; all ranks must call it.

    Rank 0 holds the lock for all.

    Args:
        output_dir: The directory, which is made.
        run_id: What other runs are told of this one.

    Raises:
        OutputInUseError: Another run saves there; raised on all ranks.
        CheckpointWriteError: The directory cannot be written to; raised on all ranks.
    """
    ranks = get_world_group()
    directory = Path(output_dir).expanduser()
    lock = OutputLock(directory, run_id=run_id)
    error: FastVideoError | None = None
    if ranks.is_first_rank:
        try:
            check_writable(directory)
            lock.acquire()
        except FastVideoError as refusal:
            error = refusal
    error = ranks.broadcast_object(error)
    if error is not None:
        raise error
    try:
        yield
    finally:
        lock.release()


def _try_lock(path: Path) -> int | None:
    """Returns a descriptor with the lock; None while somebody else has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # closed in executed programs
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)  # somebody has removed the file meanwhile: a new one counts


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _write(descriptor: int, text: str) -> None:
    """Replaces what the file says; a full disk leaves the lock as good as it was."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    except OSError as error:
        logger.debug("the lock file cannot be written: %s", error)


def _holder(path: Path) -> str:
    """Returns what the file says of the run that holds the lock, in parentheses."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(about["since"])))
        named = f"run {about['run_id']}, " if about["run_id"] else ""
        return f" ({named}process {about['pid']} on {about['host']}, since {since})"
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return ""


def _in_use(path: Path, holder: str) -> str:
    return (
        f"{_KEY}: {path.parent} is in use by another run{holder}; two runs would mix their "
        f"checkpoints. Stop that run or wait for its end, or set --{_KEY} to another directory. "
        f"Should no such process be left on that machine, remove {path}"
    )


def _forget_in_children() -> None:
    """Makes children that Python forks close the descriptors, which would keep the lock."""
    if not _forks:
        _forks.append(True)
        os.register_at_fork(after_in_child=_close_held)


def _close_held() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()
