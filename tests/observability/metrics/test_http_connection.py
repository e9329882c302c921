"""One client of the endpoint, whose socket takes as much as its reader lets it."""

from __future__ import annotations

import socket
from http import HTTPStatus
from selectors import EVENT_WRITE

from fastvideo.observability.metrics.http_connection import Connection
from fastvideo.observability.metrics.http_message import Response

BODY = b"x" * 8_000_000


def test_a_response_is_sent_when_all_of_it_is() -> None:
    """A client that has not taken the whole answer yet has not seen it."""
    sent: list[bool] = []
    response = Response(HTTPStatus.OK, BODY, sent=lambda: sent.append(True))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, lambda *_: response, now=0.0, timeout_s=10.0)
        theirs.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert connection.advance(0.0) == EVENT_WRITE
        assert sent == []
        received = bytearray()
        while not received.endswith(BODY):
            received += theirs.recv(1 << 20)
            connection.advance(0.0)
        assert sent == [True]


def test_who_leaves_in_the_middle_was_sent_nothing() -> None:
    """The connection ends, and its response with it."""
    sent: list[bool] = []
    response = Response(HTTPStatus.OK, BODY, sent=lambda: sent.append(True))
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        connection = Connection(ours, lambda *_: response, now=0.0, timeout_s=10.0)
        theirs.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert connection.advance(0.0) == EVENT_WRITE
        theirs.close()
        assert connection.advance(0.0) == 0
    assert sent == []
