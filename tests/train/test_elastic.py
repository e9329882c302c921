"""Ranks that start again after one has died, on one machine and on two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fastvideo.train.launcher import find_free_port

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train" / "run.sh"
STEPS = 5


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run that is saved every two steps and whose second rank dies once in step 4."""
    content = {
        "models": {"student": {"_target_": "toy_run.ToyModel", "init_from": "base"}},
        "method": {"_target_": "toy_run.ToyMethod"},
        "training": {
            "distributed": {"num_gpus": 2},
            "loop": {"max_train_steps": STEPS},
            "checkpoint": {
                "output_dir": str(tmp_path / "out"),
                "training_state_checkpointing_steps": 2,
                "resume_from_checkpoint": "latest",
                "sigterm_timeout_s": 20,
            },
            "tracker": {"trackers": ["jsonl"]},
        },
        "callbacks": {
            "die": {
                "_target_": "toy_run.DieOnce",
                "rank": 1,
                "step": 4,
                "marker": str(tmp_path / "died"),
            }
        },
    }
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def _start(run_file: Path, node: int, **environ: str) -> subprocess.Popen[str]:
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    ours = {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parent),
        "LOG_DIR": str(run_file.parent / f"logs{node}"),
        "CUDA_VISIBLE_DEVICES": "",
        "MAX_RESTARTS": "1",
    }
    return subprocess.Popen(
        ["/bin/bash", str(SCRIPT), str(run_file)],
        env=kept | ours | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("machines", [1, 2])
def test_a_run_goes_on_after_a_rank_has_died(run_file: Path, machines: int) -> None:
    """All ranks start again from the last checkpoint; the steps after it are done again."""
    environ = {"NUM_GPUS": str(2 // machines)}
    if machines > 1:
        environ |= {"NNODES": "2", "MASTER_PORT": str(find_free_port())}
    runs = [
        _start(run_file, node, **environ, **({"NODE_RANK": str(node)} if machines > 1 else {}))
        for node in range(machines)
    ]
    try:
        outputs = [run.communicate(timeout=150)[0] for run in runs]
    finally:
        for run in runs:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.communicate()
    assert [run.returncode for run in runs] == [0] * machines, outputs
    assert (run_file.parent / "died").exists()
    out = run_file.parent / "out"
    lines = (out / "tracker" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps[-3:] == [3, 4, 5]
    assert steps[:-3] in ([1, 2], [1, 2, 3], [1, 2, 3, 4])  # as far as rank 0 came
    assert f"going on after step 2 from {out}/checkpoint-2" in "".join(outputs)
    assert {"checkpoint-2", "checkpoint-4", "checkpoint-5"} <= {path.name for path in out.iterdir()}
