"""One request to a collector: what is sent, and what every answer means."""

from __future__ import annotations

import json
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.tracing import proxies, wire
from fastvideo.observability.tracing.endpoints import Endpoint
from fastvideo.observability.tracing.exporters import make_transport
from fastvideo.observability.tracing.http_transport import HttpTransport, retry_after_s
from fastvideo.observability.tracing.proxies import Proxy, find_grpc_proxy, find_proxy
from fastvideo.observability.tracing.records import SpanRecord
from fastvideo.observability.tracing.settings import TraceSettings
from fastvideo.observability.tracing.transport import TIMEOUT, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
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


@pytest.mark.alone
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
    for _ in range(50):  # the receiver may know of a call before the thread that makes it waits
        transport.abort()
        thread.join(0.1)
        if not thread.is_alive():
            break
    assert not thread.is_alive()
    assert outcomes[0].reason


def test_abort_ends_a_grpc_call_that_is_being_made(grpc_receiver: Any) -> None:
    """Also one that comes before the transport has the call in its hands."""
    transport: Any = _transport(grpc_receiver.endpoint, "grpc")
    assert not transport.send(BODY, 30).reason
    grpc_receiver.inbox.behaviour = "silent"
    export = transport._export

    class Early:
        @staticmethod
        def future(*arguments: Any, **options: Any) -> Any:
            call = export.future(*arguments, **options)
            transport.abort()
            return call

    transport._export = Early
    outcome = transport.send(BODY, 30)
    assert (outcome.reason, outcome.detail) == (TIMEOUT, "cancelled")
    transport.close()


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
        assert made._socket._inner is not None
        ports.add(made._socket._inner.getsockname()[1])
    assert len(ports) == 1
    made.close()


@pytest.mark.alone
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


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_no_proxy_is_asked_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
    otlp_receiver: ModuleType,
    receiver: Any,
    protocol: str,
    host: str,
) -> None:
    """A collector on the loopback is reached directly, whatever proxies the environment names."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{otlp_receiver.refusing_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    made = _transport(f"http://{host}:{receiver.port}", protocol)
    assert made.send(BODY, 5).reason == ""
    made.close()


@pytest.mark.parametrize(
    ("host", "no_proxy", "direct"),
    [
        ("::1", "", True),
        ("127.9.9.9", "", True),
        ("::ffff:127.0.0.1", "", True),
        ("otel.localhost", "", True),
        ("collector", "", False),
        ("collector", "other", False),
        ("collector", "other, collector", True),
        ("collector.corp", ".corp", True),
        ("collector.corp", "*", True),
        ("collector", "collector:4318", True),
        ("collector", "collector:1", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "192.168.0.0/16,nonsense/x", False),
        ("fd00::1", "fd00::1", True),
        ("fd00::1", "fd00::/8", True),
        ("fd00::1", "10.0.0.0/8", False),
    ],
)
def test_which_hosts_need_no_proxy(
    monkeypatch: pytest.MonkeyPatch, *, host: str, no_proxy: str, direct: bool
) -> None:
    """This machine never does; others as ``no_proxy`` says, by name, address or network."""
    monkeypatch.setenv("http_proxy", "proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    endpoint = Endpoint(secure=False, host=host, port=4318, path="/v1/traces")
    expected = None if direct else Proxy("proxy", 3128)
    assert find_proxy(endpoint) == find_grpc_proxy(endpoint) == expected


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n|ab",
        b"HTTP/1.0 200 OK\r\n\r\n|ab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n|2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n|",
    ],
)
def test_answers_that_end_the_connection(answer: bytes) -> None:
    """What was taken is not sent again because the answer is the connection's last."""
    made, thread = _answering(*answer.split(b"|"))
    assert made.send(BODY, 5) == Outcome()
    made.close()
    thread.join()


def _answering(*parts: bytes) -> tuple[Transport, threading.Thread]:
    """Returns a transport to a server that gives one answer, in parts, and then closes."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with server, server.accept()[0] as connection:
            received = b""
            while not received.endswith(BODY):
                received += connection.recv(65536)
            for part in parts:
                connection.sendall(part)
                time.sleep(0.05)

    thread = threading.Thread(target=answer)
    thread.start()
    return _transport(f"http://127.0.0.1:{server.getsockname()[1]}", "http/protobuf"), thread


@pytest.mark.parametrize("named", ["http://user:hidden@proxy:abc", "http://[::1", ":", "http://"])
def test_a_proxy_that_is_none_is_what_the_outcome_names(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Whoever reads that spans do not reach the collector learns where to look."""
    monkeypatch.setenv("http_proxy", named)
    monkeypatch.delenv("no_proxy", raising=False)
    transport = _transport("http://collector.example:4318", "http/protobuf")
    outcome = transport.send(b"", 1.0)
    assert (outcome.reason, outcome.retryable) == ("unreachable", True)
    assert outcome.detail == "the proxy that the environment names is no URL with a host"


def test_tls_through_a_proxy(
    otlp_receiver: ModuleType,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proxy is asked to connect, TLS is spoken with the collector, and a refusal is told."""
    receiver = _tls_receiver(otlp_receiver, certificate)
    asked: list[bytes] = []
    proxy = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answer in (b"200 Connected", b"407 Proxy Authentication Required"):
            client, _ = proxy.accept()
            asked.append(client.recv(65536))
            client.sendall(b"HTTP/1.1 " + answer + b"\r\n\r\n")
            if answer.startswith(b"200"):
                _relay(client, receiver.port)
            client.close()

    thread = threading.Thread(target=serve)
    thread.start()
    monkeypatch.setenv("https_proxy", f"http://user:pw@127.0.0.1:{proxy.getsockname()[1]}")
    monkeypatch.setattr(proxies, "is_loopback", lambda host: False)
    endpoint = f"https://localhost:{receiver.port}"
    made = _transport(endpoint, "http/protobuf", CERTIFICATE=str(certificate[0]))
    assert made.send(BODY, 5) == Outcome()
    made.close()
    outcome = made.send(BODY, 5)
    assert (outcome.reason, outcome.detail) == ("unreachable", "the proxy answers HTTP 407")
    thread.join()
    proxy.close()
    receiver.close()
    first = asked[0].decode().splitlines()
    assert first[0] == f"CONNECT localhost:{receiver.port} HTTP/1.1"
    assert "proxy-authorization: Basic dXNlcjpwdw==" in first
    (received,) = receiver.inbox.received
    assert "proxy-authorization" not in received.headers


def _relay(client: socket.socket, port: int) -> None:
    """Passes on what two ends send until one of them closes."""
    with socket.create_connection(("127.0.0.1", port)) as server:
        ends = {client: server, server: client}
        while True:
            for end in select.select(list(ends), [], [])[0]:
                data = end.recv(65536)
                if not data:
                    return
                ends[end].sendall(data)


@pytest.mark.parametrize(
    ("protocol", "moment"),
    [
        ("http/protobuf", "idle"),
        ("http/protobuf", "waiting"),
        ("http/protobuf", "reconnecting"),
        ("grpc", "idle"),
        ("grpc", "waiting"),
    ],
)
def test_a_forked_child_has_no_socket(receiver: Any, protocol: str, moment: str) -> None:
    """Whatever the transport is doing at the moment of a fork, and the parent goes on."""
    if moment == "waiting":
        receiver.inbox.behaviour = "silent"
    assert _fork(protocol, receiver.endpoint, moment) == {"leaks": 0, "works": moment != "waiting"}


def test_a_child_that_is_forked_in_the_middle_of_a_handshake() -> None:
    """A server that accepts and says nothing holds up the handshake; a child has no part in it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"https://127.0.0.1:{server.getsockname()[1]}"
        assert _fork("http/protobuf", endpoint, "waiting") == {"leaks": 0, "works": False}


def _fork(protocol: str, endpoint: str, moment: str) -> Any:
    program = Path(__file__).with_name("fork_beside_transport.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), protocol, endpoint, moment],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


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
    made, _ = certificate
    receiver = _tls_receiver(otlp_receiver, certificate)
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


def _tls_receiver(otlp_receiver: ModuleType, certificate: tuple[Path, Path]) -> Any:
    receiver = otlp_receiver.HttpReceiver()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
    return receiver


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
