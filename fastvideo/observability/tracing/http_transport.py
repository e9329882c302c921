"""OTLP over HTTP, with the standard library: what a request needs is one POST."""

from __future__ import annotations

import email.utils
import gzip
import http.client
import socket
import ssl
import time
from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.deadline_socket import DeadlineSocket
from fastvideo.observability.tracing.proxies import find_proxy
from fastvideo.observability.tracing.signals import HTTP_JSON
from fastvideo.observability.tracing.transport import (
    REJECTED,
    TIMEOUT,
    UNAVAILABLE,
    UNREACHABLE,
    Outcome,
    rejected_spans,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.observability.tracing.otlp_settings import OtlpSettings

_RETRYABLE: Final = frozenset({429, 502, 503, 504})
_MAX_ANSWER_BYTES: Final = 64 * 1024
_GZIP_LEVEL: Final = 1
_OK: Final = range(200, 300)


class HttpTransport:
    """Sends requests over one connection that is kept open.

    Args:
        settings: Where to, and how.
    """

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._connection: http.client.HTTPConnection | None = None
        self._socket: DeadlineSocket | None = None
        self._json = settings.protocol == HTTP_JSON
        kind = "application/json" if self._json else "application/x-protobuf"
        # Their names are in lower case, like those that were set.
        self._headers = {"user-agent": "fastvideo", **dict(settings.headers), "content-type": kind}
        if settings.gzip:
            self._headers["content-encoding"] = "gzip"
        self._proxy_headers: dict[str, str] = {}
        self._target = ""

    @property
    def target(self) -> str:
        """The URL, without user, password and query."""
        return self._settings.endpoint.shown

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        """Posts one request."""
        deadline = time.monotonic() + timeout_s
        if self._settings.gzip:
            body = gzip.compress(body, _GZIP_LEVEL)
        reused = self._socket is not None
        try:
            try:
                return self._post(body, deadline)
            except (http.client.HTTPException, ConnectionError):
                # A connection that was kept open may have been closed by the other side since.
                if not reused:
                    raise
                self.close()
                return self._post(body, deadline)
        except TimeoutError:
            return Outcome(TIMEOUT, retryable=True, detail="no answer in time")
        except ssl.SSLError as error:
            return Outcome(UNREACHABLE, retryable=True, detail=f"TLS: {error.reason}")
        except (OSError, http.client.HTTPException) as error:
            return Outcome(UNREACHABLE, retryable=True, detail=_name(error))
        finally:
            if self._socket is not None and time.monotonic() >= deadline:
                self.close()

    def abort(self) -> None:
        """Ends the connection under a ``send`` that waits for it."""
        waiting = self._socket
        if waiting is not None:
            waiting.wake()

    def close(self) -> None:
        """Closes the connection."""
        if self._socket is not None:
            self._socket.end()
        self._connection = self._socket = None

    def leave_parent(self) -> None:
        """Closes the child's copy of the connection; the parent's stays as it is."""
        self.close()

    def _post(self, body: bytes, deadline: float) -> Outcome:
        try:
            connection = self._connect(deadline)
            headers = {**self._headers, **self._proxy_headers}
            connection.request("POST", self._target, body, headers)
            response = connection.getresponse()
            answer = response.read(_MAX_ANSWER_BYTES)
        except BaseException:
            self.close()
            raise
        if response.will_close or not response.isclosed():
            self.close()
        return self._outcome(response, answer)

    def _outcome(self, response: http.client.HTTPResponse, answer: bytes) -> Outcome:
        status = response.status
        if status in _OK:
            return Outcome(rejected_spans=0 if self._json else rejected_spans(answer))
        detail = f"HTTP {status}"
        if status in _RETRYABLE:
            wait_s = retry_after_s(response.headers.get("Retry-After"))
            return Outcome(UNAVAILABLE, retryable=True, retry_after_s=wait_s, detail=detail)
        return Outcome(REJECTED, detail=detail)

    def _connect(self, deadline: float) -> http.client.HTTPConnection:
        """Returns the connection, opened if it is not, with a new deadline."""
        if self._connection is not None and self._socket is not None:
            self._socket.deadline = deadline
            return self._connection
        endpoint = self._settings.endpoint
        proxy = find_proxy(endpoint)
        opened = self._socket = DeadlineSocket(deadline)
        self._target, self._proxy_headers = endpoint.path, {}
        if proxy is None:
            opened.connect(endpoint.host, endpoint.port)
        else:
            opened.connect(proxy.host, proxy.port)
            if endpoint.secure:
                _tunnel(opened, endpoint.authority, proxy.headers)
            else:
                self._target = f"http://{endpoint.authority}{endpoint.path}"
                self._proxy_headers = dict(proxy.headers)
        if endpoint.secure:
            opened.secure(tls_context(self._settings), endpoint.host)
        connection = self._connection = http.client.HTTPConnection(endpoint.host, endpoint.port)
        connection.sock = opened
        return connection


def _tunnel(opened: DeadlineSocket, authority: str, headers: Mapping[str, str]) -> None:
    """Asks a proxy to pass on what follows to a host.

    Raises:
        OSError: It does not.
    """
    lines = [f"CONNECT {authority} HTTP/1.1", f"host: {authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    opened.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
    answer = http.client.HTTPResponse(opened, method="CONNECT")  # type: ignore[arg-type]
    answer.begin()
    if answer.status not in _OK:
        raise OSError(0, f"the proxy answers HTTP {answer.status}")


def tls_context(settings: OtlpSettings) -> ssl.SSLContext:
    """Returns what TLS needs: whom to trust, and who this client is."""
    context = ssl.create_default_context(cafile=settings.certificate)
    if settings.client_certificate is not None:
        context.load_cert_chain(settings.client_certificate, settings.client_key)
    return context


def retry_after_s(header: str | None) -> float | None:
    """Returns the seconds that a ``Retry-After`` header asks to wait, or None.

    Args:
        header: A number of seconds or a date.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return max(0.0, moment.timestamp() - time.time())


def _name(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "the host's name cannot be resolved"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
