"""Collectors that are gone, silent, slow or refusing, and processes that fork or are ended."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from types import ModuleType

PROTOCOLS = ["http/protobuf", "grpc"]


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    """Both protocols behave alike."""
    return str(request.param)


@pytest.fixture
def receiver(protocol: str, otlp_receiver: ModuleType) -> Iterator[Any]:
    """A receiver for the protocol."""
    kind = otlp_receiver.GrpcReceiver if protocol == "grpc" else otlp_receiver.HttpReceiver
    made = kind()
    yield made
    made.close()


def _otlp(endpoint: str, protocol: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}


@pytest.mark.alone
@pytest.mark.parametrize("failed_before", [False, True])
@pytest.mark.parametrize("behaviour", ["healthy", "refusing", "silent", "unavailable", "slow"])
def test_shutdown_takes_two_seconds_at_most(
    *,
    start_pipeline: Callable[..., Any],
    steps: ModuleType,
    counts: Any,
    otlp_receiver: ModuleType,
    receiver: Any,
    protocol: str,
    behaviour: str,
    failed_before: bool,
) -> None:
    """With 1500 spans queued, shutdown is in time whatever the collector does, and all counted."""
    endpoint = receiver.endpoint
    if behaviour == "refusing":
        endpoint = f"http://127.0.0.1:{otlp_receiver.refusing_port()}"
    else:
        receiver.inbox.behaviour = behaviour
    pipeline = start_pipeline(_otlp(endpoint, protocol))
    pipeline.submit_step(steps.make_step(0, children=28))
    if failed_before:
        pipeline.flush(0.5)
    for step in range(1, 50):
        pipeline.submit_step(steps.make_step(step, children=28))
    begin = time.monotonic()
    pipeline.shutdown()
    assert time.monotonic() - begin <= 2.0
    assert counts.total("exported") + counts.total("dropped") == 1500
    if behaviour in {"healthy", "slow"}:
        assert counts.total("exported") == len(receiver.inbox.spans()) == 1500


@pytest.mark.alone
@pytest.mark.parametrize("behaviour", ["refusing", "silent", "unavailable"])
def test_a_process_ends_two_seconds_after_its_last_line(
    start_program: Callable[..., subprocess.Popen[str]],
    otlp_receiver: ModuleType,
    receiver: Any,
    protocol: str,
    behaviour: str,
) -> None:
    """A program that ends without a word about telemetry is not held up by it."""
    endpoint = receiver.endpoint
    if behaviour == "refusing":
        endpoint = f"http://127.0.0.1:{otlp_receiver.refusing_port()}"
    else:
        receiver.inbox.behaviour = behaviour
    process = start_program("exit_with_spans_queued", **_otlp(endpoint, protocol))
    assert process.stdout is not None
    ended = json.loads(process.stdout.readline())["ended"]
    assert process.wait(20) == 0
    assert time.time() - ended <= 2.0
    assert process.stderr is not None
    lines = process.stderr.read().splitlines()
    assert len(lines) <= 1, lines


def test_a_collector_that_dies_and_comes_back(
    start_pipeline: Callable[..., Any],
    steps: ModuleType,
    counts: Any,
    otlp_receiver: ModuleType,
    receiver: Any,
    protocol: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spans of a short outage are sent after it, and the log has a line for each turn."""
    caplog.set_level("INFO", "fastvideo")
    pipeline = start_pipeline(
        {**_otlp(receiver.endpoint, protocol), "OTEL_BSP_SCHEDULE_DELAY": "100"}
    )
    pipeline.submit_step(steps.make_step(0))
    assert pipeline.flush(5)
    receiver.close()
    pipeline.submit_step(steps.make_step(1))
    assert not pipeline.flush(1)
    again = type(receiver)(receiver.port)
    try:
        pipeline.submit_step(steps.make_step(2))
        assert counts.wait_for("exported", 15, timeout_s=15)
        assert len(again.inbox.spans()) == 10
    finally:
        pipeline.shutdown()
        again.close()
    assert dict(counts.seen) == {("exported", "otlp"): 15}
    assert caplog.text.count("first spans delivered") == 1
    assert caplog.text.count("spans do not reach") == 1
    assert caplog.text.count("are delivered to") == 1


def test_a_slow_collector_gets_everything(
    start_pipeline: Callable[..., Any], steps: ModuleType, counts: Any, receiver: Any, protocol: str
) -> None:
    """A collector that takes its time delays spans and loses none."""
    receiver.inbox.behaviour, receiver.inbox.delay_s = "slow", 0.2
    pipeline = start_pipeline(
        {**_otlp(receiver.endpoint, protocol), "OTEL_BSP_SCHEDULE_DELAY": "100"}
    )
    for step in range(20):
        pipeline.submit_step(steps.make_step(step))
    assert pipeline.flush(10)
    assert dict(counts.seen) == {("exported", "otlp"): 100}


@pytest.mark.parametrize("own_handler", ["", "1"])
def test_sigterm_flushes_and_is_passed_on(
    start_program: Callable[..., subprocess.Popen[str]],
    receiver: Any,
    protocol: str,
    own_handler: str,
) -> None:
    """SIGTERM sends what is queued, then does what it did before: the handler, or the end."""
    process = start_program(
        "sigterm", OWN_HANDLER=own_handler, **_otlp(receiver.endpoint, protocol)
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"ready": True}
    process.send_signal(signal.SIGTERM)
    status = process.wait(10)
    if own_handler:
        assert json.loads(process.stdout.readline()) == {"order": ["own"], "exported": 15}
        assert status == 7
    else:
        assert status == -signal.SIGTERM
    assert len(receiver.inbox.spans()) == 15
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.mark.alone
def test_sigterm_does_not_wait_for_a_dead_collector(
    start_program: Callable[..., subprocess.Popen[str]], receiver: Any, protocol: str
) -> None:
    """With a silent collector the process still ends within two seconds of SIGTERM."""
    receiver.inbox.behaviour = "silent"
    process = start_program("sigterm", **_otlp(receiver.endpoint, protocol))
    assert process.stdout is not None
    process.stdout.readline()
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
    assert time.monotonic() - begin <= 2.0


def test_a_signal_in_the_middle_of_a_submit(
    run_program: Callable[..., Any], http_receiver: Any
) -> None:
    """A flush that interrupts a submit deadlocks nothing and loses the account of nothing."""
    result = run_program(
        "sigterm_while_submitting", **_otlp(http_receiver.endpoint, "http/protobuf")
    )
    assert result["accounted"] == result["submitted"]
    assert result["stderr"] == ""


@pytest.mark.alone
def test_fifty_forks(run_program: Callable[..., Any], receiver: Any, protocol: str) -> None:
    """Children have nothing live, may close everything, and cost the parent no span."""
    result = run_program("forks", **_otlp(receiver.endpoint, protocol))
    assert result["failed"] == 0
    assert result["seconds"] < max(2.0, 4 * result["plain"])
    assert result["exported"] == 51 * 5 == len(receiver.inbox.spans())
    assert result["stderr"] == ""


def test_a_child_that_ends_the_ordinary_way(
    run_program: Callable[..., Any], receiver: Any, protocol: str
) -> None:
    """A child's exit handlers send nothing and disturb no connection of the parent."""
    result = run_program("fork_and_leave", **_otlp(receiver.endpoint, protocol))
    assert (result["status"], result["delivered"], result["exported"]) == (0, True, 10)
    assert len(receiver.inbox.spans()) == 10
    assert result["stderr"] == ""


@pytest.mark.parametrize("behaviour", ["refusing", "silent"])
def test_memory_is_flat_with_a_dead_collector(
    run_program: Callable[..., Any],
    otlp_receiver: ModuleType,
    receiver: Any,
    protocol: str,
    behaviour: str,
) -> None:
    """20 000 steps that nobody takes leave memory where it was."""
    endpoint = receiver.endpoint
    if behaviour == "refusing":
        endpoint = f"http://127.0.0.1:{otlp_receiver.refusing_port()}"
    receiver.inbox.behaviour = behaviour
    result = run_program("memory", OTEL_BSP_SCHEDULE_DELAY="100", **_otlp(endpoint, protocol))
    assert result["sizes"][-1] - result["sizes"][0] < 2_000_000
    assert result["accounted"] == result["submitted"]


def test_two_hundred_starts_and_stops(run_program: Callable[..., Any], http_receiver: Any) -> None:
    """Starting and stopping leaves no memory, thread or descriptor behind."""
    result = run_program("cycles", **_otlp(http_receiver.endpoint, "http/protobuf"))
    assert result["sizes"][-1] - result["sizes"][1] < 1_000_000
    assert len(set(result["descriptors"])) == 1
    assert result["threads"] == 1
    assert result["exported"] == 1000
    assert result["stderr"] == ""


def test_spans_after_the_end_are_silent(run_program: Callable[..., Any]) -> None:
    """Regions in exit handlers and after shutdown are counted, and nobody is told."""
    result = run_program("late_spans", **_otlp("http://127.0.0.1:1", "http/protobuf"))
    assert result["dropped"] == 5
    assert "span" not in result["stderr"]


@pytest.mark.alone
def test_the_start_is_quick(run_program: Callable[..., Any], protocol: str) -> None:
    """The start looks up nothing and imports nothing heavy, whatever the environment asks for."""
    result = run_program(
        "start_time",
        OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="process,os,host",
        **_otlp("http://127.0.0.1:1", protocol),
    )
    assert result["seconds"] < 0.2


def test_start_close_collect_fork(run_program: Callable[..., Any], protocol: str) -> None:
    """What was closed stays quiet when the process forks."""
    result = run_program("close_then_fork", **_otlp("http://127.0.0.1:1", protocol))
    assert result["status"] == 0
    assert result["stderr"] == ""
