"""Fifty prompts, seen by a real Prometheus and an OTLP receiver, in the trace of their caller."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parents[1]
TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
BAD = {7: {"height": 50}, 19: {"num_frames": 2}, 23: {"sede": 1}, 42: {"guidance_scale": -1}}
STEPS = 2


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class Batch:
    """A finished batch, and what was seen of it."""

    def __init__(self, run: Any, out: Path, prometheus: Any, spans: list[Any]) -> None:
        self.run = run
        self.out = out
        self.prometheus = prometheus
        self.spans = spans
        self.at = time.time()

    def last(self, series: str) -> float:
        """Returns the last scraped value, summed over its series."""
        query = f"sum by (rank) (last_over_time({series}[10m]))"
        return float(self.prometheus.value(query, self.at)["0"])


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batch]:
    """Generates while a Prometheus scrapes and a receiver takes the spans."""
    directory = tmp_path_factory.mktemp("batch")
    prometheus = _load(TESTS / "integration" / "test_telemetry.py").Prometheus(directory)
    receiver = _load(TESTS / "observability" / "tracing" / "otlp_receiver.py").HttpReceiver()
    prompts = directory / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"prompt {n}", **BAD.get(n, {})}) for n in range(50)]
    prompts.write_text("\n".join(lines))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FASTVIDEO_")}
    environment = {
        **kept,
        "OMP_NUM_THREADS": "1",
        "FASTVIDEO_METRICS": "1",
        "FASTVIDEO_METRICS_PORT": "0",
        "FASTVIDEO_METRICS_TARGETS_DIR": str(prometheus.targets),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "TRACEPARENT": f"00-{TRACE:032x}-{PARENT:016x}-01",
    }
    words = [
        *("--model-path", "tiny-random:wan2.1", "--prompt-path", str(prompts)),
        *("--output-path", str(directory / "out"), "--height", "32", "--width", "32"),
        *("--num-frames", "1", "--num-inference-steps", str(STEPS)),
    ]
    try:
        run = subprocess.run(
            [sys.executable, "-m", "fastvideo", "generate", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        yield Batch(run, directory / "out", prometheus, receiver.inbox.spans())
    finally:
        receiver.close()
        prometheus.close()


def test_every_good_prompt_is_written_and_every_bad_one_named(batch: Batch) -> None:
    """Files for the good ones, a line for each bad one, and a status that says so."""
    good = {f"prompt {n}.mp4" for n in range(50) if n not in BAD}
    assert batch.run.returncode == 1, batch.run.stderr[-3000:]
    assert {Path(line).name for line in batch.run.stdout.splitlines()} == good
    assert {path.name for path in batch.out.iterdir()} == good
    named = [line for line in batch.run.stderr.splitlines() if " of 50, 'prompt " in line]
    assert len(named) == len(BAD)
    for number in BAD:
        assert any(f"prompt {number + 1} of 50, 'prompt {number}'" in line for line in named)


def test_prometheus_counts_what_was_asked_for(batch: Batch) -> None:
    """Requests, steps and errors, as of the last scrape before the end."""
    good = 50 - len(BAD)
    assert batch.last("fastvideo_inference_request_duration_seconds_count") == good
    steps = batch.last("fastvideo_inference_denoising_step_duration_seconds_count")
    assert steps == good * STEPS
    assert batch.last('fastvideo_inference_errors_total{error_type="ConfigError"}') == len(BAD)
    regions = 'fastvideo_region_duration_seconds_count{region="inference_decoding"}'
    assert batch.last(regions) == good


def test_requests_are_spans_of_the_caller(batch: Batch) -> None:
    """All are its children, in its trace; the steps hang on the loop of their own request."""
    requests = [span for span in batch.spans if span.name == "inference_request"]
    assert len(requests) == 50
    assert {int.from_bytes(span.trace_id, "big") for span in requests} == {TRACE}
    assert {int.from_bytes(span.parent_span_id, "big") for span in requests} == {PARENT}
    assert len({span.span_id for span in requests}) == 50
    assert sum(span.status.code == 2 for span in requests) == len(BAD)
    loops = {span.span_id: span for span in batch.spans if span.name == "inference_denoising"}
    steps = [span for span in batch.spans if span.name == "inference_denoising_step"]
    assert len(steps) == STEPS * len(loops) == STEPS * (50 - len(BAD))
    assert {step.parent_span_id for step in steps} == set(loops)
    assert {loop.parent_span_id for loop in loops.values()} <= {one.span_id for one in requests}
