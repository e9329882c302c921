"""An OTLP receiver for HTTP and gRPC, on opentelemetry-proto's own classes, that can misbehave.

Used by tests in their own process, and as a program by benchmarks and by tests of exit times:
``python otlp_receiver.py http silent`` prints its port, and the number of spans it got when its
standard input is closed.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

BEHAVIOURS: Final = ("healthy", "silent", "unavailable", "slow", "rejecting", "partial", "dripping")


@dataclass
class Received:
    """One request.

    Attributes:
        path: What was requested over HTTP, or the gRPC method.
        headers: Its headers or metadata, names in lower case.
        request: The message.
        size: Bytes of its body as sent.
    """

    path: str
    headers: dict[str, str]
    request: ExportTraceServiceRequest
    size: int


@dataclass
class Inbox:
    """What was received, and how the next requests are answered.

    Attributes:
        behaviour: One of :data:`BEHAVIOURS`; may be changed at any time.
        delay_s: How long ``slow`` waits before it answers, and ``dripping`` between bytes.
        retry_after_s: What ``unavailable`` asks for.
        received: The requests that were taken.
        attempts: How many requests came, taken or not.
    """

    behaviour: str = "healthy"
    delay_s: float = 0.3
    retry_after_s: int = 60
    received: list[Received] = field(default_factory=list)
    attempts: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    closing: threading.Event = field(default_factory=threading.Event)

    def take(self, received: Received) -> bool:
        """Notes a request; returns whether it is taken."""
        with self.changed:
            self.attempts += 1
            self.changed.notify_all()
        if self.behaviour == "silent":
            self.closing.wait()
        if self.behaviour == "slow":
            self.closing.wait(self.delay_s)
        taken = self.behaviour not in {"silent", "unavailable", "rejecting"}
        if taken:
            with self.changed:
                self.received.append(received)
                self.changed.notify_all()
        return taken

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
        """Waits until a condition on what was received holds."""
        with self.changed:
            return self.changed.wait_for(condition, timeout_s)

    def resource_spans(self) -> Iterator[Any]:
        """Gives every ``ResourceSpans`` that was received."""
        for received in list(self.received):
            yield from received.request.resource_spans

    def spans(self) -> list[Span]:
        """Returns every span that was received."""
        return [
            span
            for resource in self.resource_spans()
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class HttpReceiver:
    """OTLP over HTTP on a free port of the loopback."""

    def __init__(self, port: int = 0) -> None:
        self.inbox = Inbox()
        handler = type("Handler", (_HttpHandler,), {"inbox": self.inbox})
        self._server = _Server(("127.0.0.1", port), handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """What ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set to."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stops answering, closes every connection and frees the port."""
        self.inbox.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *args: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: clients that give up are what is tested."""


class _HttpHandler(BaseHTTPRequestHandler):
    inbox: Inbox
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
        as_json = self.headers["Content-Type"] == "application/json"
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = read_json(body) if as_json else ExportTraceServiceRequest.FromString(body)
        taken = self.inbox.take(Received(self.path, headers, request, len(raw)))
        if self.inbox.closing.is_set():
            self.close_connection = True
        elif self.inbox.behaviour == "dripping":
            self._drip()
        else:
            self._answer(taken=taken, as_json=as_json)

    def _answer(self, *, taken: bool, as_json: bool) -> None:
        status = 200 if taken else {"unavailable": 503}.get(self.inbox.behaviour, 400)
        response = ExportTraceServiceResponse()
        if self.inbox.behaviour == "partial":
            response.partial_success.rejected_spans = 1
            response.partial_success.error_message = "too old"
        body = b"{}" if as_json else response.SerializeToString()
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", str(self.inbox.retry_after_s))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Padding: x\r\n" * 100:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            if self.inbox.closing.wait(self.inbox.delay_s):
                break
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server calls it
        """Says nothing."""


class GrpcReceiver(TraceServiceServicer):
    """OTLP over gRPC on a free port of the loopback."""

    def __init__(self, port: int = 0) -> None:
        self.inbox = Inbox()
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        add_TraceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def endpoint(self) -> str:
        """What ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set to."""
        return f"http://127.0.0.1:{self.port}"

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name
        """Takes one request."""
        headers = dict(context.invocation_metadata())
        taken = self.inbox.take(Received("Export", headers, request, request.ByteSize()))
        response = ExportTraceServiceResponse()
        if self.inbox.behaviour == "partial":
            response.partial_success.rejected_spans = 1
        if not taken and not self.inbox.closing.is_set():
            if self.inbox.behaviour == "rejecting":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
            delay = RetryInfo(retry_delay=Duration(seconds=self.inbox.retry_after_s))
            context.set_trailing_metadata(
                (("google.rpc.retryinfo-bin", delay.SerializeToString()),)
            )
            context.abort(grpc.StatusCode.UNAVAILABLE, "later")
        return response

    def close(self) -> None:
        """Stops answering and frees the port."""
        self.inbox.closing.set()
        self._server.stop(grace=None).wait()


def read_json(body: bytes) -> ExportTraceServiceRequest:
    """Reads OTLP's JSON form, in which ids are hexadecimal and not base64."""
    parsed = json.loads(body)
    for resource in parsed["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for holder in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in holder:
                            holder[key] = _base64(holder[key])
    return json_format.ParseDict(parsed, ExportTraceServiceRequest())


def _base64(hexadecimal: str) -> str:
    import base64  # noqa: PLC0415

    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()


def refusing_port() -> int:
    """Returns a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(protocol: str, behaviour: str) -> None:
    """Serves until standard input is closed."""
    receiver = GrpcReceiver() if protocol == "grpc" else HttpReceiver()
    receiver.inbox.behaviour = behaviour
    print(receiver.port, flush=True)  # noqa: T201
    sys.stdin.read()
    deadline = time.monotonic() + 5
    while receiver.inbox.received and time.monotonic() < deadline:
        before = receiver.inbox.attempts
        receiver.inbox.wait_for(lambda: receiver.inbox.attempts > before, 0.2)  # noqa: B023
        if receiver.inbox.attempts == before:
            break
    print(len(receiver.inbox.spans()), flush=True)  # noqa: T201
    receiver.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
