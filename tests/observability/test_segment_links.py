"""From a number to its kernels: exemplar, span, segment file, and back by the trace id."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SEGMENT = "fastvideo.trace_segment"
STEP, FORWARD = "training_train_one_step", "training_forward"


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of ``linked_loop.py`` left behind."""

    scraped: str
    spans: list[dict[str, Any]]
    traces: Path

    def segment_spans(self) -> list[dict[str, Any]]:
        """Returns the spans that name a segment, in the order of their start."""
        found = [span for span in self.spans if SEGMENT in attributes(span)]
        return sorted(found, key=lambda span: int(span["startTimeUnixNano"]))

    def metadata(self, file: str) -> dict[str, Any]:
        """Returns what a segment's file says about itself."""
        document = json.loads(gzip.decompress((self.traces / file).read_bytes()))
        found: dict[str, Any] = document["fastvideo"]
        return found

    def index(self) -> list[dict[str, Any]]:
        """Returns the lines of the segment index."""
        text = (self.traces / "segments_rank0.jsonl").read_text("utf-8")
        return [json.loads(line) for line in text.splitlines()]


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a span, without their types."""
    return {a["key"]: next(iter(a["value"].values())) for a in span.get("attributes", ())}


def run_id(span_file: Path) -> str:
    """Returns the run that the spans of a file belong to."""
    (resource, *_) = json.loads(span_file.read_text("utf-8").splitlines()[0])["resourceSpans"]
    found: str = attributes(resource["resource"])["fastvideo.run_id"]
    return found


def loop(folder: Path, regions: str, **settings: str) -> Run:
    """Runs the loop in a process of its own."""
    unset = {"RANK", "WORLD_SIZE", "FASTVIDEO_RUN_ID", "TORCHELASTIC_RUN_ID"}
    environ = {name: value for name, value in os.environ.items() if name not in unset}
    environ |= {
        "OMP_NUM_THREADS": "1",
        "FASTVIDEO_METRICS_PORT": "0",
        "FASTVIDEO_SPAN_DIR": str(folder / "spans"),
        "FASTVIDEO_TORCH_PROFILER_DIR": str(folder / "traces"),
        "FASTVIDEO_TORCH_PROFILE_REGIONS": regions,
    }
    script = Path(__file__).with_name("linked_loop.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environ | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    spans = [
        span
        for file in sorted((folder / "spans").glob("*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    return Run(done.stdout, spans, folder / "traces")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Gives a run whose steps are segments."""
    return loop(tmp_path_factory.mktemp("steps"), STEP)


def test_an_exemplar_leads_to_the_kernels_and_back(steps: Run) -> None:
    """A scraped trace id finds a span, that a file, and its metadata has the trace id again."""
    (exemplar,) = [
        line
        for line in steps.scraped.splitlines()
        if line.startswith("fastvideo_training_step_duration_seconds_bucket") and "# {" in line
    ]
    found = re.search(r'# \{.*trace_id="([0-9a-f]{32})"', exemplar)
    assert found is not None
    (span,) = [s for s in steps.segment_spans() if s["traceId"] == found[1]]
    assert span["name"] == STEP
    metadata = steps.metadata(attributes(span)[SEGMENT])
    assert metadata["trace_id"] == found[1]
    assert metadata["region"] == STEP
    assert str(metadata["step"]) == str(attributes(span)["fastvideo.step"])


def test_every_step_names_its_own_segment(steps: Run) -> None:
    """Three steps, three files, three traces; the index has the same trace ids."""
    spans = steps.segment_spans()
    files = [attributes(span)[SEGMENT] for span in spans]
    assert sorted(files) == sorted(path.name for path in steps.traces.glob("trace_*"))
    assert len(set(files)) == 3
    traces = [span["traceId"] for span in spans]
    assert [steps.metadata(file)["trace_id"] for file in files] == traces
    assert [(line["step"], line["trace_id"]) for line in steps.index()] == list(
        enumerate(traces, start=1)
    )


def test_segments_and_spans_are_of_the_same_run(steps: Run) -> None:
    """The run that the ranks agreed on is in the spans, the traces and the index."""
    (file,) = (steps.traces.parent / "spans").glob("*.jsonl")
    runs = {steps.metadata(path.name)["run_id"] for path in steps.traces.glob("trace_*")}
    assert runs == {run_id(file)} == {line["run_id"] for line in steps.index()}
    assert None not in runs


def test_a_segment_starts_where_its_span_does(steps: Run) -> None:
    """Both clocks are unix time: the segment begins before its span, by little."""
    for span in steps.segment_spans():
        start = steps.metadata(attributes(span)[SEGMENT])["start_unix_ns"]
        assert 0 <= int(span["startTimeUnixNano"]) - start < 1_000_000_000


def test_a_segment_inside_a_step_has_the_trace_of_the_step(tmp_path: Path) -> None:
    """The span of the inner region names the file; outside of steps there is no trace to name."""
    run = loop(tmp_path, f"{FORWARD},model_loading")
    spans = run.segment_spans()
    assert [span["name"] for span in spans] == [FORWARD] * 3
    steps = {s["spanId"]: s["traceId"] for s in run.spans if s["name"] == STEP}
    assert [steps[span["parentSpanId"]] for span in spans] == [s["traceId"] for s in spans]
    files = [attributes(span)[SEGMENT] for span in spans]
    assert [run.metadata(file)["trace_id"] for file in files] == [s["traceId"] for s in spans]
    outside = next(line for line in run.index() if line["region"] == "model_loading")
    assert (outside["trace_id"], outside["step"]) == (None, None)


def test_a_step_that_is_not_sampled_names_no_trace(tmp_path: Path) -> None:
    """An id of a trace that was never sent would lead nowhere."""
    run = loop(
        tmp_path, STEP, OTEL_TRACES_SAMPLER="always_off", FASTVIDEO_RUN_ID="of-this-launcher"
    )
    assert run.segment_spans() == []
    assert "trace_id=" not in run.scraped
    lines = run.index()
    assert [(line["step"], line["trace_id"]) for line in lines] == [(1, None), (2, None), (3, None)]
    assert {line["run_id"] for line in lines} == {"of-this-launcher"}
