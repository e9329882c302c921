"""A real two-rank DMD2 run of the tiny model whose faults are switched on and off from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
CONFIG = "examples/train/configs/distribution_matching/wan/dmd2_t2v_tiny.yaml"


def tiny_assets(directory: Path) -> Path:
    """Makes the tiny model and data set; returns their directory."""
    assets = directory / "assets"
    if not assets.exists():
        _call(
            [sys.executable, "-m", "fastvideo", "tiny-assets", "--out", str(assets)],
            environment(),
        )
    return assets


def environment(**more: str) -> dict[str, str]:
    """Returns this process's environment without settings of fastvideo, and what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FASTVIDEO_")}
    return {**kept, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", **more}


def _call(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


class ShortRun:
    """A run of one process that ends well after some seconds, or when told to, see `short_run`.

    Args:
        targets: Directory for its target files.
        name: The run's name.
        steps: How many steps it takes.
    """

    def __init__(self, targets: Path, name: str, steps: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "short_run.py"), name, str(steps)],
            env=environment(FASTVIDEO_METRICS_PORT="0", FASTVIDEO_METRICS_TARGETS_DIR=str(targets)),
            cwd=ROOT,
        )

    def close(self) -> None:
        """Ends it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class ObservedRun:
    """A run in the background.

    Args:
        directory: For its output.
        assets: See `tiny_assets`.
        targets: Directory for its target files.
        name: The run's name.
        steps: How many steps it would make if it were left alone.
        faults: Faults it starts with, see `training_faults.Faults`.
        env: More environment.

    Attributes:
        name: The run's name.
        directory: Its output; spans are in `spans`.
    """

    def __init__(
        self,
        directory: Path,
        assets: Path,
        targets: Path,
        *,
        name: str = "faulty",
        steps: int = 100_000,
        faults: dict[str, dict[str, Any]] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._faults = directory / "faults.json"
        self.set(faults or {})
        self._log = (directory / "run.log").open("wb")
        self.process = subprocess.Popen(
            [
                *("bash", "examples/train/run.sh", CONFIG),
                *("--training.data.data_path", str(assets / "t2v")),
                *("--training.checkpoint.output_dir", str(directory)),
                *("--training.loop.max_train_steps", str(steps)),
                *("--training.tracker.trackers", "[jsonl]"),
                *("--training.tracker.run_name", name),
                *("--training.nonfinite_loss", "warn"),
                *("--callbacks.faults._target_", "training_faults.Faults"),
                *("--callbacks.faults.file", str(self._faults)),
            ],
            cwd=ROOT,
            env=environment(
                NUM_GPUS="2",
                LOG_DIR=str(directory),
                PYTHONPATH=str(Path(__file__).parent),
                FASTVIDEO_METRICS_PORT="0",
                FASTVIDEO_METRICS_TARGETS_DIR=str(targets),
                FASTVIDEO_SPAN_DIR=str(directory / "spans"),
                **(env or {}),
            ),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def set(self, faults: dict[str, dict[str, Any]]) -> None:
        """Switches faults on and off, from the next step on."""
        part = self._faults.with_suffix(".part")
        part.write_text(json.dumps(faults))
        part.rename(self._faults)

    def output(self) -> str:
        """Returns what the run has printed."""
        return (self.directory / "run.log").read_text(errors="replace")

    def kill_rank(self, rank: int) -> None:
        """Ends one rank in a way that it cannot notice."""
        os.kill(int((self.directory / f"rank{rank}.pid").read_text()), signal.SIGKILL)

    def close(self) -> None:
        """Ends the run and every process of it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._log.close()
