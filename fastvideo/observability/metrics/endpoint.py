"""What the metrics endpoint answers: who may ask, what, and in which form."""

from __future__ import annotations

import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger
from fastvideo.observability.metrics.exposition import expose
from fastvideo.observability.metrics.http_message import Response, text_response
from fastvideo.observability.metrics.scrape_rhythm import ANNOUNCEMENT, Scraper

if TYPE_CHECKING:
    from socket import socket

    from fastvideo.observability.metrics.http_message import Request
    from fastvideo.observability.metrics.scrape_rhythm import ScrapeRhythm
    from fastvideo.observability.metrics.text_format import TextRenderer
    from fastvideo.observability.metrics.web_config import WebConfig

logger = init_logger(__name__)

PATH: Final = "/metrics"

_LONGEST_NAME: Final = 100


class Endpoint:
    """Answers requests.

    Args:
        renderer: The metrics.
        web_config: Who may ask.
        scrapes: Remembers each scrape that was answered.
    """

    def __init__(
        self, renderer: TextRenderer, web_config: WebConfig, scrapes: ScrapeRhythm
    ) -> None:
        self._renderer = renderer
        self._web_config = web_config
        self._scrapes = scrapes
        self._has_failed = False

    def respond(self, request: Request, sock: socket) -> Response:
        """Returns the response to ``request``; never raises."""
        try:
            return self._respond(request, sock)
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning("a scrape failed; the run goes on", exc_info=error)
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the scrape failed")

    def _respond(self, request: Request, sock: socket) -> Response:
        refusal = self._refuse(request, sock)
        if refusal is not None:
            return refusal
        if request.path != PATH:
            return text_response(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
        if request.method not in {"GET", "HEAD"}:
            allow = ("Allow", "GET, HEAD")
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or HEAD", allow)
        sent = None
        if request.method == "GET":
            sent = self._scrapes.begin(_scraper(request, sock))
        exposition = expose(
            self._renderer,
            accept=request.headers.get("accept", ""),
            accept_encoding=request.headers.get("accept-encoding", ""),
        )
        headers = [("Content-Type", exposition.content_type), ("Vary", "Accept, Accept-Encoding")]
        if exposition.gzipped:
            headers.append(("Content-Encoding", "gzip"))
        return Response(HTTPStatus.OK, exposition.body, tuple(headers), sent)

    def _refuse(self, request: Request, sock: socket) -> Response | None:
        config = self._web_config
        if isinstance(sock, ssl.SSLSocket) and not config.allows_certificate(sock.getpeercert()):
            return text_response(HTTPStatus.FORBIDDEN, "this client certificate is not allowed")
        if not config.allows_credentials(request.headers.get("authorization", "")):
            challenge = ("WWW-Authenticate", 'Basic realm="metrics", charset="UTF-8"')
            return text_response(HTTPStatus.UNAUTHORIZED, "user and password needed", challenge)
        return None


def _scraper(request: Request, sock: socket) -> Scraper:
    try:
        peer = sock.getpeername()
    except OSError:  # it has left already
        peer = None
    return Scraper(
        address=str(peer[0]) if isinstance(peer, tuple) else "",
        program=request.headers.get("user-agent", "")[:_LONGEST_NAME],
        is_regular=ANNOUNCEMENT in request.headers,
    )
