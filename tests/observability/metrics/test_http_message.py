"""Request heads and responses."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from fastvideo.observability.metrics.http_message import (
    BadRequestError,
    Request,
    Response,
    parse_request,
    text_response,
)


def test_a_request_head_is_parsed() -> None:
    """Header names are folded, repeated headers joined, the query left out."""
    head = b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\nACCEPT: a\r\naccept:b \r\nEmpty:"
    assert parse_request(head) == Request(
        "GET", "/metrics", {"host": "x", "accept": "a, b", "empty": ""}
    )


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET",
        b"GET /metrics",
        b"GET /metrics HTTP/2",
        b"GET  /metrics HTTP/1.1",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET / HTTP/1.1\r\n: no name",
        b"GET / HTTP/1.1\r\n folded: line",
        b"GET / HTTP/1.1\r\nspace : x",
    ],
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    """Anything else than an HTTP/1 head is an error that says what was expected."""
    with pytest.raises(BadRequestError, match="expected"):
        parse_request(head)


def test_a_response_is_encoded() -> None:
    """Length and end of the connection are added; HEAD gets the same head and no body."""
    response = Response(HTTPStatus.OK, b"body", (("X", "y"),))
    head = b"HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 4\r\nConnection: close\r\n\r\n"
    assert response.encode() == head + b"body"
    assert response.encode(with_body=False) == head


def test_a_text_response_is_one_line() -> None:
    """Short answers are plain text."""
    response = text_response(HTTPStatus.NOT_FOUND, "no", ("A", "b"))
    assert response.body == b"no\n"
    assert response.headers == (("Content-Type", "text/plain; charset=utf-8"), ("A", "b"))
