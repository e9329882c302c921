"""Letting the other ranks go as soon as this one is told to end.

Python handles a signal between two of its own instructions, so a rank that waits in a collective
on the CPU (gloo) handles it when the collective returns: not before the ranks that it waits for
have written what is pending, and ended. The ranks would end one after the other. So the first
thing a rank does on a signal is to close its connections to the others, which ends their waiting.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

logger = init_logger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_DESCRIPTORS: Final = Path("/proc/self/fd")


class PeerConnections:
    """The sockets that joining the process group opened. Empty where there is no ``/proc``."""

    def __init__(self) -> None:
        self._inodes: set[int] = set()

    @contextmanager
    def opened_here(self) -> Iterator[None]:
        """Takes note of the sockets that the body opens."""
        before = set(_sockets())
        yield
        self._inodes |= set(_sockets()) - before

    def shut_down(self) -> None:
        """Ends the connections, and with them every collective of this rank and of its peers.

        Does nothing where collectives run on a device: they do not keep Python from signals.
        """
        if not self._inodes or not dist.is_initialized() or dist.get_backend() != "gloo":
            return
        for inode, descriptor in _sockets().items():
            if inode in self._inodes:
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.getpeername()  # fails for one that listens, which gloo needs
                    connection.shutdown(socket.SHUT_RDWR)
        self._inodes.clear()

    @contextmanager
    def shut_down_on_signals(self, is_final: Callable[[int], bool] = bool) -> Iterator[None]:
        """Ends the connections on SIGTERM and SIGINT, before what these do otherwise.

        Args:
            is_final: Tells whether a signal ends this process; one that does not, leaves them.
                By default every signal does.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.getsignal(number) for number in _SIGNALS}

        def on_signal(number: int, frame: FrameType | None) -> None:
            if is_final(number):
                self.shut_down()
            handler = previous[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)

        for number, handler in previous.items():
            if callable(handler):
                signal.signal(number, on_signal)
        try:
            yield
        finally:
            for number, handler in previous.items():
                if signal.getsignal(number) is on_signal:
                    signal.signal(number, handler)


def _sockets() -> dict[int, int]:
    """Returns inode and descriptor of every socket of this process."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - the names are numbers
            with suppress(OSError):
                status = os.fstat(int(name))
                if stat.S_ISSOCK(status.st_mode):
                    found[status.st_ino] = int(name)
    return found
