"""The launch script: what it starts, what it says, and how it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train" / "run.sh"
TOYS = Path(__file__).parent
INHERITED = ("HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")

FAKE_PYTHON = """#!/usr/bin/env bash
printf 'program %s\\n' "$0"
printf 'cwd %s\\n' "$PWD"
printf 'path %s\\n' "$PYTHONPATH"
printf 'word <%s>\\n' "$@"
{body}
"""


def _fake_python(path: Path, body: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FAKE_PYTHON.format(body=body), encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A plain environment whose log directory has a blank in its name."""
    base = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return base | {"PATH": "/usr/local/bin:/usr/bin:/bin", "LOG_DIR": str(tmp_path / "my logs")}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A run file in a directory with a blank in its name; only real runs read it."""
    path = tmp_path / "my runs" / "toy run.yaml"
    path.parent.mkdir()
    content = {
        "models": {"student": {"_target_": "toy_run.ToyModel", "init_from": "base"}},
        "method": {"_target_": "toy_run.ToyMethod", "print_ready_at": 2},
        "training": {
            "loop": {"max_train_steps": 2},
            "checkpoint": {"output_dir": str(tmp_path / "out")},
            "tracker": {"trackers": ["jsonl"]},
        },
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def _run(
    *words: str | Path, env: dict[str, str], cwd: Path, script: Path = SCRIPT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", str(script), *map(str, words)],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _real(environ: dict[str, str], **more: str) -> dict[str, str]:
    return (
        environ
        | {"PYTHON": sys.executable, "PYTHONPATH": str(TOYS), "CUDA_VISIBLE_DEVICES": ""}
        | more
    )


def test_without_arguments_usage_is_an_error(environ: dict[str, str], tmp_path: Path) -> None:
    """Usage is printed with status 2 for nothing and 0 for --help."""
    nothing = _run(env=environ, cwd=tmp_path)
    asked = _run("--help", env=environ, cwd=tmp_path)
    assert (nothing.returncode, asked.returncode) == (2, 0)
    assert asked.stdout == nothing.stdout
    assert "run.sh CONFIG [--dotted.key value ...]" in asked.stdout
    assert "NUM_GPUS" in asked.stdout
    assert "set -euo" not in asked.stdout


@pytest.mark.parametrize(
    ("word", "message"),
    [("--dry-run", "the first argument is the run file"), ("no.yaml", "no run file 'no.yaml'")],
)
def test_first_argument_must_be_a_run_file(
    environ: dict[str, str], tmp_path: Path, word: str, message: str
) -> None:
    """Anything else is one line and status 2."""
    result = _run(word, env=environ, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_words_reach_the_trainer_unchanged(
    environ: dict[str, str], config: Path, tmp_path: Path
) -> None:
    """CONFIG is relative to the caller, the run takes place in the repository, blanks survive."""
    environ |= {"PYTHON": str(_fake_python(tmp_path / "bin" / "py thon")), "PYTHONPATH": "/mine"}
    words = ("toy run.yaml", "--models.*.init_from", "a b", "--method.x", "[1, 2]")
    result = _run(*words, env=environ, cwd=config.parent)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert f"cwd {ROOT}" in lines
    assert f"path {ROOT}:/mine" in lines
    assert [line[6:-1] for line in lines if line.startswith("word <")] == [
        *("-m", "fastvideo.cli", "train", "--config", str(config)),
        *words[1:],
    ]


def test_config_may_be_relative_to_the_repository(environ: dict[str, str], tmp_path: Path) -> None:
    """The path that the documentation shows works from anywhere."""
    environ["PYTHON"] = str(_fake_python(tmp_path / "python"))
    relative = "examples/train/configs/fine_tuning/wan/t2v_tiny.yaml"
    result = _run(relative, env=environ, cwd=tmp_path)
    assert f"word <{ROOT / relative}>" in result.stdout


def test_output_is_logged_and_shown(environ: dict[str, str], config: Path, tmp_path: Path) -> None:
    """Both streams are in the log file, named after the run file and the time, and on stdout."""
    environ["PYTHON"] = str(_fake_python(tmp_path / "python", "echo out; echo err >&2"))
    result = _run(config, env=environ, cwd=tmp_path)
    (log,) = Path(environ["LOG_DIR"]).glob("toy run_*.log")
    assert log.read_text(encoding="utf-8") == result.stdout
    assert {"out", "err", f"run.sh: logging to {log}"} <= set(result.stdout.splitlines())


def test_two_runs_in_one_second_have_two_logs(
    environ: dict[str, str], config: Path, tmp_path: Path
) -> None:
    """No run writes into the log of another."""
    clock = tmp_path / "clock" / "date"
    clock.parent.mkdir()
    clock.write_text("#!/bin/sh\necho 20260101_000000\n", encoding="utf-8")
    clock.chmod(0o755)
    environ["PATH"] = f"{clock.parent}:{environ['PATH']}"
    environ["PYTHON"] = str(_fake_python(tmp_path / "python"))
    for _ in range(2):
        assert _run(config, env=environ, cwd=tmp_path).returncode == 0
    assert len(list(Path(environ["LOG_DIR"]).glob("toy run_20260101_000000*.log"))) == 2


@pytest.mark.parametrize("status", [0, 1, 7])
def test_exit_status_is_the_trainers(
    environ: dict[str, str], config: Path, tmp_path: Path, status: int
) -> None:
    """Writing the log does not hide how the training ended."""
    environ["PYTHON"] = str(_fake_python(tmp_path / "python", f"exit {status}"))
    assert _run(config, env=environ, cwd=tmp_path).returncode == status


def test_log_directory_that_cannot_be_made(
    environ: dict[str, str], config: Path, tmp_path: Path
) -> None:
    """A log that cannot be written is said before anything starts."""
    (tmp_path / "file").touch()
    environ |= {"LOG_DIR": str(tmp_path / "file" / "logs")}
    environ["PYTHON"] = str(_fake_python(tmp_path / "python"))
    result = _run(config, env=environ, cwd=tmp_path)
    assert result.returncode == 2
    assert "cannot write into" in result.stderr
    assert "word" not in result.stdout


@pytest.mark.parametrize(
    ("venv", "variables", "expected"),
    [
        (True, {}, "root/.venv/bin/python"),
        (False, {}, "bin/python"),
        (True, {"VIRTUAL_ENV": "/elsewhere"}, "bin/python"),
        (True, {"CONDA_PREFIX": "/elsewhere"}, "bin/python"),
        (True, {"PYTHON": "chosen"}, "chosen/python"),
    ],
)
def test_choice_of_python(
    environ: dict[str, str],
    config: Path,
    tmp_path: Path,
    *,
    venv: bool,
    variables: dict[str, str],
    expected: str,
) -> None:
    """PYTHON, else an activated environment, else the repository's .venv, else the PATH."""
    script = tmp_path / "root" / "examples" / "train" / "run.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    _fake_python(tmp_path / "bin" / "python")
    _fake_python(tmp_path / "chosen" / "python")
    if venv:
        _fake_python(tmp_path / "root" / ".venv" / "bin" / "python")
    environ["PATH"] = f"{tmp_path / 'bin'}:{environ['PATH']}"
    if "PYTHON" in variables:
        variables = {"PYTHON": str(tmp_path / "chosen" / "python")}
    result = _run(config, env=environ | variables, cwd=tmp_path, script=script)
    assert f"program {tmp_path / expected}" in result.stdout.splitlines()


def test_process_that_keeps_the_output_open_does_not_hold_up_the_caller(
    environ: dict[str, str], config: Path, tmp_path: Path
) -> None:
    """What outlives the training and holds its output is waited for only for seconds."""
    body = f"sleep 600 & echo $! > '{tmp_path}/pid'; exit 3"
    environ["PYTHON"] = str(_fake_python(tmp_path / "python", body))
    started = time.monotonic()
    try:
        assert _run(config, env=environ, cwd=tmp_path).returncode == 3
        assert time.monotonic() - started < 60
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_mistake_in_an_override_is_one_line(
    environ: dict[str, str], config: Path, tmp_path: Path
) -> None:
    """A typing error is told at once, without a page of every rank's traceback."""
    result = _run(config, "--training.loop.max_step=1", env=_real(environ), cwd=tmp_path)
    assert result.returncode == 2
    assert "error: unknown override --training.loop.max_step" in result.stdout
    assert "Traceback" not in result.stdout
    assert "nothing has run, so there is no log" in result.stderr
    assert list(Path(environ["LOG_DIR"]).iterdir()) == []


def _wait_for_ready(process: subprocess.Popen[str]) -> int:
    """Reads output until a rank says it is in its second step; returns its process id."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith("ready "):
            return int(line.split()[1])
    message = f"the run ended before its first step: {''.join(seen)}"
    raise AssertionError(message)


def _is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return False


def _end(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "whole_group"), [(signal.SIGTERM, False), (signal.SIGINT, True)]
)
def test_signals_end_the_training_well(
    environ: dict[str, str],
    config: Path,
    tmp_path: Path,
    number: signal.Signals,
    *,
    whole_group: bool,
) -> None:
    """SIGTERM to the script and Ctrl-C in a terminal flush the run and leave no process behind."""
    process = subprocess.Popen(
        ["/bin/bash", str(SCRIPT), str(config), "--training.loop.max_train_steps=1000000000"],
        env=_real(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        rank = _wait_for_ready(process)
        if whole_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert "writing what is pending" in output
        assert "Traceback" not in output
        assert not _is_running(rank)
        lines = (tmp_path / "out" / "tracker" / "metrics.jsonl").read_text(encoding="utf-8")
        assert lines.endswith("}\n")
    finally:
        _end(process)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_runs_at_once_do_not_meet(
    environ: dict[str, str], config: Path, tmp_path: Path
) -> None:
    """Each run of two ranks finds a port of its own, and says what it decided."""
    runs = [
        subprocess.Popen(
            [
                "/bin/bash",
                str(SCRIPT),
                str(config),
                f"--training.checkpoint.output_dir={tmp_path / n}",
            ],
            env=_real(environ, NUM_GPUS="2", LOG_DIR=str(tmp_path / n)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            start_new_session=True,
        )
        for n in ("one", "two")
    ]
    try:
        for name, run in zip(("one", "two"), runs, strict=True):
            output, _ = run.communicate(timeout=240)
            assert run.returncode == 0, output
            assert "no GPU found: 2 processes on the CPU (gloo)" in output
            metrics = tmp_path / name / "tracker" / "metrics.jsonl"
            assert len(metrics.read_text(encoding="utf-8").splitlines()) == 2
    finally:
        for run in runs:
            _end(run)


@pytest.mark.slow
def test_failing_training_shows_its_traceback(
    environ: dict[str, str], config: Path, tmp_path: Path
) -> None:
    """An exception in a rank is in the log with its traceback, and the status is not 0."""
    result = _run(config, "--method.fail_at=2", env=_real(environ), cwd=tmp_path)
    assert result.returncode == 1
    assert "Traceback (most recent call last)" in result.stdout
    assert result.stdout.count("Traceback (most recent call last)") == 1
    assert result.stdout.count("RuntimeError: broken on purpose at step 2") == 2
    assert "ended with status 1: RuntimeError: broken on purpose" in result.stdout
    metrics = tmp_path / "out" / "tracker" / "metrics.jsonl"
    assert len(metrics.read_text(encoding="utf-8").splitlines()) == 1
    (log,) = Path(environ["LOG_DIR"]).glob("*.log")
    assert "RuntimeError: broken on purpose" in log.read_text(encoding="utf-8")
