"""Regions on a CUDA device: each has its time there, and the host never waits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    SpansIn = Callable[[Path], list[tuple[str, float | None]]]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = """
import json, sys, time, urllib.request
import torch
from fastvideo import observability
from fastvideo.profiler import profiler_region

telemetry = observability.start(observability.TelemetryConfig.from_sources({
    "FASTVIDEO_METRICS_PORT": "0", "FASTVIDEO_SPAN_DIR": sys.argv[1]}))
x = torch.randn(1024, 1024, device="cuda")

def step(number):
    with profiler_region("training_train_one_step", step=number):
        with profiler_region("training_forward"):
            y = torch.mm(x, x)
        with profiler_region("training_backward"):
            torch.cuda._sleep(40_000_000)
        with profiler_region("training_optimizer"):
            y.add_(1)

for number in range(3):
    step(number)
torch.cuda.synchronize()
torch.cuda.set_sync_debug_mode("error")
began = time.perf_counter()
for number in range(3, 23):
    step(number)
launched = time.perf_counter() - began
torch.cuda.set_sync_debug_mode("default")
torch.cuda.synchronize()
whole = time.perf_counter() - began
step(23)
torch.cuda.synchronize()
with urllib.request.urlopen(telemetry.metrics_url) as answer:
    metrics = answer.read().decode()
telemetry.shutdown()
print(json.dumps({"launched": launched, "whole": whole, "metrics": metrics}))
"""
SLEEP_S = (0.005, 0.1)  # 40 million cycles at any clock a device may have


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Two dozen steps with metrics, and every span written."""
    out = tmp_path_factory.mktemp("spans")
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(out)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), out


def test_steps_are_launched_without_waiting(watched: tuple[dict[str, Any], Path]) -> None:
    """Twenty steps are queued while the device works on the first ones."""
    told, _ = watched
    assert told["launched"] < told["whole"] / 2


def test_metrics_have_the_time_on_the_device(watched: tuple[dict[str, Any], Path]) -> None:
    """The region that sleeps on the device takes its time there, and none on the host."""
    metrics = watched[0]["metrics"]

    def value(family: str, region: str) -> float:
        found = re.search(
            rf'^{family}{{[^}}]*region="{region}"[^}}]*}} (\S+)', metrics, re.MULTILINE
        )
        assert found, f"{family} of {region}"
        return float(found[1])

    device, host = "fastvideo_region_device_duration_seconds", "fastvideo_region_duration_seconds"
    assert value(f"{device}_count", "training_backward") >= 23
    mean = value(f"{device}_sum", "training_backward") / value(
        f"{device}_count", "training_backward"
    )
    assert SLEEP_S[0] < mean < SLEEP_S[1]
    on_host = value(f"{host}_sum", "training_backward") / value(
        f"{host}_count", "training_backward"
    )
    assert on_host < mean / 5
    assert value(f"{device}_sum", "training_train_one_step") >= value(
        f"{device}_sum", "training_backward"
    )
    allocated = re.search(
        r'^fastvideo_device_memory_bytes{[^}]*kind="allocated"[^}]*} (\S+)', metrics, re.MULTILINE
    )
    assert allocated
    assert float(allocated[1]) >= 4 * 1024**2


def test_spans_have_the_time_on_the_device(
    watched: tuple[dict[str, Any], Path], spans_in: SpansIn
) -> None:
    """Those of the regions, in every step."""
    times = [ms for name, ms in spans_in(watched[1]) if name == "training_backward"]
    assert len(times) == 24
    assert all(ms is not None and SLEEP_S[0] < ms / 1e3 < SLEEP_S[1] for ms in times), times
