"""As much of HTTP/1.1 as a metrics endpoint needs: one request head in, one response out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from http import HTTPStatus

HEAD_END: Final = b"\r\n\r\n"

_REQUEST_LINE_PARTS: Final = 3


class BadRequestError(Exception):
    """A request head that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request.

    Attributes:
        method: ``GET`` and the like.
        path: The path without the query.
        headers: Values by lower-case name; repeated headers are joined by commas.
    """

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response.

    Attributes:
        status: Its status.
        body: Its body.
        headers: Headers besides length and connection.
        sent: Is called when all of it is on its way to the client.
    """

    status: HTTPStatus
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    sent: Callable[[], None] | None = None

    def encode(self, *, with_body: bool = True) -> bytes:
        """Returns the bytes that are sent.

        Args:
            with_body: False for the answer to HEAD: the same head, and nothing after it.
        """
        lines = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            *(f"{name}: {value}" for name, value in self.headers),
            f"Content-Length: {len(self.body)}",
            "Connection: close",
        ]
        head = "\r\n".join(lines).encode("latin-1") + HEAD_END
        return head + self.body if with_body else head


def text_response(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Response:
    """Returns a response of one line of text."""
    content_type = ("Content-Type", "text/plain; charset=utf-8")
    return Response(status, f"{text}\n".encode(), (content_type, *headers))


def parse_request(head: bytes) -> Request:
    """Parses a request head.

    Args:
        head: Everything before the empty line.

    Raises:
        BadRequestError: It is not the head of an HTTP/1 request.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != _REQUEST_LINE_PARTS or not parts[2].startswith("HTTP/1."):
        message = "expected a request line such as  GET /metrics HTTP/1.1"
        raise BadRequestError(message)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            message = "expected header lines such as  Accept: text/plain"
            raise BadRequestError(message)
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return Request(parts[0], parts[1].partition("?")[0], headers)
