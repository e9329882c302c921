"""Whoever watches a run learns how it ended: real processes, scraped over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

TOYS = Path(__file__).parents[1]
LAUNCH = "fastvideo.train.entrypoint.launch"
ENTRY = "fastvideo.train.entrypoint.train"
ACTIVE = r'^fastvideo_run_active{rank="(\d)".*} (\S+)$'
INTERVAL_S = 0.3
PATIENCE_S = 120.0


class Watcher:
    """Scrapes what target files name, as Prometheus does.

    Args:
        targets: The directory of the files.

    Attributes:
        active: What each rank said last of `fastvideo_run_active`.
        most: How many scrapes there may be; then it has left.
    """

    def __init__(self, targets: Path) -> None:
        self._targets = targets
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.active: dict[str, float] = {}
        self.count = 0
        self.most = 1_000_000

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(INTERVAL_S):
            for file in sorted(self._targets.glob("*.json")):
                if self.count < self.most:
                    self._scrape(file)

    def _scrape(self, file: Path) -> None:
        try:
            (group,) = json.loads(file.read_text())
            (address,) = group["targets"]
            request = urllib.request.Request(
                f"http://{address}/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "10"}
            )
            with urllib.request.urlopen(request, timeout=5) as response:
                page = response.read().decode()
        except OSError:  # it has ended
            return
        self.count += 1
        for rank, value in re.findall(ACTIVE, page, re.MULTILINE):
            self.active[rank] = float(value)


def _start(tmp_path: Path, *, ranks: int, launched: bool = True) -> subprocess.Popen[str]:
    content = {
        "models": {"student": {"_target_": "toy_run.ToyModel", "init_from": "base"}},
        "method": {"_target_": "toy_run.ToyMethod", "print_ready_at": 2},
        "training": {
            "loop": {"max_train_steps": 1_000_000_000},
            "checkpoint": {"output_dir": str(tmp_path / "out")},
            "tracker": {"trackers": ["none"]},
        },
    }
    run_file = tmp_path / "toy.yaml"
    run_file.write_text(json.dumps(content), encoding="utf-8")
    launcher = [LAUNCH, "--standalone", f"--nproc_per_node={ranks}", "-m"] if launched else []
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, ENTRY, "--config", str(run_file)],
        env={
            **os.environ,
            "PYTHONPATH": str(TOYS),
            "OMP_NUM_THREADS": "1",
            "FASTVIDEO_METRICS_PORT": "0",
            "FASTVIDEO_METRICS_TARGETS_DIR": str(tmp_path / "targets"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _await(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


def _ready(process: subprocess.Popen[str], ranks: int) -> list[int]:
    """Waits until all ranks train; returns their process ids."""
    assert process.stdout is not None
    found: list[int] = []
    while len(found) < ranks:
        line = process.stdout.readline()
        assert line, "it has ended"
        found += map(int, re.findall(r"ready (\d+)", line))
    return found


def _end(process: subprocess.Popen[str]) -> tuple[str, float]:
    """Returns what was printed until the end, and after how many seconds that came."""
    start = time.monotonic()
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return output, time.monotonic() - start


@pytest.mark.slow
@pytest.mark.distributed
def test_all_ranks_of_a_stopped_run_are_seen_to_end(tmp_path: Path) -> None:
    """SIGTERM to the launcher: each rank serves its end until it was scraped, and not longer."""
    process = _start(tmp_path, ranks=2)
    with Watcher(tmp_path / "targets") as watcher:
        _ready(process, 2)
        _await(lambda: watcher.active == {"0": 1.0, "1": 1.0}, process)
        process.terminate()
        output, took_s = _end(process)
        assert watcher.active == {"0": 0.0, "1": 0.0}, output
    assert process.returncode == 128 + signal.SIGTERM
    assert output.count("for its last numbers to be scraped") == 1
    assert took_s < 15, output
    assert list((tmp_path / "targets").glob("*.json")) == []


@pytest.mark.slow
@pytest.mark.distributed
def test_no_rank_of_a_run_that_lost_one_says_that_it_ended_well(tmp_path: Path) -> None:
    """The launcher sends SIGTERM to the rank that is left, which is the same signal."""
    process = _start(tmp_path, ranks=2)
    with Watcher(tmp_path / "targets") as watcher:
        pids = _ready(process, 2)
        _await(lambda: watcher.active == {"0": 1.0, "1": 1.0}, process)
        os.kill(pids[1], signal.SIGKILL)
        output, _ = _end(process)
        assert watcher.active == {"0": 1.0, "1": 1.0}
    assert process.returncode == 1
    assert "to be scraped" not in output


def test_a_rank_without_a_launcher_is_seen_to_end(tmp_path: Path) -> None:
    """Ctrl-C comes from a person, whoever has started the rank."""
    process = _start(tmp_path, ranks=1, launched=False)
    with Watcher(tmp_path / "targets") as watcher:
        _ready(process, 1)
        _await(lambda: watcher.active == {"0": 1.0}, process)
        process.send_signal(signal.SIGINT)
        output, _ = _end(process)
        assert watcher.active == {"0": 0.0}, output
    assert process.returncode == 128 + signal.SIGINT


def test_a_second_signal_ends_the_wait(tmp_path: Path) -> None:
    """Who has scraped once does not come again; the target file is removed all the same."""
    process = _start(tmp_path, ranks=1, launched=False)
    with Watcher(tmp_path / "targets") as watcher:
        watcher.most = 1
        _ready(process, 1)
        _await(lambda: watcher.active == {"0": 1.0}, process)
        process.terminate()
        assert process.stdout is not None
        while "to be scraped" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(2.1)  # what comes within two seconds is the same signal again
        process.terminate()
        output, took_s = _end(process)
    assert "were not scraped" in output
    assert took_s < 10
    assert process.returncode == 128 + signal.SIGTERM
    assert list((tmp_path / "targets").glob("*.json")) == []
