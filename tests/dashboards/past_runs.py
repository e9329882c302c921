"""Runs that never were, with numbers that are easy to reckon with, in a real Prometheus."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.metrics.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fastvideo.observability.metrics.families import Family

SCRAPES_S = 30
LASTED_S = 1800
KINDS = {"generator": (4.0, 1 / 8), "critic": (1.0, 4 / 8)}
"""Seconds of a step of each kind, and how many there are in a second: one and four in eight."""

STEPS_PER_S = sum(rate for _, rate in KINDS.values())
REGIONS = {"training_forward": 0.4, "training_backward": 0.25, "training_optimizer": 0.05}
"""Seconds per second in the regions of a step, besides waiting for data and callbacks."""

CALLBACKS = 0.01
DEVICE = {"training_forward": 0.8, "training_backward": 0.25}


@dataclass(frozen=True, slots=True)
class Run:
    """A run that goes on, steadily.

    Attributes:
        name: Its name.
        ranks: The ranks that report.
        world_size: How many there should be.
        data: Share of time that each rank waits for data.
        wait: Share of time that each rank spends in collectives.
        stopped_s: Seconds before the end since which there are no steps.
        active: Whether it goes on.
        cuda: Whether it runs on a device.
    """

    name: str
    ranks: tuple[int, ...] = (0, 1, 2)
    world_size: int = 3
    data: Mapping[int, float] = field(default_factory=lambda: {0: 0.04, 1: 0.04, 2: 0.04})
    wait: Mapping[int, float] = field(default_factory=lambda: {0: 0.3, 1: 0.3, 2: 0.3})
    stopped_s: float = 0.0
    active: int = 1
    cuda: bool = True


def write(runs: tuple[Run, ...], path: Path, *, end: float) -> None:
    """Writes all samples of runs as OpenMetrics text."""
    with path.open("w") as file:
        for family in FAMILIES.values():
            file.write(f"# TYPE {family.name.removesuffix('_total')} {family.kind}\n")
            for run in runs:
                for rank in run.ranks:
                    start = end - LASTED_S
                    own = f'run="{run.name}",rank="{rank}",job="fastvideo",instance="h:{rank}"'
                    for name, labels, growth, constant in _series(family, run, rank, start):
                        for at in _times(end):
                            worked = min(at, end - run.stopped_s) - start
                            value = constant + growth * worked
                            file.write(f"{name}{{{labels}{own}}} {value!r} {at}\n")
        for name in ("up", "scrape_duration_seconds", "scrape_samples_scraped"):
            file.write(f"# TYPE {name} gauge\n")
            for at in _times(end):
                file.write(f'{name}{{job="fastvideo",instance="h:0"}} 1 {at}\n')
        file.write("# EOF\n")


def _times(end: float) -> Iterator[int]:
    yield from range(int(end - LASTED_S), int(end) + 1, SCRAPES_S)


def _series(
    family: Family, run: Run, rank: int, start: float
) -> Iterator[tuple[str, str, float, float]]:
    """Yields the name, labels, growth per second and start of each series of a family."""
    for values, growth, constant in _values(family, run, rank, start):
        labels = "".join(
            f'{name}="{value}",' for name, value in zip(family.labels, values, strict=True)
        )
        if family.kind in ("counter", "gauge"):
            yield family.name, labels, growth, constant
            continue
        count, seconds = growth, constant
        yield f"{family.name}_sum", labels, count * seconds, 0.0
        yield f"{family.name}_count", labels, count, 0.0
        for bound in (*family.buckets, *((float("inf"),) if family.buckets else ())):
            le = "+Inf" if bound == float("inf") else repr(bound)
            yield f"{family.name}_bucket", f'{labels}le="{le}",', count * (seconds <= bound), 0.0


def _values(
    family: Family, run: Run, rank: int, start: float
) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """Yields label values; of counters and gauges growth and start; of others rate and mean."""
    given = _given(run, rank, start).get(family.name)
    if given is not None:
        yield from ((values, *numbers) for values, numbers in given.items())
        return
    for values in family.initial:
        yield values, 0.0, 0.0


def _given(
    run: Run, rank: int, start: float
) -> dict[str, dict[tuple[str, ...], tuple[float, float]]]:
    parts = {**REGIONS, "training_dataloader": run.data[rank], "training_callbacks": CALLBACKS}
    known = FAMILIES["fastvideo_region_duration_seconds"].initial
    regions = {
        values: (STEPS_PER_S, parts.get(values[0], 0.0) / STEPS_PER_S)
        if values[0] in parts
        else (0.0, 0.0)
        for values in known
    }
    result: dict[str, dict[tuple[str, ...], tuple[float, float]]] = {
        "fastvideo_training_step_duration_seconds": {
            (kind,): (rate, seconds) for kind, (seconds, rate) in KINDS.items()
        },
        "fastvideo_training_dataloader_time_seconds": {
            (): (STEPS_PER_S, run.data[rank] / STEPS_PER_S)
        },
        "fastvideo_region_duration_seconds": regions,
        "fastvideo_training_unattributed_seconds_total": {(): (1 - sum(parts.values()), 0.0)},
        "fastvideo_training_collective_wait_seconds_total": {
            ("all_gather",): (run.wait[rank], 0.0),
            ("reduce_scatter",): (0.0, 0.0),
            ("grad_norm",): (0.0, 0.0),
        },
        "fastvideo_training_step": {(): (STEPS_PER_S, 1.0)},
        "fastvideo_training_steps_total": {(): (STEPS_PER_S, 0.0)},
        "fastvideo_training_samples_total": {(): (2 * STEPS_PER_S, 0.0)},
        "fastvideo_training_last_step_timestamp_seconds": {(): (1.0, start)},
        "fastvideo_training_loss": {("total_loss",): (0.0, 0.5 + rank)},
        "fastvideo_training_metric": {("lr/student",): (0.0, 1e-5)},
        "fastvideo_run_active": {(): (0.0, run.active)},
        "fastvideo_run_world_size": {(): (0.0, run.world_size)},
        "fastvideo_run_info": {(run.name, "DMD2", "wan", str(run.world_size)): (0.0, 1.0)},
        "fastvideo_rank_info": {(f"node{rank // 2}", str(rank % 2), "cpu"): (0.0, 1.0)},
        "fastvideo_build_info": {("0.1", "3.11", "2.13", "none"): (0.0, 1.0)},
    }
    if run.cuda:
        result["fastvideo_region_device_duration_seconds"] = {
            (name,): (STEPS_PER_S, seconds / STEPS_PER_S) for name, seconds in DEVICE.items()
        }
        result["fastvideo_device_memory_bytes"] = {
            ("allocated",): (0.0, 2.0**30),
            ("reserved",): (0.0, 2.0**31),
            ("peak",): (0.0, 2.0**31),
            ("capacity",): (0.0, 2.0**32),
        }
    return result


class Past:
    """A Prometheus that remembers runs.

    Args:
        directory: Where it may write.
        runs: What it remembers.

    Attributes:
        at: The last moment of the runs, in Unix seconds.
    """

    def __init__(self, directory: Path, runs: tuple[Run, ...]) -> None:
        binaries = shutil.which("prometheus"), shutil.which("promtool")
        if None in binaries:
            pytest.skip("needs prometheus, a package of Debian")
        self.at = int(time.time()) // SCRAPES_S * SCRAPES_S - SCRAPES_S
        samples = directory / "samples.txt"
        write(runs, samples, end=self.at)
        subprocess.run(
            [str(binaries[1]), "tsdb", "create-blocks-from", "openmetrics", samples, directory],
            check=True,
            capture_output=True,
            timeout=60,
        )
        config = directory / "prometheus.yml"
        config.write_text("{}\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._process = subprocess.Popen(
            [
                str(binaries[0]),
                f"--config.file={config}",
                f"--storage.tsdb.path={directory}",
                f"--web.listen-address={self._address}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._wait()

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """Returns the answer of an instant query at the end of the runs: labels and values."""
        parameters = urllib.parse.urlencode({"query": expr, "time": self.at})
        url = f"http://{self._address}/api/v1/query"
        with urllib.request.urlopen(url, parameters.encode(), timeout=30) as response:
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
        return result

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(30)

    def _wait(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=5).close()
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.close()
                    raise
                time.sleep(0.05)
            else:
                return
