"""One request to a collector: what is sent, and what every answer means."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.tracing import wire
from fastvideo.observability.tracing.exporters import make_transport
from fastvideo.observability.tracing.http_transport import HttpTransport, retry_after_s
from fastvideo.observability.tracing.records import SpanRecord
from fastvideo.observability.tracing.settings import TraceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from fastvideo.observability.tracing.transport import Transport

BODY = wire.encode_request(
    wire.encode_resource({"a": "b"}),
    wire.encode_scope("s", "1"),
    [wire.encode_span(SpanRecord("x", 1, 2, 0, 3, 4))],
)


def _transport(endpoint: str, protocol: str, **variables: str) -> Transport:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        **{f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()},
    }
    settings = TraceSettings.from_env(environ)
    assert settings.otlp is not None
    transport = make_transport(settings.otlp)
    assert transport is not None
    return transport


@pytest.fixture(params=["http/protobuf", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Both transports behave alike."""
    return str(request.param)


@pytest.fixture
def receiver(protocol: str, otlp_receiver: ModuleType) -> Iterator[Any]:
    """A receiver for the protocol."""
    kind = otlp_receiver.GrpcReceiver if protocol == "grpc" else otlp_receiver.HttpReceiver
    made = kind()
    yield made
    made.close()


@pytest.fixture
def transport(receiver: Any, protocol: str) -> Iterator[Transport]:
    """A transport to the receiver."""
    made = _transport(receiver.endpoint, protocol, HEADERS="X-Team=a%20b")
    yield made
    made.close()


def test_taken(transport: Transport, receiver: Any) -> None:
    """A request arrives whole, with the headers that were asked for."""
    outcome = transport.send(BODY, 5)
    assert (outcome.reason, outcome.rejected_spans) == ("", 0)
    (received,) = receiver.inbox.received
    assert received.headers["x-team"] == "a b"
    assert received.headers["user-agent"].startswith("fastvideo")
    assert [span.name for span in receiver.inbox.spans()] == ["x"]


def test_partial_success_is_told(transport: Transport, receiver: Any) -> None:
    """Spans that the collector refuses in a taken request are counted."""
    receiver.inbox.behaviour = "partial"
    assert transport.send(BODY, 5).rejected_spans == 1


def test_unavailable(transport: Transport, receiver: Any) -> None:
    """A collector that asks for a wait gets it, and the request may be sent again."""
    receiver.inbox.behaviour = "unavailable"
    outcome = transport.send(BODY, 5)
    assert (outcome.reason, outcome.retryable, outcome.retry_after_s) == ("unavailable", True, 60.0)


def test_rejected(transport: Transport, receiver: Any) -> None:
    """A request that will never be taken is not sent again."""
    receiver.inbox.behaviour = "rejecting"
    outcome = transport.send(BODY, 5)
    assert (outcome.reason, outcome.retryable) == ("rejected", False)


def test_silent(transport: Transport, receiver: Any) -> None:
    """A collector that accepts and says nothing costs the time-out and no more."""
    receiver.inbox.behaviour = "silent"
    begin = time.monotonic()
    outcome = transport.send(BODY, 0.3)
    assert (outcome.reason, outcome.retryable) == ("timeout", True)
    assert 0.25 < time.monotonic() - begin < 1.5


def test_refusing(otlp_receiver: ModuleType, protocol: str) -> None:
    """A port that nobody listens on is an outcome, not an exception."""
    made = _transport(f"http://127.0.0.1:{otlp_receiver.refusing_port()}", protocol)
    outcome = made.send(BODY, 2)
    assert (outcome.reason, outcome.retryable) == ("unreachable", True)
    made.close()


def test_a_name_that_does_not_exist(protocol: str) -> None:
    """A host that cannot be resolved is an outcome."""
    made = _transport("http://collector.invalid:4318", protocol)
    outcome = made.send(BODY, 2)
    assert outcome.reason in {"unreachable", "timeout"}
    assert outcome.retryable
    made.close()


def test_abort_ends_a_wait(transport: Transport, receiver: Any) -> None:
    """Another thread can end a wait for an answer."""
    receiver.inbox.behaviour = "silent"
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(transport.send(BODY, 30)))
    thread.start()
    assert receiver.inbox.wait_for(lambda: receiver.inbox.attempts > 0)
    transport.abort()
    thread.join(5)
    assert not thread.is_alive()
    assert outcomes[0].reason


def test_a_collector_that_was_restarted(
    protocol: str, otlp_receiver: ModuleType, receiver: Any, transport: Transport
) -> None:
    """A connection that was kept open and is dead by now costs no spans."""
    assert not transport.send(BODY, 5).reason
    receiver.close()
    again = type(receiver)(receiver.port)
    try:
        for _ in range(20):
            outcome = transport.send(BODY, 5)
            if not outcome.reason:
                break
            time.sleep(0.1)  # gRPC waits a moment before it connects again
        assert not outcome.reason
        assert len(again.inbox.spans()) == 1
    finally:
        again.close()


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json", "grpc"])
def test_compression(protocol: str, otlp_receiver: ModuleType) -> None:
    """Requests can be compressed, over every protocol."""
    kind = otlp_receiver.GrpcReceiver if protocol == "grpc" else otlp_receiver.HttpReceiver
    receiver = kind()
    made = _transport(receiver.endpoint, protocol, COMPRESSION="gzip")
    body = b'{"resourceSpans":[]}' if protocol == "http/json" else BODY
    assert not made.send(body, 5).reason
    (received,) = receiver.inbox.received
    if protocol != "grpc":
        assert received.headers["content-encoding"] == "gzip"
    made.close()
    receiver.close()


def test_connections_are_kept(http_receiver: Any) -> None:
    """Requests share one connection."""
    made = _transport(http_receiver.endpoint, "http/protobuf")
    ports = set()
    for _ in range(3):
        assert not made.send(BODY, 5).reason
        assert isinstance(made, HttpTransport)
        assert made._socket is not None
        ports.add(made._socket._inner.getsockname()[1])
    assert len(ports) == 1
    made.close()


def test_an_answer_that_drips_in_is_not_waited_for(http_receiver: Any) -> None:
    """The time-out is for the whole answer, also when a byte of it comes every moment."""
    http_receiver.inbox.behaviour = "dripping"
    http_receiver.inbox.delay_s = 0.05
    made = _transport(http_receiver.endpoint, "http/protobuf")
    begin = time.monotonic()
    outcome = made.send(BODY, 0.4)
    assert outcome.reason == "timeout"
    assert time.monotonic() - begin < 1.5
    made.close()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("60", 60.0),
        (" 5 ", 5.0),
        ("soon", None),
        ("-1", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("9" * 400, 999999999.0),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    """The header is read as seconds or as a date, and never raises."""
    assert retry_after_s(header) == seconds


def test_proxies_of_the_environment(http_receiver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that the environment names is asked, unless it is told to leave the host alone."""
    monkeypatch.setenv("http_proxy", f"http://user:pw@127.0.0.1:{http_receiver.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    made = _transport("http://collector.invalid:4318", "http/protobuf")
    assert not made.send(BODY, 5).reason
    (received,) = http_receiver.inbox.received
    assert received.path == "http://collector.invalid:4318/v1/traces"
    assert received.headers["proxy-authorization"] == "Basic dXNlcjpwdw=="
    made.close()
    monkeypatch.setenv("no_proxy", "collector.invalid")
    bypassing = _transport("http://collector.invalid:4318", "http/protobuf")
    assert bypassing.send(BODY, 2).reason == "unreachable"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for the loopback, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, made = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(key), "-out", str(made), "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return made, key


def test_tls(otlp_receiver: ModuleType, certificate: tuple[Path, Path]) -> None:
    """TLS is spoken with the certificates that are set, and not with any other."""
    made, key = certificate
    receiver = otlp_receiver.HttpReceiver()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
    endpoint = receiver.endpoint.replace("http://", "https://")
    trusting = _transport(endpoint, "http/protobuf", CERTIFICATE=str(made))
    assert not trusting.send(BODY, 5).reason
    trusting.close()
    other = _transport(endpoint, "http/protobuf")
    outcome = other.send(BODY, 5)
    assert (outcome.reason, outcome.detail) == (
        "unreachable",
        "TLS: CERTIFICATE_VERIFY_FAILED",
    )
    receiver.close()


def test_tls_is_not_spoken_to_http(http_receiver: Any) -> None:
    """A plain-text port asked for TLS is an outcome, in time."""
    endpoint = http_receiver.endpoint.replace("http://", "https://")
    made = _transport(endpoint, "http/protobuf")
    outcome = made.send(BODY, 1)
    assert outcome.reason in {"unreachable", "timeout"}
    made.close()


def test_grpc_is_not_imported_for_http() -> None:
    """Whoever uses HTTP does not pay for gRPC, nor for the SDK."""
    code = (
        "import sys\n"
        "import fastvideo.observability.tracing.worker\n"
        "from fastvideo.observability.tracing.settings import TraceSettings\n"
        "TraceSettings.from_env({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://c'})\n"
        "heavy = [m for m in ('grpc', 'requests', 'opentelemetry.sdk', 'google.protobuf')"
        " if m in sys.modules]\n"
        "print(heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_garbage_instead_of_http() -> None:
    """A port where something else answers is an outcome."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(65536)
            connection.sendall(b"\x16\x03\x01 not http\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        made = _transport(f"http://127.0.0.1:{server.getsockname()[1]}", "http/protobuf")
        outcome = made.send(BODY, 2)
        assert (outcome.reason, outcome.retryable) == ("unreachable", True)
        thread.join()
        made.close()
