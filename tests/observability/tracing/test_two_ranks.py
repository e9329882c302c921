"""Two ranks that never talk to each other, and a collector that puts their spans together."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.tracing.ids import is_sampled, step_root_span_id, step_trace_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 200
RATIO = 0.1


def _run_ranks(
    start_program: Callable[..., subprocess.Popen[str]], endpoint: str, protocol: str
) -> None:
    """Runs two ranks at the same time, to their ends."""
    ranks = [
        start_program(
            "rank",
            RANK=str(rank),
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_TRACES_SAMPLER="parentbased_traceidratio",
            OTEL_TRACES_SAMPLER_ARG=str(RATIO),
        )
        for rank in (0, 1)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")


def _expect_whole_traces(inbox: Any) -> None:
    """Checks that the sampled steps are there, each with one root and nothing that hangs loose."""
    traces: dict[bytes, dict[bytes, Any]] = {}
    ranks: dict[bytes, set[int]] = {}
    for resource in inbox.resource_spans():
        rank = {p.key: p.value.int_value for p in resource.resource.attributes}["fastvideo.rank"]
        for span in (span for scope in resource.scope_spans for span in scope.spans):
            assert span.span_id not in traces.setdefault(span.trace_id, {})
            traces[span.trace_id][span.span_id] = span
            ranks.setdefault(span.trace_id, set()).add(rank)
    ids = [step_trace_id("run-1", "0-abcd", step) for step in range(STEPS)]
    expected = {trace_id.to_bytes(16, "big") for trace_id in ids if is_sampled(trace_id, RATIO)}
    assert set(traces) == expected
    assert len(expected) > 5
    for trace_id, spans in traces.items():
        roots = [span for span in spans.values() if not span.parent_span_id]
        derived = step_root_span_id(int.from_bytes(trace_id)).to_bytes(8, "big")
        assert [root.span_id for root in roots] == [derived]
        assert all(span.parent_span_id in spans for span in spans.values() if span is not roots[0])
        assert ranks[trace_id] == {0, 1}
        assert len(spans) == 5 + 4


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json", "grpc"])
def test_two_ranks_send_the_same_traces(
    start_program: Callable[..., subprocess.Popen[str]],
    request: pytest.FixtureRequest,
    protocol: str,
) -> None:
    """At a ratio of 0.1, two ranks agree on the steps, each with one root and no orphan."""
    receiver = request.getfixturevalue("grpc_receiver" if protocol == "grpc" else "http_receiver")
    _run_ranks(start_program, receiver.endpoint, protocol)
    _expect_whole_traces(receiver.inbox)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def rotel(http_receiver: Any, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Rotel's agent as a collector that passes everything on; its endpoints by protocol."""
    found = importlib.util.find_spec("rotel")
    if found is None or found.origin is None:
        pytest.skip("the package rotel is not installed")
    http, grpc = _free_port(), _free_port()
    command = [str(Path(found.origin).with_name("rotel-agent")), "start"]
    command += ["--otlp-http-endpoint", f"127.0.0.1:{http}"]
    command += ["--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"]
    command += ["--exporter", "otlp", "--otlp-exporter-protocol", "http"]
    command += ["--otlp-exporter-endpoint", http_receiver.endpoint]
    command += ["--pid-file", str(tmp_path / "pid"), "--log-file", str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        _wait_for_port(http, process)
        _wait_for_port(grpc, process)
        endpoints = {"http/protobuf": f"http://127.0.0.1:{http}"}
        yield {**endpoints, "http/json": endpoints["http/protobuf"], "grpc": f"127.0.0.1:{grpc}"}
        process.terminate()


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    output = process.stdout.read() if process.poll() is not None and process.stdout else b""
    message = f"rotel does not listen on port {port}: {output.decode()[-500:]}"
    raise AssertionError(message)


@pytest.mark.integration
@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json", "grpc"])
def test_a_real_collector_passes_the_traces_on(
    start_program: Callable[..., subprocess.Popen[str]],
    rotel: dict[str, str],
    http_receiver: Any,
    protocol: str,
) -> None:
    """Somebody else's collector understands what is sent, over every protocol."""
    endpoint = rotel[protocol]
    if protocol == "grpc":
        endpoint = f"http://{endpoint}"
    _run_ranks(start_program, endpoint, protocol)
    inbox = http_receiver.inbox
    sampled = sum(is_sampled(step_trace_id("run-1", "0-abcd", s), RATIO) for s in range(STEPS))
    assert inbox.wait_for(lambda: len(inbox.spans()) >= sampled * 9)
    _expect_whole_traces(inbox)
