"""Ending a rank with the launcher that started it, in whatever way that ends.

A launcher that is killed (SIGKILL, as of an OOM killer) cannot tell its ranks, which would go on
training with nobody to end them. So the launcher's process id is in the ranks' environment, and
each asks the kernel for SIGTERM when its parent is gone. Ranks that were started otherwise, and
systems other than Linux, are left as they are.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastvideo import envs
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE: Final = "FASTVIDEO_LAUNCHER_PID"

_PR_SET_PDEATHSIG: Final = 1
_ENDED: Final = ("Z", "X")

logger = init_logger(__name__)


def announce_launcher(environ: MutableMapping[str, str]) -> None:
    """Names this process in the environment that ranks will have.

    Ranks must be started by the thread that calls this: their SIGTERM comes when it ends.

    Args:
        environ: The environment.
    """
    environ[VARIABLE] = str(os.getpid())


class LauncherDeath:
    """What a rank does about the end of its launcher.

    Args:
        environ: The environment. Its word of the launcher is taken out, as it is not about
            processes that this one may start.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._launcher = envs.FASTVIDEO_LAUNCHER_PID
        environ.pop(VARIABLE, None)

    def send_sigterm(self) -> None:
        """Has SIGTERM come to this process when the launcher ends; at once if it has already."""
        if not self._launcher or sys.platform != "linux":
            return
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
            reason = os.strerror(ctypes.get_errno())
            logger.warning("this rank will not end with a launcher that is killed: %s", reason)
        if self.has_happened():
            signal.raise_signal(signal.SIGTERM)

    def has_happened(self) -> bool:
        """Tells whether the launcher has ended before this rank."""
        return (
            bool(self._launcher)
            and os.getppid() != self._launcher
            and not _runs(self._launcher)  # else another program is between the two
        )


def _runs(pid: int) -> bool:
    """Tells whether there is such a process that has not ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in _ENDED
