"""One client of the metrics endpoint, served without ever waiting for it."""

from __future__ import annotations

import ssl
from contextlib import suppress
from http import HTTPStatus
from selectors import EVENT_READ, EVENT_WRITE
from socket import SHUT_WR
from typing import TYPE_CHECKING, Final

from fastvideo.observability.metrics.http_message import (
    HEAD_END,
    BadRequestError,
    Request,
    Response,
    parse_request,
    text_response,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    Respond = Callable[[Request, socket], Response]

_READ_BYTES: Final = 16_384
_MAX_HEAD_BYTES: Final = 16_384
_DRAIN_S: Final = 1.0


class Connection:
    """Takes one request and sends one response, as far as the socket allows at the moment.

    Args:
        sock: The client's socket: non-blocking, and if it is a TLS socket, before its handshake.
        respond: Makes the response.
        now: Seconds on a monotonic clock.
        timeout_s: Seconds from now after which the client is given up.

    Attributes:
        sock: The client's socket.
        deadline: When the client is given up, on the monotonic clock.
    """

    def __init__(self, sock: socket, respond: Respond, *, now: float, timeout_s: float) -> None:
        self.sock = sock
        self.deadline = now + timeout_s
        self._respond = respond
        self._received = bytearray()
        self._unsent = memoryview(b"")
        self._sent: Callable[[], None] | None = None
        is_tls = isinstance(sock, ssl.SSLSocket)
        self._next: Callable[[float], int] | None = self._handshake if is_tls else self._read

    def advance(self, now: float) -> int:
        """Goes on as far as possible.

        Args:
            now: Seconds on the monotonic clock.

        Returns:
            The selector event that must come before it can go on; 0: the connection is over.
        """
        try:
            while self._next is not None:
                wanted = self._next(now)
                if wanted:
                    return wanted
        except ssl.SSLWantReadError:
            return EVENT_READ
        except ssl.SSLWantWriteError:
            return EVENT_WRITE
        except OSError:  # the client went away, or does not speak TLS
            pass
        return 0

    def close(self) -> None:
        """Closes this process's end, and sends nothing."""
        with suppress(OSError):
            self.sock.close()

    def _handshake(self, now: float) -> int:
        del now
        assert isinstance(self.sock, ssl.SSLSocket)  # noqa: S101 - set in the constructor
        self.sock.do_handshake()
        self._next = self._read
        return 0

    def _read(self, now: float) -> int:
        del now
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return EVENT_READ
        if not data:
            self._next = None
            return 0
        self._received += data
        if HEAD_END in self._received:
            self._unsent = memoryview(self._answer())
        elif len(self._received) > _MAX_HEAD_BYTES:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._unsent = memoryview(text_response(status, status.description).encode())
        if self._unsent:
            self._next = self._write
        return 0

    def _answer(self) -> bytes:
        try:
            request = parse_request(bytes(self._received.partition(HEAD_END)[0]))
        except BadRequestError as error:
            return text_response(HTTPStatus.BAD_REQUEST, str(error)).encode()
        response = self._respond(request, self.sock)
        self._sent = response.sent
        return response.encode(with_body=request.method != "HEAD")

    def _write(self, now: float) -> int:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except BlockingIOError:
            return EVENT_WRITE
        if isinstance(self.sock, ssl.SSLSocket):
            with suppress(OSError):
                self.sock.unwrap()  # sends the end of the TLS stream; the client's is not awaited
        self.sock.shutdown(SHUT_WR)
        if self._sent is not None:
            self._sent()
        self.deadline = min(self.deadline, now + _DRAIN_S)
        self._next = self._drain
        return 0

    def _drain(self, now: float) -> int:
        """Reads until the client has closed too: closing first could take the response back."""
        del now
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return EVENT_READ
        if not data:
            self._next = None
        return 0
