"""A connection with one deadline for all of an answer, which forked children have no copy of.

A socket's own time-out starts anew with every byte, so a collector that sends one a second would
hold the sender for as long as it likes.
"""

from __future__ import annotations

import contextlib
import io
import socket
import time
from typing import TYPE_CHECKING

from fastvideo.observability.forks import FORKS

if TYPE_CHECKING:
    import ssl


class DeadlineSocket:
    """What ``http.client`` needs of a socket, opened, used and closed by one thread.

    Another thread may fork at any time, also while this one waits for a name or an answer.

    Args:
        deadline: By ``time.monotonic``, in seconds.
    """

    def __init__(self, deadline: float) -> None:
        self._inner: socket.socket | None = None
        self.deadline = deadline
        FORKS.watch(self)

    def connect(self, host: str, port: int) -> None:
        """Connects to the first address of a host that answers.

        Raises:
            OSError: None does; the last one's error.
        """
        failure = OSError(0, "the host's name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            try:
                with FORKS.lock:
                    inner = self._inner = socket.socket(family, kind, protocol)
                inner.settimeout(remaining(self.deadline))
                inner.connect(address)
                inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                failure = error
                self.end()
            else:
                return
        raise failure

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Speaks TLS from here on, with whom the certificate says is ``host``."""
        with FORKS.lock:
            secured = context.wrap_socket(
                self._connected(), server_hostname=host, do_handshake_on_connect=False
            )
            self._inner = secured
        secured.settimeout(remaining(self.deadline))
        secured.do_handshake()

    def sendall(self, data: bytes) -> None:
        """Sends all of ``data``; raises ``TimeoutError`` when the deadline passes."""
        self._connected().sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Returns a reader of the answer; ``http.client`` asks for no other ``mode``."""
        del mode
        return io.BufferedReader(_DeadlineReader(self))

    def receive_into(self, buffer: bytearray | memoryview) -> int:
        """Receives what is there, waiting until the deadline."""
        return self._connected().recv_into(buffer)

    def close(self) -> None:
        """Leaves the connection open: ``http.client`` calls this before it reads a last answer."""

    def end(self) -> None:
        """Closes the connection."""
        with FORKS.lock:  # while a socket is being closed, a child could not close its copy
            inner, self._inner = self._inner, None
            if inner is not None:
                with contextlib.suppress(OSError):
                    inner.close()

    def wake(self) -> None:
        """Makes whoever waits for this connection return; called from another thread."""
        inner = self._inner
        if inner is not None:
            with contextlib.suppress(OSError):
                inner.shutdown(socket.SHUT_RDWR)

    def leave_parent(self) -> None:
        """Closes a forked child's copy; the parent's connection stays as it is."""
        self.end()

    def _connected(self) -> socket.socket:
        """Returns the socket, with the time that is left."""
        if self._inner is None:
            raise ConnectionAbortedError
        self._inner.settimeout(remaining(self.deadline))
        return self._inner


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
