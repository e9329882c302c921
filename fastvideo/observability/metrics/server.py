"""The HTTP endpoint of one process: one thread, no waiting for any client.

All sockets are non-blocking and each client has a deadline, so those that connect and say nothing,
or read nothing, cost a file descriptor for some seconds, and scrapes go on beside them. When too
many are there the oldest has to leave. A forked child has none of it: the sockets are closed there
and the thread does not exist.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger
from fastvideo.observability.forks import FORKS
from fastvideo.observability.metrics.endpoint import PATH, Endpoint
from fastvideo.observability.metrics.http_connection import Connection
from fastvideo.observability.metrics.listening import is_loopback, listen
from fastvideo.observability.metrics.scrape_rhythm import ScrapeRhythm
from fastvideo.observability.metrics.text_format import TextRenderer
from fastvideo.observability.metrics.web_config import WebConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.observability.metrics.collector import InstrumentsCollector

logger = init_logger(__name__)

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9464

_CLIENT_TIMEOUT_S: Final = 10.0
_MAX_CLIENTS: Final = 32
_STOP_S: Final = 1.0
_PAUSE_S: Final = 0.5


class MetricsServer:
    """Serves the numbers of this process to Prometheus.

    Args:
        collector: The numbers, and the labels of every series.
        host: Name or address to listen on.
        port: Port to listen on; the next free one is taken if it is busy. 0: any free port.
        web_config: TLS and who may ask; None: plain HTTP for everybody who reaches the address.
        client_timeout_s: Seconds that one client may take.
        max_clients: Clients at a time; the oldest leaves for one more.
    """

    def __init__(
        self,
        collector: InstrumentsCollector,
        *,
        host: str = DEFAULT_HOST,
        port: int = DEFAULT_PORT,
        web_config: WebConfig | None = None,
        client_timeout_s: float = _CLIENT_TIMEOUT_S,
        max_clients: int = _MAX_CLIENTS,
    ) -> None:
        self._wanted = (host, port)
        self._web_config = web_config or WebConfig()
        self._client_timeout_s = client_timeout_s
        self._max_clients = max_clients
        self._scrapes = ScrapeRhythm()
        renderer = TextRenderer(collector.instruments, collector.constant_labels)
        self._endpoint = Endpoint(renderer, self._web_config, self._scrapes)
        self._open: _OpenServer | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """The address and port that are listened on; None while stopped and in forked children."""
        return None if self._open is None else self._open.address

    @property
    def url(self) -> str | None:
        """Where the metrics are, as seen on this machine; None while stopped."""
        if self.address is None:
            return None
        host, port = self.address
        return f"{self._web_config.scheme}://{f'[{host}]' if ':' in host else host}:{port}{PATH}"

    def start(self) -> tuple[str, int]:
        """Starts to serve; while it serves, changes nothing.

        Returns:
            The address and port that are listened on.

        Raises:
            ConfigError: The host is no address of this machine.
            RuntimeError: The process may not have another thread.
        """
        if self._open is None:
            listener = listen(*self._wanted)
            self._open = opened = _OpenServer(listener, self)
            FORKS.watch(self)
            try:
                opened.thread.start()
            except RuntimeError:
                self._open = None
                opened.close()
                raise
            self._say_where(opened.address)
        return self._open.address

    def stop(self) -> None:
        """Stops to serve, within a second or so; a second time changes nothing."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.stop()

    def linger(
        self,
        *,
        scrapes: int = 2,
        limit_s: float = 60.0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Serves on until the last state has been scraped, judging by when scrapes came so far.

        Who does not scrape regularly is not waited for, nor who comes too late.

        Args:
            scrapes: How many more scrapes are waited for.
            limit_s: The longest wait, in seconds.
            is_over: Tells whether the wait has been called off.

        Returns:
            Whether they came.
        """
        if self._open is None:
            return False
        outlook = self._scrapes.outlook(scrapes=scrapes, limit_s=limit_s)
        if outlook.too_late_s:
            logger.info(
                "the end of the run will not be scraped: that would take %.0f s, and %.0f s are "
                "left of what FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS and the launcher allow",
                *(outlook.too_late_s, max(limit_s, 0.0)),
            )
        if not outlook.until:
            return False
        logger.info(
            "the run is over; waiting up to %.0f s for its last numbers to be scraped (Ctrl-C or "
            "SIGTERM: end now; FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS=0: never wait)",
            outlook.longest_s,
        )
        came = self._scrapes.wait(outlook, scrapes=scrapes, is_over=is_over)
        logger.info("the last numbers were %sscraped", "" if came else "not ")
        return came

    def accept(self, sock: socket.socket, now: float) -> Connection:
        """Returns the connection of a client that was just accepted.

        Raises:
            OSError: The client has left already.
        """
        sock.setblocking(False)
        contexts = self._web_config.tls
        if contexts is not None:
            sock = contexts.current().wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
        respond = self._endpoint.respond
        return Connection(sock, respond, now=now, timeout_s=self._client_timeout_s)

    @property
    def max_clients(self) -> int:
        """Clients at a time."""
        return self._max_clients

    def leave_parent(self) -> None:
        """Lets go, in a forked child, of the sockets that are the parent's."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def _say_where(self, address: tuple[str, int]) -> None:
        host, port = address
        wanted = self._wanted[1]
        if wanted not in (port, 0):
            logger.warning("port %d is taken; metrics are served at %s", wanted, self.url)
        else:
            logger.info("metrics are served at %s", self.url)
        if not is_loopback(host) and not self._web_config.protects:
            logger.warning(
                "metrics on %s port %d can be read by everybody who reaches it; set "
                "FASTVIDEO_METRICS_WEB_CONFIG, or FASTVIDEO_METRICS_HOST=127.0.0.1",
                host,
                port,
            )


class _OpenServer:
    """The sockets and the thread of a server that serves."""

    def __init__(self, listener: socket.socket, server: MetricsServer) -> None:
        name = listener.getsockname()
        self.address: tuple[str, int] = (name[0], name[1])
        self.thread = threading.Thread(target=self._run, name="fastvideo-metrics", daemon=True)
        self._server = server
        self._listener = listener
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._clients: dict[socket.socket, Connection] = {}
        self._paused_until: float | None = None
        self._was_refused = False
        self._stopping = False
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)

    def stop(self) -> None:
        self._stopping = True
        with suppress(OSError):
            self._wake.send(b"\0")
        self.thread.join(_STOP_S)
        # Closed here as well, for a thread that is still busy with a password or a slow source.
        with FORKS.lock, suppress(OSError):
            self._listener.close()

    def close(self) -> None:
        """Closes everything without a word to the clients."""
        with FORKS.lock:
            for connection in list(self._clients.values()):
                connection.close()
            self._clients.clear()
            for closable in (self._listener, self._wake, self._woken, self._selector):
                with suppress(OSError):
                    closable.close()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn(self._selector.select(self._longest_wait()))
        except Exception as error:
            if not self._stopping:
                logger.exception("metrics are no longer served: %s", type(error).__name__)
        finally:
            self.close()

    def _turn(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        now = time.monotonic()
        for key, _ in ready:
            if key.fileobj is self._listener:
                self._accept_all(now)
            elif key.data is not None:
                self._advance(key.data, now)
        self._give_up_late_clients(now)
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _longest_wait(self) -> float | None:
        ends = [connection.deadline for connection in self._clients.values()]
        if self._paused_until is not None:
            ends.append(self._paused_until)
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _accept_all(self, now: float) -> None:
        for _ in range(self._server.max_clients):
            try:
                connection = self._accept_one(now)
            except BlockingIOError:
                return
            except OSError as error:  # out of file descriptors, usually: spinning would not help
                if not self._was_refused:
                    self._was_refused = True
                    logger.warning("a scrape could not be accepted: %s", error)
                self._selector.unregister(self._listener)
                self._paused_until = now + _PAUSE_S
                return
            if connection is not None:
                self._advance(connection, now)

    def _accept_one(self, now: float) -> Connection | None:
        with FORKS.lock:  # a fork meanwhile would give the child a socket that nobody knows of
            sock, _ = self._listener.accept()
            if len(self._clients) >= self._server.max_clients:
                self._forget(next(iter(self._clients.values())))
            try:
                connection = self._server.accept(sock, now)
            except OSError:  # it is gone already, before its TLS handshake
                sock.close()
                return None
            self._clients[connection.sock] = connection
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
        return connection

    def _advance(self, connection: Connection, now: float) -> None:
        if connection.sock not in self._clients:  # it had to leave in this very turn
            return
        events = connection.advance(now)
        if events:
            self._selector.modify(connection.sock, events, connection)
        else:
            self._forget(connection)

    def _give_up_late_clients(self, now: float) -> None:
        for connection in list(self._clients.values()):
            if now >= connection.deadline:
                self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        with FORKS.lock:  # while a socket is being closed, a child could not close its copy
            self._selector.unregister(connection.sock)
            connection.close()
            del self._clients[connection.sock]
