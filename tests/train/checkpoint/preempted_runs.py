"""Two ranks of the real trainer that are killed, told to end, and started again.

    python preempted_runs.py FOLDER ROUNDS [SEED]

Ranks are forked from this process, which has imported everything and started no threads: that is
a hundred times faster than starting them anew. Writes what happened to FOLDER/results.json.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import diffusers
import pyarrow.parquet
import torchdata.stateful_dataloader
import yaml

from fastvideo.train.callbacks import ema, grad_clip
from fastvideo.train.entrypoint import train
from fastvideo.train.methods.fine_tuning import finetune
from fastvideo.train.models import wan

if TYPE_CHECKING:
    from types import ModuleType

IMPORTED = (
    *(diffusers.WanTransformer3DModel, pyarrow.parquet, torchdata.stateful_dataloader),
    *(ema, grad_clip, finetune, wan),
)
"""What the ranks would import one after the other."""

STEPS = 12
SAVE_STEPS = 2
RANKS = 2
_DEADLINE_S = 240.0


def _tiny_runs() -> ModuleType:
    path = Path(__file__).parents[1] / "methods" / "tiny_runs.py"
    spec = importlib.util.spec_from_file_location("tiny_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run_file(folder: Path) -> Path:
    """Writes a run file for the tiny model, with EMA."""
    training = {
        "data": {"data_path": str(folder / "data"), "seed": 3, "num_latent_t": 3},
        "optimizer": {"learning_rate": 1e-3, "lr_scheduler": "cosine"},
        "loop": {"max_train_steps": STEPS},
        "checkpoint": {
            "training_state_checkpointing_steps": SAVE_STEPS,
            "checkpoints_total_limit": 3,
            "resume_from_checkpoint": "latest",
        },
        "tracker": {"trackers": ["jsonl"]},
    }
    content = {
        "models": {
            "student": {
                "_target_": "fastvideo.train.models.wan.WanModel",
                "init_from": "tiny-random:wan2.1",
            }
        },
        "method": {"_target_": "fastvideo.train.methods.fine_tuning.finetune.FineTuneMethod"},
        "training": training,
        "callbacks": {"ema": {"decay": 0.9}, "grad_clip": {"max_grad_norm": 1.0}},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


class Ranks:
    """The ranks of one start of the trainer.

    Args:
        folder: Where the run file is.
        out: The run's output directory.
        options: Further words of the command line.
    """

    def __init__(self, folder: Path, out: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.log = folder / f"{out.name}.log"
        self.out = out
        self._statuses: dict[int, int] = {}
        words = ["--config", str(folder / "run.yaml"), f"--training.checkpoint.output_dir={out}"]
        self.pids = [self._fork(rank, port, [*words, *options]) for rank in range(RANKS)]

    def _fork(self, rank: int, port: int, words: list[str]) -> int:
        pid = os.fork()
        if pid == 0:
            self._become_rank(rank, port, words)
        return pid

    def _become_rank(self, rank: int, port: int, words: list[str]) -> NoReturn:
        status = 1
        try:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            status = train.run_program(words)
        finally:
            os._exit(status)

    def tell(self, number: signal.Signals, ranks: range = range(RANKS)) -> None:
        """Sends a signal to some of the ranks."""
        for rank in ranks:
            if self.pids[rank] not in self._statuses:
                os.kill(self.pids[rank], number)

    def running(self) -> bool:
        """Tells whether a rank has not ended."""
        for pid in self.pids:
            if pid not in self._statuses:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self._statuses[pid] = os.waitstatus_to_exitcode(status)
        return len(self._statuses) < RANKS

    def wait(self) -> list[int]:
        """Returns the statuses when all ranks have ended; kills those that do not."""
        end = time.monotonic() + _DEADLINE_S
        while self.running():
            if time.monotonic() > end:
                self.tell(signal.SIGKILL)
            time.sleep(0.01)
        return [self._statuses[pid] for pid in self.pids]

    def steps(self) -> int:
        """Returns how many steps this start has logged."""
        path = self.out / "tracker" / "metrics.jsonl"
        return path.read_text().count('"total_loss"') if path.exists() else 0


def losses(out: Path) -> dict[int, list[float]]:
    """Returns every loss that any start of a run has logged, by step."""
    found: dict[int, list[float]] = {}
    for path in (out / "tracker").glob("metrics*.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that a kill cut off
                record = json.loads(line)
                if "total_loss" in record:
                    found.setdefault(record["step"], []).append(record["total_loss"])
    return found


def kill_rounds(folder: Path, rounds: int, seed: int, longest_s: float) -> dict[str, Any]:
    """Kills both ranks at random moments, again and again, then lets the run end.

    A run that has come to its end is begun anew in another folder.
    """
    draws = random.Random(seed)
    result: dict[str, Any] = {"killed": 0, "at": [], "runs": 1, "resumed": [], "statuses": []}
    out = folder / "killed1"
    while result["killed"] < rounds:
        before = checkpoints(out)
        began = time.monotonic()
        ranks = Ranks(folder, out)
        wait = draws.uniform(0.0, longest_s)
        while time.monotonic() < began + wait and ranks.running():
            time.sleep(0.005)
        ranks.tell(signal.SIGKILL)
        result["statuses"].append(ranks.wait())
        result["killed"] += 1
        result["at"].append(round(time.monotonic() - began, 2))
        result["resumed"].append(before[-1] if before else 0)
        if f"checkpoint-{STEPS}" in {path.name for path in out.glob("*")}:
            result["runs"] += 1
            out = folder / f"killed{result['runs']}"
    result["last"] = Ranks(folder, out).wait()
    result["losses"] = {p.name: losses(p) for p in sorted(folder.glob("killed[0-9]"))}
    result["left"] = sorted(path.name for path in out.iterdir() if path.is_dir())
    return result


def checkpoints(out: Path) -> list[int]:
    """Returns the steps that are saved."""
    return sorted(int(path.name.partition("-")[2]) for path in out.glob("checkpoint-*"))


def preemption(folder: Path, name: str, *options: str, who: range = range(RANKS)) -> dict[str, Any]:
    """Tells ranks to end after a few steps, and starts them again."""
    out = folder / name
    ranks = Ranks(folder, out, *options)
    while ranks.steps() < 3:
        time.sleep(0.005)
    ranks.tell(signal.SIGTERM, who)
    statuses = ranks.wait()
    stopped, saved = ranks.steps(), checkpoints(out)
    again = Ranks(folder, out, *options)
    return {
        "statuses": statuses,
        "stopped": stopped,
        "saved": saved,
        "again": again.wait(),
        "losses": losses(out),
    }


def main(folder: Path, rounds: int, seed: int) -> None:
    """Does everything and writes the results."""
    if not (folder / "data").exists():
        pid = os.fork()  # in a child: reading and writing parquet starts threads
        if pid == 0:
            _tiny_runs().write_dataset(folder / "data")
            os._exit(0)
        os.waitpid(pid, 0)
    write_run_file(folder)
    began = time.monotonic()
    results: dict[str, Any] = {"whole": Ranks(folder, folder / "whole").wait()}
    results["whole_s"] = time.monotonic() - began
    results["losses"] = losses(folder / "whole")
    results["preempted"] = preemption(folder, "preempted", who=range(1, 2))
    results["async"] = preemption(folder, "async", "--training.checkpoint.async_save=true")
    results["kills"] = kill_rounds(folder, rounds, seed, results["whole_s"])
    (folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
