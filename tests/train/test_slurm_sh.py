"""The SLURM script, with programs that stand in for SLURM's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train" / "slurm.sh"

SRUN = """#!/usr/bin/env bash
printf 'srun <%s>\\n' "$@"
while [[ "$1" == --* ]]; do shift; done
set -m
status=0
for (( node = 0; node < ${SLURM_JOB_NUM_NODES:-1}; node++ )); do
  SLURM_NODEID=$node "$@" & echo $! >"$HOME/task"
  wait $! || status=$?
done
exit "$status"
"""
SCONTROL = """#!/usr/bin/env bash
if [[ "$1 $2" == "show hostnames" ]]; then printf '%s\\n' $HOSTS; else echo "scontrol $*"; fi
"""
RUN = """#!/usr/bin/env bash
echo "node $NODE_RANK of $NNODES at $MASTER_ADDR:$MASTER_PORT"
printf 'word <%s>\\n' "$@"
exit "${STATUS:-0}"
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A job of one machine that is running, and the programs that it finds."""
    programs = {"srun": SRUN, "scontrol": SCONTROL, "squeue": '#!/bin/sh\necho "$STATE"\n'}
    for name, text in (programs | {"run.sh": RUN}).items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return {
        "PATH": f"{tmp_path / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "RUN": str(tmp_path / "bin" / "run.sh"),
        "SLURM_JOB_ID": "40123",
        "SLURM_JOB_NODELIST": "first,second",
        "STATE": "RUNNING",
        "HOSTS": "first second",
    }


def _submit(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", str(SCRIPT), *words],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_machine_runs_the_launch_script(environ: dict[str, str]) -> None:
    """With its rank, the first machine's address, a port of the job, and the caller's words."""
    done = _submit(environ | {"SLURM_JOB_NUM_NODES": "2"}, "my run.yaml", "--method.x", "[1, 2]")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("node ")] == [
        "node 0 of 2 at first:20123",
        "node 1 of 2 at first:20123",
    ]
    words = [line[6:-1] for line in lines if line.startswith("word <")]
    assert words[: len(words) // 2] == words[len(words) // 2 :]
    assert words[: len(words) // 2] == [
        "my run.yaml",
        *("--training.checkpoint.resume_from_checkpoint", "latest"),
        *("--training.checkpoint.sigterm_timeout_s", "80"),
        *("--method.x", "[1, 2]"),
    ]


@pytest.mark.parametrize(
    ("status", "state", "again"),
    [(0, "RUNNING", False), (1, "RUNNING", False), (143, "RUNNING", True), (143, "", False)],
)
def test_only_what_was_saved_goes_back_into_the_queue(
    environ: dict[str, str], status: int, state: str, *, again: bool
) -> None:
    """Neither a run that has come to its end, nor one that failed, nor a job that was cancelled."""
    done = _submit(environ | {"STATUS": str(status), "STATE": state}, "run.yaml")
    assert done.returncode == status
    assert ("scontrol requeue 40123" in done.stdout.splitlines()) == again


@pytest.mark.parametrize(
    ("words", "change", "message"),
    [
        ((), {}, "the first argument is the run file"),
        (("--x",), {}, "the first argument is the run file"),
        (("a.yaml",), {"SLURM_JOB_ID": ""}, "this is no SLURM job"),
        (("a.yaml",), {"RUN": "nowhere.sh"}, "there is no nowhere.sh"),
    ],
)
def test_mistakes(
    environ: dict[str, str], words: tuple[str, ...], change: dict[str, str], message: str
) -> None:
    """One line and status 2."""
    done = _submit(environ | change, *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_options_that_the_documentation_relies_on() -> None:
    """SIGTERM comes to the tasks before the end, later than a save may take."""
    text = SCRIPT.read_text(encoding="utf-8")
    options = re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE)
    assert dict(options) | {"signal": "TERM@120", "requeue": "", "ntasks-per-node": "1"} == dict(
        options
    )


@pytest.mark.slow
def test_a_job_that_is_told_to_end_saves_and_comes_again(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """SIGTERM to all processes of the task, as SLURM sends it: a checkpoint, and the queue."""
    run_file = tmp_path / "toy.yaml"
    content = {
        "models": {"student": {"_target_": "toy_run.ToyModel", "init_from": "base"}},
        "method": {"_target_": "toy_run.ToyMethod", "print_ready_at": 2},
        "training": {
            "loop": {"max_train_steps": 10**9},
            "checkpoint": {
                "output_dir": str(tmp_path / "out"),
                "training_state_checkpointing_steps": 10**8,
            },
            "tracker": {"trackers": ["jsonl"]},
        },
    }
    run_file.write_text(yaml.safe_dump(content), encoding="utf-8")
    real = {
        "RUN": "examples/train/run.sh",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(Path(__file__).parent),
        "LOG_DIR": str(tmp_path / "logs"),
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_PORT": "",
        "HOSTS": "127.0.0.1",
    }
    process = subprocess.Popen(
        ["/bin/bash", str(SCRIPT), str(run_file)],
        env=environ | real,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    task = 0
    try:
        assert process.stdout is not None
        seen = list(iter(lambda: _line_before(process, "ready "), ""))
        task = int((tmp_path / "task").read_text())
        os.killpg(task, signal.SIGTERM)
        output = "".join(seen) + process.communicate(timeout=90)[0]
    finally:
        for group in {process.pid, task} - {0}:
            _kill_group(group)
        process.wait()
    assert process.returncode == 143, output
    assert "stopping after step" in output
    assert "scontrol requeue 40123" in output.splitlines()
    assert len(list((tmp_path / "out").glob("checkpoint-*"))) == 1


def _line_before(process: subprocess.Popen[str], word: str) -> str:
    """Returns the next line; none at the one that begins with the word, or at the end."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return "" if line.startswith(word) else line


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
