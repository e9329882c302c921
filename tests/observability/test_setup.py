"""Starting and ending the telemetry of a process."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo import observability
from fastvideo.observability import TelemetryConfig
from fastvideo.observability.current import current_trace
from fastvideo.profiler import profiler_region
from fastvideo.profiler.trace_metadata import trace_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = "training_train_one_step"


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Leaves no telemetry behind."""
    yield
    observability.shutdown()


def _config(**environ: str) -> TelemetryConfig:
    return TelemetryConfig.from_sources({"FASTVIDEO_METRICS_PORT": "0", **environ})


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _scrape(url: str | None) -> dict[str, float]:
    assert url is not None
    with urllib.request.urlopen(url, timeout=5) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def _spans(directory: Path) -> list[dict[str, Any]]:
    return [
        span
        for file in sorted(directory.glob("*.jsonl"))
        for line in file.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def _steps(telemetry: observability.Telemetry, count: int = 3) -> None:
    for step in range(1, count + 1):
        with profiler_region(STEP, step=step, step_kind="critic"):
            with profiler_region("training_dataloader"):
                pass
            with profiler_region("training_forward"):
                pass
            telemetry.record_step(
                {"total_loss": 2.5, "lr/student": 0.1, "dataloader_time_sec": 0.01},
                losses=["total_loss"],
                samples=4,
            )


def test_a_loop_of_your_own_is_scraped(tmp_path: Path) -> None:
    """Steps, regions, losses, samples and waits are there under their names."""
    telemetry = observability.start(_config(), run_name="mine")
    _steps(telemetry)
    samples = _scrape(telemetry.metrics_url)
    own = 'rank="0",run="mine"'
    assert samples[f"fastvideo_training_steps_total{{{own}}}"] == 3
    assert samples[f"fastvideo_training_step{{{own}}}"] == 3
    assert samples[f"fastvideo_training_samples_total{{{own}}}"] == 12
    assert samples[f'fastvideo_training_loss{{loss="total_loss",{own}}}'] == 2.5
    assert samples[f'fastvideo_training_metric{{name="lr/student",{own}}}'] == 0.1
    assert samples[f"fastvideo_training_dataloader_time_seconds_sum{{{own}}}"] == pytest.approx(
        0.03
    )
    assert (
        samples[
            'fastvideo_region_duration_seconds_count{rank="0",region="training_forward",run="mine"}'
        ]
        == 3
    )
    assert samples[f"fastvideo_run_active{{{own}}}"] == 1
    assert samples[f"fastvideo_run_world_size{{{own}}}"] == 1
    assert (
        abs(samples[f"fastvideo_training_last_step_timestamp_seconds{{{own}}}"] - time.time()) < 60
    )


def test_regions_and_the_rest_add_up_to_the_steps() -> None:
    """Child regions plus what is unattributed are the duration of the steps."""
    telemetry = observability.start(_config(), run_name="sum")
    _steps(telemetry, 20)
    samples = _scrape(telemetry.metrics_url)

    def seconds(name: str, region: str = "") -> float:
        wanted = f'region="{region}"' if region else ""
        return sum(v for k, v in samples.items() if k.startswith(name + "{") and wanted in k)

    regions = "fastvideo_region_duration_seconds_sum"
    children = seconds(regions, "training_dataloader") + seconds(regions, "training_forward")
    rest = seconds("fastvideo_training_unattributed_seconds_total")
    steps = seconds("fastvideo_training_step_duration_seconds_sum")
    assert children + rest == pytest.approx(steps, rel=1e-6)


def test_starting_twice_gives_the_same_and_ending_twice_is_quiet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Setup is idempotent, as shutdown is, and starting again after it works."""
    first = observability.start(_config())
    assert observability.start(_config()) is first
    observability.shutdown()
    observability.shutdown()
    first.shutdown()
    second = observability.start(_config())
    assert second is not first
    assert observability.active() is second
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []


def test_a_region_after_the_end_is_quiet(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Regions in exit handlers, after telemetry has ended, do nothing and say nothing."""
    telemetry = observability.start(_config(FASTVIDEO_SPAN_DIR=str(tmp_path)))
    with profiler_region(STEP, step=1):
        telemetry.shutdown()
        with profiler_region("training_forward"):
            pass
    _steps(telemetry, 1)
    assert [r for r in caplog.records if r.levelno > logging.INFO] == []


def test_spans_without_a_collector(tmp_path: Path) -> None:
    """Run start, steps and run end are in the file; steps link to the start."""
    telemetry = observability.start(_config(FASTVIDEO_SPAN_DIR=str(tmp_path)))
    _steps(telemetry, 2)
    telemetry.shutdown()
    spans = _spans(tmp_path)
    names = [span["name"] for span in spans]
    assert names[0] == "run_start"
    assert names[-1] == "run_end"
    assert names.count(STEP) == names.count("training_forward") == 2
    roots = [s for s in spans if not s.get("parentSpanId") and s["name"] != "run_start"]
    start = spans[0]
    assert len(roots) == 2
    assert all(root["links"][0]["spanId"] == start["spanId"] for root in roots)


def test_an_exemplar_leads_to_the_span(tmp_path: Path) -> None:
    """Exemplars of a step and of its wait for data have the trace id of a step in the file."""
    telemetry = observability.start(_config(FASTVIDEO_SPAN_DIR=str(tmp_path)))
    _steps(telemetry, 1)
    assert telemetry.metrics_url is not None
    request = urllib.request.Request(
        telemetry.metrics_url, headers={"Accept": "application/openmetrics-text"}
    )
    with urllib.request.urlopen(request, timeout=5) as response:
        text = response.read().decode()
    telemetry.shutdown()
    exemplars = [line for line in text.splitlines() if "# {" in line]
    assert {line.split("_bucket")[0] for line in exemplars} == {
        "fastvideo_training_dataloader_time_seconds",
        "fastvideo_training_step_duration_seconds",
    }
    (trace_id,) = {line.split('trace_id="')[1][:32] for line in exemplars}
    assert {s["name"] for s in _spans(tmp_path) if s["traceId"] == trace_id} >= {STEP}


def test_an_error_is_counted_by_type() -> None:
    """The exception that leaves a step is counted and not swallowed."""
    telemetry = observability.start(_config(), run_name="e")
    with pytest.raises(ZeroDivisionError), profiler_region(STEP, step=1):
        _ = 1 / 0
    samples = _scrape(telemetry.metrics_url)
    key = 'fastvideo_training_errors_total{error_type="ZeroDivisionError",rank="0",run="e"}'
    assert samples[key] == 1
    assert samples['fastvideo_training_steps_total{rank="0",run="e"}'] == 0


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_step_that_was_stopped_is_no_error(stop: type[BaseException]) -> None:
    """Who ends a run is not told of exceptions in its steps; the step is not counted either."""
    telemetry = observability.start(_config(), run_name="e")
    with pytest.raises(stop), profiler_region(STEP, step=1):
        raise stop
    samples = _scrape(telemetry.metrics_url)
    errors = {v for k, v in samples.items() if k.startswith("fastvideo_training_errors_total")}
    assert errors == {0}
    assert samples['fastvideo_training_steps_total{rank="0",run="e"}'] == 0


def test_requests_that_are_expected_are_there_at_zero() -> None:
    """A series that began with its first request would never show it as an increase."""
    telemetry = observability.start(_config(), run_name="r")
    key = 'fastvideo_inference_request_duration_seconds_count{rank="0",run="r"}'
    assert key not in _scrape(telemetry.metrics_url)
    telemetry.expect_requests()
    assert _scrape(telemetry.metrics_url)[key] == 0


def test_a_loss_that_is_not_finite_is_counted() -> None:
    """NaN is counted once per step, however many terms have it."""
    telemetry = observability.start(_config(), run_name="n")
    telemetry.record_step({"a": float("nan"), "b": float("inf")}, losses=["a", "b"])
    telemetry.record_step({"a": 1.0, "b": 2.0}, losses=["a", "b"])
    samples = _scrape(telemetry.metrics_url)
    assert samples['fastvideo_training_nonfinite_loss_total{rank="0",run="n"}'] == 1


def test_scalars_that_cannot_be_counted_never_raise() -> None:
    """Whatever a program hands over, its step goes on."""
    telemetry = observability.start(_config())
    telemetry.record_step({"a": "text", "b": None, "c": object()}, losses=["a"])  # type: ignore[dict-item]
    telemetry.record_step({"dataloader_time_sec": "soon"}, samples=-3)  # type: ignore[dict-item]


def test_a_busy_port_is_left_for_the_next() -> None:
    """The endpoint is served on another port, and the target file has that one."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        telemetry = observability.start(_config(FASTVIDEO_METRICS_PORT=str(port)))
        assert telemetry.metrics_url is not None
        assert f":{port}/" not in telemetry.metrics_url
        assert _scrape(telemetry.metrics_url)


def test_the_target_file_comes_and_goes(tmp_path: Path) -> None:
    """It names the endpoint while there is one."""
    telemetry = observability.start(_config(FASTVIDEO_METRICS_TARGETS_DIR=str(tmp_path)))
    (file,) = tmp_path.glob("*.json")
    (group,) = json.loads(file.read_text())
    assert group["targets"][0] in str(telemetry.metrics_url)
    telemetry.shutdown()
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.parametrize(
    ("error", "stopped", "active"),
    [(None, False, 0), (RuntimeError("broken"), False, 1), (SystemExit(143), True, 0)],
)
def test_only_a_wanted_end_is_said(
    *, error: BaseException | None, stopped: bool, active: float
) -> None:
    """A run that crashed is still active as far as anybody is told, so that it is missed."""
    telemetry = observability.start(_config())
    telemetry.shutdown(error=error, stopped=stopped)
    served = {one.family.name: one.series for one in telemetry.instruments.snapshot()}
    assert served["fastvideo_run_active"] == {(): active}


def _scrape_as_prometheus(url: str | None) -> float:
    """Scrapes once; returns what was said of ``fastvideo_run_active``."""
    assert url is not None
    headers = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as page:
        text = page.read().decode()
    (line,) = [line for line in text.splitlines() if line.startswith("fastvideo_run_active{")]
    return float(line.rsplit(" ", 1)[1])


def _scrape_and_be_counted(url: str | None) -> float:
    """Scrapes once; returns when the endpoint knows that its answer has arrived."""
    said = _scrape_as_prometheus(url)
    assert url is not None
    # There is one thread that serves, and it comes to this afterwards.
    urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5).close()
    return said


@pytest.mark.parametrize(("error", "seen"), [(None, [0, 0]), (SystemExit(143), [0])])
def test_the_end_is_served_until_it_was_scraped(
    error: BaseException | None, seen: list[float], tmp_path: Path
) -> None:
    """Twice at the run's own end, once where it was stopped; spans are written before."""
    telemetry = observability.start(_config(FASTVIDEO_SPAN_DIR=str(tmp_path)), run_name="end")
    url = telemetry.metrics_url
    assert _scrape_and_be_counted(url) == 1
    found: list[float] = []

    def scrape() -> None:
        while _scrape_as_prometheus(url) == 1:
            time.sleep(0.01)
        names = {span["name"] for span in _spans(tmp_path)}
        assert "run_end" in names
        found.append(0)
        while True:
            try:
                found.append(_scrape_as_prometheus(url))
            except OSError:  # it has ended
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    telemetry.shutdown(error=error, stopped=error is not None, linger=True)
    thread.join(30)
    assert found[: len(seen)] == seen


@pytest.mark.parametrize(
    ("setting", "given"), [("0", {"linger": True}), ("20", {}), ("20", {"error": OSError()})]
)
def test_nobody_is_waited_for_without_a_reason(setting: str, given: dict[str, Any]) -> None:
    """Not where it is turned off or not asked for, and not after an error."""
    environ = {"FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS": setting}
    telemetry = observability.start(_config(**environ))
    _scrape_and_be_counted(telemetry.metrics_url)
    start = time.monotonic()
    telemetry.shutdown(**given)
    assert time.monotonic() - start < 5


def test_lingering_can_be_ended() -> None:
    """From another thread or a signal handler; where there is none, that is said."""
    telemetry = observability.start(_config())
    _scrape_and_be_counted(telemetry.metrics_url)
    assert not telemetry.stop_lingering()
    thread = threading.Thread(target=telemetry.shutdown, kwargs={"linger": True})
    thread.start()
    while not telemetry.stop_lingering():
        assert thread.is_alive(), "nobody was waited for"
        time.sleep(0.01)
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("content", ["tls_server_confg: {}", "basic_auth_users: 3", "{"])
def test_a_wrong_web_config_turns_the_endpoint_off(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rather no endpoint than an open one; one warning says why."""
    file = tmp_path / "web.yml"
    file.write_text(content)
    telemetry = observability.start(_config(FASTVIDEO_METRICS_WEB_CONFIG=str(file)))
    assert telemetry.metrics_url is None
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "web.yml" in caplog.text


def test_metrics_can_be_off() -> None:
    """Without an endpoint, regions are still timed and nothing listens."""
    telemetry = observability.start(_config(FASTVIDEO_METRICS="0"))
    _steps(telemetry, 1)
    assert telemetry.metrics_url is None


def test_logs_know_the_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records of the package carry rank, step and trace while telemetry runs."""
    telemetry = observability.start(_config(FASTVIDEO_SPAN_DIR=str(tmp_path)))
    with caplog.at_level(logging.INFO, logger="fastvideo"), profiler_region(STEP, step=9):
        logging.getLogger("fastvideo.test").info("inside")
    telemetry.shutdown()
    (record,) = [r for r in caplog.records if r.message == "inside"]
    assert (record.rank, record.step) == (0, 9)  # type: ignore[attr-defined]
    (root,) = [s for s in _spans(tmp_path) if s["name"] == STEP]
    assert record.trace_id == root["traceId"]  # type: ignore[attr-defined]
    assert record.span_id == root["spanId"]  # type: ignore[attr-defined]


def test_after_an_end_inside_of_a_step_records_name_no_trace(tmp_path: Path) -> None:
    """What is logged in the rest of the step belongs to no trace, and does not say it is in one."""
    telemetry = observability.start(_config(FASTVIDEO_SPAN_DIR=str(tmp_path)))
    with profiler_region(STEP, step=1):
        assert None not in current_trace()
        telemetry.shutdown()
        assert current_trace() == (None, None)


def test_start_takes_less_than_a_blink_and_collects_nothing() -> None:
    """Two hundred starts and ends leave no threads and no file descriptors behind."""
    observability.start(_config())
    observability.shutdown()
    gc.collect()  # what earlier tests have left behind
    threads, files = threading.active_count(), _open_files()
    for _ in range(200):
        observability.start(_config())
        observability.shutdown()
    gc.collect()
    assert threading.active_count() == threads
    assert _open_files() == files


SCRIPT = """
import os, sys, torch
from fastvideo import observability
from fastvideo.profiler import profiler_region
telemetry = observability.start()
with profiler_region("training_train_one_step", step=1):
    children = []
    for _ in range(50):
        child = os.fork()
        if child == 0:
            with profiler_region("training_train_one_step", step=2):
                pass
            observability.shutdown()
            os._exit(int(telemetry.metrics_url is not None or observability.active() is not None))
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
print(codes.count(0), telemetry.metrics_url is not None)
"""


def test_forked_children_have_no_telemetry(tmp_path: Path) -> None:
    """Fifty forks inside a step: children are silent and end well, the parent goes on."""
    environ = {**os.environ, "FASTVIDEO_METRICS_PORT": "0", "FASTVIDEO_SPAN_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", SCRIPT],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["50", "True"])
    assert "Traceback" not in done.stderr
    assert [s["name"] for s in _spans(tmp_path)].count(STEP) == 1


def test_describing_the_run_again_replaces_what_was_known() -> None:
    """There is one description, and from then on the run counts as one that should step."""
    telemetry = observability.start(_config(), run_name="d")
    before = _scrape(telemetry.metrics_url)
    telemetry.describe(method="DMD2Method", model="wan")
    after = _scrape(telemetry.metrics_url)
    name = "fastvideo_training_last_step_timestamp_seconds"
    assert [key for key in before if key.startswith(name)] == []
    assert [key for key in after if key.startswith(name)] != []
    infos = [key for key in after if key.startswith("fastvideo_run_info")]
    assert len(infos) == 1
    assert 'method="DMD2Method"' in infos[0]


def test_a_second_run_starts_counting_anew(tmp_path: Path) -> None:
    """Ending telemetry forgets the step."""
    first = observability.start(_config())
    _steps(first, 3)
    first.shutdown()
    assert observability.current_step() is None
    assert trace_metadata(1)["trace_id"] is None
    second = observability.start(_config(FASTVIDEO_SPAN_DIR=str(tmp_path)))
    second.shutdown()
    (end,) = [span for span in _spans(tmp_path) if span["name"] == "run_end"]
    names = {attribute["key"] for attribute in end.get("attributes", [])}
    assert "fastvideo.last_step" not in names


def test_one_bad_scalar_does_not_take_the_others_along() -> None:
    """What is no number is left out; the rest, NaN included, is counted."""
    telemetry = observability.start(_config(), run_name="b")
    scalars: dict[str, Any] = {"loss": None, "total": float("nan"), "after": 2.0}
    telemetry.record_step(scalars, losses=["loss", "total"])
    samples = _scrape(telemetry.metrics_url)
    assert samples['fastvideo_training_nonfinite_loss_total{rank="0",run="b"}'] == 1
    assert samples['fastvideo_training_metric{name="after",rank="0",run="b"}'] == 2.0


LATE_PROVIDER = """
from fastvideo import observability
from fastvideo.profiler import profiler_region
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

telemetry = observability.start()
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
for step in range(3):
    with profiler_region("training_train_one_step", step=step):
        pass
telemetry.flush()
print(sorted({span.name for span in exporter.get_finished_spans()}))
"""


def test_a_provider_that_the_program_sets_later_is_used() -> None:
    """With nothing but a TracerProvider, set after the start, steps arrive there."""
    done = subprocess.run(
        [sys.executable, "-c", LATE_PROVIDER],
        env={**os.environ, "FASTVIDEO_METRICS_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "['run_start', 'training_step', 'training_train_one_step']", (
        done.stderr
    )


FORK_WHILE_STARTING = """
import os, threading
from fastvideo import observability
from fastvideo.observability import setup

observability.start().shutdown()
with setup._starting:  # as a thread does that is just starting
    child = os.fork()
    if child == 0:
        try:
            observability.start().shutdown()
        finally:
            os._exit(0)
    print(os.waitpid(child, 0)[1])
"""


def test_a_child_never_waits_for_a_start_of_its_parent() -> None:
    """A lock that was held at the fork is not inherited."""
    done = subprocess.run(
        [sys.executable, "-c", FORK_WHILE_STARTING],
        env={**os.environ, "FASTVIDEO_METRICS_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "0", done.stderr


def test_validations_are_traces_of_their_own_without_orphans(tmp_path: Path) -> None:
    """Each has one root that links to the run's start, its region below, and regions below that."""
    telemetry = observability.start(_config(FASTVIDEO_SPAN_DIR=str(tmp_path)))
    _steps(telemetry, 1)
    for _ in range(2):
        with profiler_region("training_validation"), profiler_region("inference_denoising"):
            pass
    telemetry.shutdown()
    spans = _spans(tmp_path)
    start = spans[0]["spanId"]
    traces = {s["traceId"] for s in spans if s["name"] == "training_validation"}
    assert len(traces) == 2
    for trace_id in traces:
        members = [s for s in spans if s["traceId"] == trace_id]
        ids = [s["spanId"] for s in members]
        (root,) = [s for s in members if not s.get("parentSpanId")]
        assert len(set(ids)) == len(ids) == 3
        assert (root["name"], root["links"][0]["spanId"]) == ("training_validation", start)
        assert all(s["parentSpanId"] in ids for s in members if s is not root)
