"""Letting ranks know that somebody stopped the run, and no other rank has failed.

The launcher ends ranks with SIGTERM in both cases, and they must not take one for the other: a run
that was stopped says that it has ended, while one that lost a rank must be missed. So before the
launcher passes a signal on it writes a file, whose name the ranks find in their environment.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastvideo import envs
from fastvideo.train.entrypoint.termination import Terminated

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE: Final = "FASTVIDEO_STOP_FILE"

_POLL_S: Final = 0.05
_SETTLE_S: Final = 0.5


class StopFile:
    """The launcher's side.

    Args:
        environ: The environment that ranks will have.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._environ = environ
        self._directory: Path | None = None

    def announce(self) -> None:
        """Chooses the file, and names it in the environment.

        Where no file can be written, ranks take every SIGTERM for the failure of another one.
        """
        self._environ.pop(VARIABLE, None)
        with suppress(OSError):
            self._directory = Path(tempfile.mkdtemp(prefix="fastvideo-"))
            self._environ[VARIABLE] = str(self._directory / "stopped")

    def write(self) -> None:
        """Writes the file; may be called by a signal handler."""
        if self._directory is not None:
            with suppress(OSError):  # ranks end all the same
                (self._directory / "stopped").touch()

    def remove(self) -> None:
        """Removes the file, and its name."""
        self._environ.pop(VARIABLE, None)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def was_stopped(error: BaseException, *, world_size: int, settle_s: float = _SETTLE_S) -> bool:
    """Tells whether a run ended by ``error`` because somebody stopped it.

    Ctrl-C says so, what all ranks agreed on, and SIGTERM where there is only one rank. SIGTERM of
    one among several does if the launcher has written its file; then so does every other error,
    since ranks that still compute fail when others are gone.

    Args:
        error: What ended the run in this process.
        world_size: How many ranks the run has.
        settle_s: How long after SIGTERM the file may come, in seconds: a scheduler signals ranks
            and launcher in any order.
    """
    settle_until = time.monotonic()
    if isinstance(error, Terminated):
        if error.agreed or error.signal == signal.SIGINT or world_size == 1:
            return True
        settle_until += settle_s
    name = envs.FASTVIDEO_STOP_FILE
    if not name:
        return False
    while not Path(name).exists():
        if time.monotonic() >= settle_until:
            return False
        time.sleep(_POLL_S)
    return True


def stopping_for_s(error: BaseException) -> float:
    """Returns since when the run has been stopping, in seconds of those that it may take.

    Args:
        error: What ended the run in this process. A step that was finished and saved first has a
            time of its own; else a signal may have waited for a device before it got here.
    """
    since_s = time.monotonic() - error.at if isinstance(error, Terminated) else 0.0
    if isinstance(error, Terminated) and error.agreed:
        return since_s
    with suppress(OSError):
        if envs.FASTVIDEO_STOP_FILE:
            asked_at = Path(envs.FASTVIDEO_STOP_FILE).stat().st_mtime
            since_s = max(since_s, time.time() - asked_at)
    return since_s
