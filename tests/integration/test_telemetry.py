"""A two-rank DMD2 run, observed by a real Prometheus and by the spans it writes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.distributed, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
CONFIG = "examples/train/configs/distribution_matching/wan/dmd2_t2v_tiny.yaml"
STEPS = 60
STEP = "fastvideo_training_step_duration_seconds"
CHILDREN = "training_(dataloader|forward|backward|optimizer|callbacks)"
SCRAPING = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}
scrape_configs:
  - job_name: fastvideo
    file_sd_configs: [{{files: ['{targets}/*.json'], refresh_interval: 250ms}}]
"""


class Prometheus:
    """A Prometheus on a free port of this machine."""

    def __init__(self, directory: Path) -> None:
        binary = shutil.which("prometheus")
        if binary is None:
            pytest.skip("needs prometheus, a package of Debian")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.targets = directory / "targets"
        config = directory / "prometheus.yml"
        config.write_text(SCRAPING.format(targets=self.targets))
        self.process = subprocess.Popen(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def get(self, path: str, **parameters: object) -> Any:
        """Returns the data of an answer of the API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as response:
            return json.load(response)["data"]

    def value(self, query: str, at: float) -> dict[str, float]:
        """Returns the values of an instant query, by rank."""
        result = self.get("query", query=query, time=at)["result"]
        return {row["metric"].get("rank", ""): float(row["value"][1]) for row in result}

    def close(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(30)


class Observed:
    """A finished run, and the Prometheus that scraped it."""

    def __init__(self, prometheus: Prometheus, directory: Path, output: str) -> None:
        self.prometheus = prometheus
        self.directory = directory
        self.output = output
        rows = (directory / "tracker" / "metrics.jsonl").read_text().splitlines()
        self.rows = [json.loads(row) for row in rows]
        self.at = time.time()

    def last(self, metric: str) -> dict[str, float]:
        """Returns the last scraped value of a metric, summed over its series, by rank."""
        query = f"sum by (rank) (last_over_time({metric}[10m]))"
        return self.prometheus.value(query, self.at)

    def spans(self) -> list[dict[str, Any]]:
        """Returns the spans of all ranks."""
        return [
            span
            for file in sorted((self.directory / "spans").glob("*.jsonl"))
            for line in file.read_text().splitlines()
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """Trains on two processes while a Prometheus watches."""
    directory = tmp_path_factory.mktemp("observed")
    prometheus = Prometheus(directory)
    assets = directory / "assets"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FASTVIDEO_")}
    environment = {
        **kept,
        "OMP_NUM_THREADS": "1",
        "NUM_GPUS": "2",
        "WANDB_MODE": "disabled",
        "LOG_DIR": str(directory),
        "FASTVIDEO_METRICS_PORT": "0",
        "FASTVIDEO_METRICS_TARGETS_DIR": str(prometheus.targets),
        "FASTVIDEO_SPAN_DIR": str(directory / "spans"),
        "OTEL_TRACES_SAMPLER": "traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.5",
    }

    def call(*command: str) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    try:
        call(sys.executable, "-m", "fastvideo", "tiny-assets", "--out", str(assets))
        output = call(
            *("bash", "examples/train/run.sh", CONFIG),
            *("--training.data.data_path", str(assets / "t2v")),
            *("--training.checkpoint.output_dir", str(directory)),
            *("--training.loop.max_train_steps", str(STEPS)),
            *("--training.tracker.trackers", "[jsonl]"),
        )
        yield Observed(prometheus, directory, output)
    finally:
        prometheus.close()


def test_both_ranks_are_discovered_and_count_every_step(run: Observed) -> None:
    """Target files lead Prometheus to both ranks; the last state was scraped before the end."""
    assert run.last("fastvideo_training_steps_total") == {"0": STEPS, "1": STEPS}
    assert run.last("fastvideo_training_samples_total") == {"0": STEPS, "1": STEPS}
    assert run.last("fastvideo_run_active") == {"0": 0.0, "1": 0.0}
    assert list(run.prometheus.targets.glob("*.json")) == []


def test_prometheus_and_the_tracker_tell_the_same_times(run: Observed) -> None:
    """Step time and wait for data agree with what the tracker logged on rank 0."""
    steps = sum(row["step_time_sec"] for row in run.rows)
    waits = sum(row["dataloader_time_sec"] for row in run.rows)
    assert run.last(f"{STEP}_sum")["0"] == pytest.approx(steps, rel=0.05)
    scraped = run.last("fastvideo_training_dataloader_time_seconds_sum")["0"]
    assert scraped == pytest.approx(waits, rel=1e-6)
    assert run.last('fastvideo_training_loss{loss="total_loss"}')["0"] == pytest.approx(
        run.rows[-1]["total_loss"], rel=1e-6
    )


def test_regions_and_the_rest_are_the_step(run: Observed) -> None:
    """What the regions of a step took, plus what is unattributed, is the step, within 1 %."""
    children = run.last(f'fastvideo_region_duration_seconds_sum{{region=~"{CHILDREN}"}}')
    rest = run.last("fastvideo_training_unattributed_seconds_total")
    steps = run.last(f"{STEP}_sum")
    for rank in ("0", "1"):
        assert children[rank] + rest[rank] == pytest.approx(steps[rank], rel=0.01)


def test_steps_are_split_by_kind(run: Observed) -> None:
    """One step in five updates the student."""
    query = f"last_over_time({STEP}_count[10m])"
    result = run.prometheus.get("query", query=query, time=run.at)["result"]
    kinds = {
        row["metric"]["step_kind"]: float(row["value"][1])
        for row in result
        if row["metric"]["rank"] == "0"
    }
    assert kinds == {"generator": STEPS / 5, "critic": STEPS * 4 / 5}


def test_time_in_collectives_is_counted(run: Observed) -> None:
    """Sharded models gather and reduce; both ranks spent time in it."""
    for collective in ("all_gather", "reduce_scatter", "grad_norm"):
        name = f'fastvideo_training_collective_wait_seconds_total{{collective="{collective}"}}'
        waited = run.last(name)
        assert set(waited) == {"0", "1"}
        assert all(seconds > 0 for seconds in waited.values())


def test_both_ranks_send_the_same_traces_each_with_one_root(run: Observed) -> None:
    """At a ratio of a half: the same sample on both ranks, one root a trace, and no orphan."""
    spans = run.spans()
    by_trace: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        by_trace.setdefault(span["traceId"], []).append(span)
    steps = {
        trace: spans
        for trace, spans in by_trace.items()
        if any(span["name"] == "training_step" for span in spans)
    }
    assert 0.2 * STEPS < len(steps) < 0.8 * STEPS
    orphans = 0
    for trace in steps.values():
        names = Counter(span["name"] for span in trace)
        assert names["training_step"] == 1
        assert names["training_train_one_step"] == 2
        ids = {span["spanId"] for span in trace}
        assert len(ids) == len(trace)
        orphans += sum(1 for s in trace if s.get("parentSpanId") and s["parentSpanId"] not in ids)
    assert orphans == 0
    assert {s["traceId"] for s in spans if s["name"] == "training_forward"} == set(steps)


def test_exemplars_come_back_and_lead_to_spans(run: Observed) -> None:
    """An exemplar that Prometheus stored holds the id of a trace in the files."""
    found = run.prometheus.get(
        "query_exemplars", query=f"{STEP}_bucket", start=run.at - 600, end=run.at + 60
    )
    ids = {exemplar["labels"]["trace_id"] for row in found for exemplar in row["exemplars"]}
    assert ids
    assert ids <= {span["traceId"] for span in run.spans() if span["name"] == "training_step"}


def test_run_rank_and_build_describe_themselves(run: Observed) -> None:
    """The info metrics are there, with the method and the model as labels."""
    names = run.prometheus.get("label/__name__/values")
    ours = {name for name in names if name.startswith("fastvideo_")}
    assert {"fastvideo_build_info", "fastvideo_rank_info", "fastvideo_run_info"} <= ours
    query = 'last_over_time(fastvideo_run_info{method="DMD2Method"}[10m])'
    described = run.prometheus.get("query", query=query, time=run.at)["result"]
    assert {row["metric"]["rank"] for row in described} == {"0", "1"}
    assert {row["metric"]["world_size"] for row in described} == {"2"}
    assert run.last("fastvideo_run_world_size") == {"0": 2.0, "1": 2.0}
