"""A connection whose time-out is for the whole answer, not for each piece of it.

A socket's own time-out starts anew with every byte, so a collector that sends one a second would
hold the sender for as long as it likes.
"""

from __future__ import annotations

import contextlib
import io
import socket
import time


class DeadlineSocket:
    """What ``http.client`` needs of a socket, with one deadline for all of it.

    Args:
        inner: A connected socket, plain or TLS.
        deadline: By ``time.monotonic``, in seconds.
    """

    def __init__(self, inner: socket.socket, deadline: float) -> None:
        self._inner = inner
        self.deadline = deadline

    def sendall(self, data: bytes) -> None:
        """Sends all of ``data``; raises ``TimeoutError`` when the deadline passes."""
        self._inner.settimeout(remaining(self.deadline))
        self._inner.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Returns a reader of the answer; ``http.client`` asks for no other ``mode``."""
        del mode
        return io.BufferedReader(_DeadlineReader(self))

    def receive_into(self, buffer: bytearray | memoryview) -> int:
        """Receives what is there, waiting until the deadline."""
        self._inner.settimeout(remaining(self.deadline))
        return self._inner.recv_into(buffer)

    def close(self) -> None:
        """Closes the connection."""
        self._inner.close()

    def wake(self) -> None:
        """Makes whoever waits for this connection return; called from another thread."""
        with contextlib.suppress(OSError):
            self._inner.shutdown(socket.SHUT_RDWR)


class _DeadlineReader(io.RawIOBase):
    """Reads from a :class:`DeadlineSocket`; closing it leaves the connection open."""

    def __init__(self, connection: DeadlineSocket) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._connection.receive_into(buffer)


def remaining(deadline: float) -> float:
    """Returns the seconds until ``deadline``.

    Raises:
        TimeoutError: There are none left.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
