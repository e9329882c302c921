"""OTLP over HTTP, with the standard library: what a request needs is one POST."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import gzip
import http.client
import socket
import ssl
import time
import urllib.request
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from fastvideo.observability.tracing.deadline_socket import DeadlineSocket, remaining
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
        self._headers = {"User-Agent": "fastvideo", **dict(settings.headers), "Content-Type": kind}
        if settings.gzip:
            self._headers["Content-Encoding"] = "gzip"

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
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()

    def leave_parent(self) -> None:
        """Closes the child's copy of the connection; the parent's stays as it is."""
        self.close()

    def _post(self, body: bytes, deadline: float) -> Outcome:
        try:
            connection = self._connect(deadline)
            connection.request("POST", self._path(), body, self._headers)
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

    def _path(self) -> str:
        endpoint = self._settings.endpoint
        if not endpoint.secure and self._proxy() is not None:
            return f"http://{endpoint.authority}{endpoint.path}"
        return endpoint.path

    def _proxy(self) -> str | None:
        """Returns the URL of the proxy that the environment names for the endpoint, or None."""
        endpoint = self._settings.endpoint
        proxy = urllib.request.getproxies().get("https" if endpoint.secure else "http")
        if proxy is None or urllib.request.proxy_bypass(endpoint.authority):
            return None
        return proxy

    def _connect(self, deadline: float) -> http.client.HTTPConnection:
        """Returns the connection, opened if it is not, with a new deadline."""
        if self._connection is not None and self._socket is not None:
            self._socket.deadline = deadline
            return self._connection
        endpoint, proxy = self._settings.endpoint, self._proxy()
        host, port = endpoint.host, endpoint.port
        connection: http.client.HTTPConnection
        if proxy is not None:
            url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
            host, port = url.hostname or "", url.port or 80
        timeout_s = remaining(deadline)
        if endpoint.secure:
            context = tls_context(self._settings)
            connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        if proxy is not None and endpoint.secure:
            connection.set_tunnel(endpoint.host, endpoint.port, _proxy_headers(url.netloc))
        elif proxy is not None:
            self._headers.update(_proxy_headers(url.netloc))
        connection.connect()
        self._socket = DeadlineSocket(connection.sock, deadline)
        connection.sock = self._socket
        self._connection = connection
        return connection


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


def _proxy_headers(netloc: str) -> dict[str, str]:
    """Returns the header that names a user to a proxy whose URL has one."""
    credentials, at, _ = netloc.rpartition("@")
    if not at:
        return {}
    encoded = base64.b64encode(unquote(credentials).encode()).decode("ascii")
    return {"Proxy-Authorization": f"Basic {encoded}"}


def _name(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "the host's name cannot be resolved"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
