"""Pushed metrics, over the wire to receivers made of the official classes."""

from __future__ import annotations

import gzip
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service_grpc

from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.otlp import OtlpMetrics, OtlpMetricsSettings
from fastvideo.observability.metrics.otlp_encoding import encode
from fastvideo.observability.tracing.exporters import make_transport
from fastvideo.observability.tracing.transport import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IDENTITY = RunIdentity(
    run_id="id",
    attempt="0",
    run_name="run-1",
    rank=0,
    world_size=2,
    local_rank=0,
    host_name="node7",
    host_id="h",
    sampler_ratio=1.0,
    traceparent=None,
)
OBSERVED_AT = 1_790_857_026.25
Request = Any
Received = queue.SimpleQueue[tuple[dict[str, str], Request]]


class _HttpReceiver(ThreadingHTTPServer):
    """Takes OTLP over HTTP, as a collector does."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        self.received: Received = queue.SimpleQueue()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _HttpReceiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers["path"] = self.path
        answer = service.ExportMetricsServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        request = service.ExportMetricsServiceRequest.FromString(body)
        self.server.received.put((headers, request))

    def log_message(self, *arguments: Any) -> None:
        pass


class _GrpcReceiver(service_grpc.MetricsServiceServicer):
    """Takes OTLP over gRPC."""

    def __init__(self) -> None:
        self.received: Received = queue.SimpleQueue()

    def Export(self, request: Request, context: Any) -> Any:  # noqa: N802 - the service's name
        self.received.put((dict(context.invocation_metadata()), request))
        return service.ExportMetricsServiceResponse()


@pytest.fixture
def http_receiver() -> Iterator[_HttpReceiver]:
    """Gives a receiver of OTLP over HTTP."""
    receiver = _HttpReceiver()
    thread = threading.Thread(target=receiver.serve_forever, args=(0.01,))
    thread.start()
    yield receiver
    receiver.shutdown()
    thread.join()
    receiver.server_close()


@pytest.fixture
def push(
    instruments: Instruments, http_receiver: _HttpReceiver
) -> Iterator[Callable[..., OtlpMetrics]]:
    """Gives a function that starts pushes by an environment; they end after the test."""
    started: list[OtlpMetrics] = []

    def begin(transport: Any = None, **environ: str) -> OtlpMetrics:
        environ = {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_METRIC_EXPORT_INTERVAL": "30"} | environ
        settings = OtlpMetricsSettings.from_env(environ)
        assert settings is not None
        transport = transport or make_transport(settings.otlp)
        started.append(OtlpMetrics(settings, instruments, IDENTITY, transport=transport))
        started[-1].start()
        return started[-1]

    yield begin
    for metrics in started:
        metrics.shutdown(1.0)


def metrics_of(request: Request) -> dict[str, Any]:
    """Returns the metrics of a request by name."""
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def attributes(message: Any) -> dict[str, Any]:
    """Returns attributes as a dictionary."""
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in message.attributes
    }


def check_request(request: Request) -> None:
    """Checks that a request holds the numbers of the instruments, of each kind one."""
    found = metrics_of(request)
    constant = {"rank": "0", "run": "run-1"}
    steps = found["fastvideo_training_steps_total"]
    assert steps.sum.is_monotonic
    assert steps.sum.aggregation_temporality == 2
    assert steps.sum.data_points[0].as_double == 3.0
    assert attributes(steps.sum.data_points[0]) == constant
    assert steps.sum.data_points[0].start_time_unix_nano / 1e9 == pytest.approx(OBSERVED_AT)
    assert steps.sum.data_points[0].time_unix_nano > 0
    regions = found["fastvideo_region_duration_seconds"]
    by_region = {attributes(point)["region"]: point for point in regions.summary.data_points}
    assert (by_region["training_forward"].count, by_region["training_forward"].sum) == (3, 1.25)
    assert regions.unit == "s"
    memory = found["fastvideo_device_memory_bytes"]
    assert [point.as_double for point in memory.gauge.data_points] == [4096, 8192]
    assert (memory.unit, attributes(memory.gauge.data_points[0])) == (
        "By",
        {"kind": "allocated", **constant},
    )
    durations = found["fastvideo_training_step_duration_seconds"].histogram
    assert durations.aggregation_temporality == 2
    (point,) = durations.data_points
    assert (point.count, point.sum) == (3, 5030.5)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1 == 57
    assert [(e.as_double, e.trace_id.hex(), e.span_id.hex()) for e in point.exemplars] == [
        (0.5, "0123456789abcdef" * 2, "0123456789abcdef"),
        (5000.0, "0123456789abcdef" * 2, ""),
    ]
    resource = attributes(request.resource_metrics[0].resource)
    assert resource["fastvideo.rank"] == 0
    assert (resource["service.name"], resource["host.name"]) == ("fastvideo", "node7")


def test_the_same_numbers_arrive_over_http(push: Any, http_receiver: _HttpReceiver) -> None:
    """Names, labels and values are those of a scrape; headers and compression as set."""
    push(
        OTEL_EXPORTER_OTLP_ENDPOINT=http_receiver.endpoint,
        OTEL_EXPORTER_OTLP_HEADERS="x-tenant=video",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )
    headers, request = http_receiver.received.get(timeout=10)
    assert headers["path"] == "/v1/metrics"
    assert headers["x-tenant"] == "video"
    assert headers["content-type"] == "application/x-protobuf"
    check_request(request)
    http_receiver.received.get(timeout=10)


def test_the_same_numbers_arrive_over_grpc(push: Any) -> None:
    """The service's own classes receive what is sent."""
    receiver = _GrpcReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    service_grpc.add_MetricsServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    metrics = push(
        OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"http://127.0.0.1:{port}",
        OTEL_EXPORTER_OTLP_HEADERS="x-tenant=video",
    )
    metadata, request = receiver.received.get(timeout=10)
    metrics.shutdown(1.0)
    server.stop(None).wait()
    assert metadata["x-tenant"] == "video"
    check_request(request)


def test_a_clock_before_1970_stops_no_push() -> None:
    """OTLP has no times before it, so these are 0."""
    instruments = Instruments(clock=lambda: -2.5)
    instruments.histogram("fastvideo_training_step_duration_seconds", "student").observe(
        0.5, "0123456789abcdef" * 2
    )
    body = encode(instruments, constant_labels={}, resource={}, scope=("s", "1"), unix_ns=-7)
    found = metrics_of(service.ExportMetricsServiceRequest.FromString(body))
    (point,) = found["fastvideo_training_step_duration_seconds"].histogram.data_points
    assert (point.start_time_unix_nano, point.time_unix_nano) == (0, 0)
    assert [exemplar.time_unix_nano for exemplar in point.exemplars] == [0]


def test_the_last_state_is_pushed_at_the_end(
    push: Any, http_receiver: _HttpReceiver, instruments: Instruments
) -> None:
    """A run shorter than the interval is seen as well."""
    metrics = push(
        OTEL_EXPORTER_OTLP_ENDPOINT=http_receiver.endpoint, OTEL_METRIC_EXPORT_INTERVAL="3600000"
    )
    instruments.counter("fastvideo_training_steps_total").add(4)
    metrics.shutdown(5.0)
    _, request = http_receiver.received.get(timeout=1)
    steps = metrics_of(request)["fastvideo_training_steps_total"]
    assert steps.sum.data_points[0].as_double == 7.0
    metrics.shutdown(5.0)
    metrics.start()
    assert http_receiver.received.empty()


@dataclass
class _FakeTransport:
    """Answers with given outcomes, then with success."""

    outcomes: list[Any]
    target: str = "http://collector"
    sent: queue.SimpleQueue[float] = field(default_factory=queue.SimpleQueue)

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        self.sent.put(time.monotonic())
        outcome = self.outcomes.pop(0) if self.outcomes else Outcome()
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, Outcome)
        return outcome

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass

    def leave_parent(self) -> None:
        pass


def test_a_dead_collector_is_one_line(push: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Many failures are one warning, whatever fails; recovery is said once."""
    caplog.set_level(logging.INFO)
    failures = [Outcome("unreachable", retryable=True, detail="refused"), RuntimeError("x")] * 5
    transport = _FakeTransport(list(failures))
    push(transport)
    for _ in range(len(failures) + 3):
        transport.sent.get(timeout=10)
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
    assert "do not reach http://collector (refused; 1 pushes failed)" in caplog.text
    assert "metrics are delivered to http://collector" in caplog.text


def test_retry_after_is_respected(push: Any) -> None:
    """A collector that asks to be left alone is."""
    wait = Outcome("unavailable", retryable=True, retry_after_s=0.5, detail="HTTP 503")
    transport = _FakeTransport([wait])
    push(transport)
    first, second = (transport.sent.get(timeout=10) for _ in range(2))
    assert second - first >= 0.5


@pytest.mark.alone
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("kind", ["refusing", "silent"])
def test_the_end_does_not_wait_for_a_dead_collector(push: Any, kind: str, protocol: str) -> None:
    """Whether nobody listens or nobody answers, the end takes as long as it may."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if kind == "silent":
            listener.listen()
        metrics = push(
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{listener.getsockname()[1]}",
        )
        time.sleep(0.2)
        start = time.monotonic()
        metrics.shutdown(1.0)
        assert time.monotonic() - start < 1.5


def test_a_push_is_not_started_twice(push: Any) -> None:
    """A second start changes nothing."""
    metrics = push(_FakeTransport([]))
    threads = threading.active_count()
    metrics.start()
    assert threading.active_count() == threads


def test_forked_children_push_nothing(http_receiver: _HttpReceiver) -> None:
    """A child has neither the thread nor the connection, and the parent goes on."""
    code = (
        "import os, sys, threading, time\n"
        "from fastvideo.observability.identity import agree\n"
        "from fastvideo.observability.metrics.accumulators import Instruments\n"
        "from fastvideo.observability.metrics.otlp import OtlpMetrics, OtlpMetricsSettings\n"
        "identity = agree(run_name='r', ratio=1.0, environ={}, broadcast=None)\n"
        "settings = OtlpMetricsSettings.from_env(os.environ)\n"
        "from fastvideo.observability.tracing.exporters import make_transport\n"
        "transport = make_transport(settings.otlp)\n"
        "metrics = OtlpMetrics(settings, Instruments(), identity, transport=transport)\n"
        "metrics.start()\n"
        "time.sleep(0.5)\n"
        "def sockets():\n"
        "    links = (os.path.join('/proc/self/fd', f) for f in os.listdir('/proc/self/fd'))\n"
        "    return [l for l in links if os.path.islink(l) and 'socket' in os.readlink(l)]\n"
        "for _ in range(5):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        alone = threading.active_count() == 1 and not sockets()\n"
        "        metrics.start(); metrics.shutdown()\n"
        "        os._exit(0 if alone else 1)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "metrics.shutdown(2.0)\n"
    )
    environ = os.environ | {
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": http_receiver.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert http_receiver.received.qsize() >= 2
