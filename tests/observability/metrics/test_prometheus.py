"""A real Prometheus, and promtool, against endpoints of this package."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import bcrypt
import pytest

from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.collector import InstrumentsCollector
from fastvideo.observability.metrics.families import FAMILIES
from fastvideo.observability.metrics.server import MetricsServer
from fastvideo.observability.metrics.targets import TargetFile
from fastvideo.observability.metrics.text_format import TextRenderer
from fastvideo.observability.metrics.web_config import load_web_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

STEP = "fastvideo_training_step_duration_seconds"
RUN = "run-1"
TRACES = {0: "0a" * 16, 1: "1b" * 16}
LINES = {"counter": 1, "gauge": 1, "summary": 2}
OTHER_REGIONS = 2

CONFIG = """
global:
  scrape_interval: 250ms
  scrape_timeout: 250ms
scrape_configs:
  - job_name: fastvideo
    file_sd_configs:
      - files: ['{targets}/*.json']
        refresh_interval: 500ms
    tls_config: {{ca_file: '{ca}'}}
    basic_auth: {{username: prometheus, password: secret}}
"""


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}, of Debian's package prometheus")
    return path


def _rank(rank: int) -> Instruments:
    """Returns the numbers of a rank of which half the time goes into waiting for data."""
    instruments = Instruments()
    steps = instruments.histogram(STEP, "generator")
    for _ in range(99):
        steps.observe(2.0)
    steps.observe(100.0, TRACES[rank], "ab" * 8)
    instruments.counter("fastvideo_training_steps_total").add(100)
    instruments.gauge("fastvideo_run_active").set(1)
    wait = instruments.histogram("fastvideo_training_dataloader_time_seconds")
    for _ in range(100):
        wait.observe(1.0 + rank)
    regions = [(("training_forward",), 100, 60.0), (("my_region",), 7, 3.5), (("mine",), 0, 0.0)]
    instruments.summary_source("fastvideo_region_duration_seconds", lambda: regions)
    return instruments


def _expected_series() -> int:
    """Returns how many series a rank of this test has, from the declarations alone."""
    initial = sum(
        len(f.initial) * (LINES.get(f.kind) or len(f.buckets) + 3) for f in FAMILIES.values()
    )
    one_kind_of_step = len(FAMILIES[STEP].buckets) + 3
    return initial + one_kind_of_step + OTHER_REGIONS * LINES["summary"]


class _Prometheus:
    """A Prometheus that runs, and its API."""

    def __init__(self, directory: Path, config: str) -> None:
        (directory / "prometheus.yml").write_text(config)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = (directory / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                _tool("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self._address}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def get(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> dict[str, float]:
        """Returns the values of an instant query by rank."""
        result = self.get("query", query=expression)["result"]
        return {sample["metric"].get("rank", ""): float(sample["value"][1]) for sample in result}

    def wait_for(self, expression: str, expected: dict[str, float], limit_s: float = 60) -> None:
        """Waits until a query has the expected result."""
        found: Any = None
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                found = self.query(expression)
            except (urllib.error.URLError, ConnectionError):  # it is still starting
                found = None
            if found == expected:
                return
            time.sleep(0.1)
        assert found == expected, expression


@pytest.fixture
def prometheus(tmp_path: Path, certificates: Any) -> Iterator[_Prometheus]:
    """Gives a Prometheus that watches ``tmp_path / "targets"``."""
    _tool("prometheus")
    (tmp_path / "targets").mkdir()
    ca = certificates.directory / "ca.pem"
    running = _Prometheus(tmp_path, CONFIG.format(targets=tmp_path / "targets", ca=ca))
    yield running
    running.stop()


def test_prometheus_discovers_two_ranks_and_answers(
    prometheus: _Prometheus, tmp_path: Path, certificates: Any
) -> None:
    """Targets, values, quantiles, exemplars and the number of series are as they should be."""
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(
        f"tls_server_config: {{cert_file: '{certificates.directory}/server.pem', "
        f"key_file: '{certificates.directory}/server.key'}}\n"
        f"basic_auth_users: {{prometheus: '{hashed}'}}\n"
    )
    web_configs = [None, load_web_config(tmp_path / "web.yml")]
    numbers = [_rank(0), _rank(1)]
    targets = []
    servers = []
    for rank, web_config in enumerate(web_configs):
        collector = InstrumentsCollector(numbers[rank], {"rank": str(rank), "run": RUN})
        server = MetricsServer(collector, port=0, web_config=web_config)
        target = TargetFile(tmp_path / "targets", run=RUN, rank=rank)
        assert target.write(server.start(), scheme="https" if web_config else "http")
        servers.append(server)
        targets.append(target)
    prometheus.wait_for("fastvideo_training_steps_total", {"0": 100, "1": 100})
    assert prometheus.query("count by (rank) (up == 1)") == {"": 2.0}
    assert prometheus.query(f"{STEP}_sum / {STEP}_count") == {"0": 2.98, "1": 2.98}
    median = prometheus.query(f"histogram_quantile(0.5, {STEP}_bucket)")
    assert median == pytest.approx({"0": 2.0, "1": 2.0}, rel=0.25)
    share = "fastvideo_training_dataloader_time_seconds_sum / ignoring(step_kind)"
    assert prometheus.query(f"{share} {STEP}_sum") == pytest.approx(
        {"0": 100 / 298, "1": 200 / 298}
    )
    region = 'fastvideo_region_duration_seconds_sum{region="training_forward"}'
    assert prometheus.query(region) == {"0": 60.0, "1": 60.0}
    unused = 'fastvideo_region_duration_seconds_count{region="model_loading"}'
    assert prometheus.query(unused) == {"0": 0.0, "1": 0.0}
    count = 'count by (rank) ({__name__=~"fastvideo_.+"})'
    assert prometheus.query(count) == {"0": _expected_series(), "1": _expected_series()}
    assert prometheus.query("count({exported_rank!=''} or {exported_run!=''})") == {}
    _check_exemplars(prometheus)
    numbers[0].counter("fastvideo_training_steps_total").add(1)
    prometheus.wait_for("fastvideo_training_steps_total", {"0": 101, "1": 100})
    targets[1].remove()
    servers[1].stop()
    prometheus.wait_for("fastvideo_training_steps_total", {"0": 101})
    numbers[0].gauge("fastvideo_run_active").set(0)
    assert servers[0].linger(limit_s=30)
    prometheus.wait_for("fastvideo_run_active", {"0": 0})
    targets[0].remove()
    servers[0].stop()


def _check_exemplars(prometheus: _Prometheus) -> None:
    """Checks that the slow step's trace is there once per rank, however often it was scraped."""
    now = time.time()
    found = prometheus.get(
        "query_exemplars", query=f"{STEP}_bucket", start=str(now - 600), end=str(now + 600)
    )
    traces = {
        series["seriesLabels"]["rank"]: [
            (float(e["value"]), e["labels"]["trace_id"], e["labels"]["span_id"])
            for e in series["exemplars"]
        ]
        for series in found
    }
    assert traces == {str(rank): [(100.0, trace, "ab" * 8)] for rank, trace in TRACES.items()}


def test_promtool_finds_nothing_to_complain_about() -> None:
    """Every family, with series, passes the linter of Prometheus."""
    instruments = Instruments()
    for family in FAMILIES.values():
        labels = ["x"] * len(family.labels)
        if family.kind == "counter":
            instruments.counter(family.name, *labels).add(1)
        elif family.kind == "gauge":
            instruments.gauge(family.name, *labels).set(1)
        elif family.kind == "summary":
            instruments.summary(family.name, *labels).observe(1)
        else:
            instruments.histogram(family.name, *labels).observe(1)
    page = TextRenderer(instruments, {"rank": "0", "run": RUN}).render(openmetrics=False)
    assert page.count(b"# TYPE ") == len(FAMILIES)
    done = subprocess.run(
        [_tool("promtool"), "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
