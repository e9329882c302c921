"""Instruments with known numbers, endpoints that serve them, and certificates."""

from __future__ import annotations

import gzip
import http.client
import shutil
import socket
import ssl
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.collector import InstrumentsCollector
from fastvideo.observability.metrics.server import MetricsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STEP = "fastvideo_training_step_duration_seconds"
TRACE = "0123456789abcdef" * 2
SPAN = "0123456789abcdef"
OBSERVED_AT = 1_790_857_026.25


@dataclass(frozen=True, slots=True)
class Scrape:
    """What an endpoint answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body, decompressed."""
        gzipped = self.headers.get("content-encoding") == "gzip"
        return (gzip.decompress(self.body) if gzipped else self.body).decode()


def fill(instruments: Instruments) -> Instruments:
    """Writes a few numbers of every kind."""
    steps = instruments.histogram(STEP, "generator")
    steps.observe(0.5, TRACE, SPAN)
    steps.observe(30.0)
    steps.observe(5000.0, TRACE)
    instruments.counter("fastvideo_training_steps_total").add(3)
    instruments.counter("fastvideo_training_samples_total").add(12_345_678.0)
    instruments.gauge("fastvideo_training_loss", "total_loss").set(float("nan"))
    instruments.gauge("fastvideo_training_metric", 'a "quoted" \\ and\nbroken name').set(-1e-9)
    instruments.gauge("fastvideo_training_metric", "größe").set(float("inf"))
    instruments.gauge("fastvideo_training_last_step_timestamp_seconds").set(OBSERVED_AT)
    instruments.gauge("fastvideo_run_info", "my run", "DMD2", "wan2.1", 2).set(1)
    regions = [(("training_forward",), 3, 1.25), (("my_region",), 2, 0.5)]
    instruments.summary_source("fastvideo_region_duration_seconds", lambda: regions)
    memory = [(("allocated",), 4096), (("reserved",), 8192.0)]
    instruments.gauge_source("fastvideo_device_memory_bytes", lambda: memory)
    return instruments


@pytest.fixture
def instruments() -> Instruments:
    """Gives instruments with numbers of every kind."""
    return fill(Instruments(clock=lambda: OBSERVED_AT))


@pytest.fixture
def collector(instruments: Instruments) -> InstrumentsCollector:
    """Gives the collector of those instruments."""
    return InstrumentsCollector(instruments, {"rank": "0", "run": "run-1"})


@pytest.fixture
def serve(collector: InstrumentsCollector) -> Iterator[Callable[..., MetricsServer]]:
    """Gives a function that starts an endpoint on a free port; it is stopped after the test."""
    servers: list[MetricsServer] = []

    def start(**options: Any) -> MetricsServer:
        server = MetricsServer(collector, **({"port": 0} | options))
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


def _ask(
    server: MetricsServer,
    path: str = "/metrics",
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    timeout: float = 5.0,
) -> Scrape:
    """Sends one request to an endpoint."""
    assert server.address is not None
    host, port = server.address
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Scrape(response.status, found, response.read())
    finally:
        connection.close()


@pytest.fixture
def ask() -> Callable[..., Scrape]:
    """Gives a function that sends one request to an endpoint."""
    return _ask


@pytest.fixture
def connect() -> Iterator[Callable[[MetricsServer], socket.socket]]:
    """Gives a function that opens bare connections; they are closed after the test."""
    sockets: list[socket.socket] = []

    def open_connection(server: MetricsServer) -> socket.socket:
        assert server.address is not None
        sockets.append(socket.create_connection(server.address, timeout=5.0))
        return sockets[-1]

    yield open_connection
    for sock in sockets:
        sock.close()


@dataclass(frozen=True, slots=True)
class Certificates:
    """A private authority and what it signed."""

    directory: Path

    def context(self, client: str | None = None) -> ssl.SSLContext:
        """Returns a client's context that trusts the authority and shows ``client``'s."""
        context = ssl.create_default_context(cafile=self.directory / "ca.pem")
        if client is not None:
            context.load_cert_chain(
                self.directory / f"{client}.pem", self.directory / f"{client}.key"
            )
        return context

    def issue(self, name: str, san: str) -> None:
        """Writes ``<name>.pem`` and ``<name>.key``."""
        self._openssl(
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        (self.directory / f"{name}.ext").write_text(f"subjectAltName={san}\n")
        self._openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-out",
            f"{name}.pem",
            "-extfile",
            f"{name}.ext",
        )

    def make_authority(self) -> None:
        """Writes ``ca.pem`` and ``ca.key``."""
        self._openssl(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
            "-subj",
            "/CN=test authority",
        )

    def _openssl(self, *arguments: str) -> None:
        program = shutil.which("openssl")
        assert program is not None
        subprocess.run([program, *arguments], cwd=self.directory, check=True, capture_output=True)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Gives an authority, the certificate of an endpoint, and those of two clients."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.make_authority()
    made.issue("server", "IP:127.0.0.1,DNS:localhost")
    made.issue("prometheus", "DNS:prometheus.example")
    made.issue("stranger", "DNS:stranger.example")
    return made
