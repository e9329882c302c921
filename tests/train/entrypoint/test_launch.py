"""The launcher's program: its checks, its report, and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from fastvideo.errors import FastVideoError
from fastvideo.train.entrypoint.arguments import TrainArguments
from fastvideo.train.entrypoint.launch import check_launch, describe_failures, grace_s
from fastvideo.train.run_config import load_run_config

if TYPE_CHECKING:
    from collections.abc import Callable

TOYS = Path(__file__).parents[1]
LAUNCH = "fastvideo.train.entrypoint.launch"
ENTRY = "fastvideo.train.entrypoint.train"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run file of the toy student, in JSON, which is YAML."""
    content = {
        "models": {"student": {"_target_": "toy_run.ToyModel", "init_from": "base"}},
        "method": {"_target_": "toy_run.ToyMethod", "print_ready_at": 2},
        "training": {
            "loop": {"max_train_steps": 3},
            "checkpoint": {"output_dir": str(tmp_path / "out")},
            "tracker": {"trackers": ["none"]},
        },
    }
    path = tmp_path / "toy.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _start(run_file: Path, *overrides: str, ranks: int = 1) -> subprocess.Popen[str]:
    words = ["--standalone", f"--nproc_per_node={ranks}", "-m", ENTRY, "--config", str(run_file)]
    return subprocess.Popen(
        [sys.executable, "-m", LAUNCH, *words, *overrides],
        env=os.environ | {"PYTHONPATH": str(TOYS), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def failure(tmp_path: Path) -> Callable[..., ProcessFailure]:
    """Makes what torchrun knows about a rank that failed."""

    def make(code: int, message: str = "", *, told: bool = False) -> ProcessFailure:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        if message:
            extra = {"py_callstack": "page", "timestamp": "1", "told": told}
            file.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))
        return ProcessFailure(local_rank=0, pid=7, exitcode=code, error_file=str(file))

    return make


def test_failures_are_a_line_each(failure: Callable[..., ProcessFailure]) -> None:
    """What rank 0 said is not repeated, and ranks that torchrun ended are not blamed."""
    failures = {
        2: failure(1, "ConfigError: b"),
        0: failure(1, "ConfigError: a", told=True),
        1: failure(1, "ConfigError: a"),
        3: failure(-9),
        4: failure(3),
        5: failure(-15),
    }
    assert describe_failures(failures) == [
        "rank 0 (pid 7) ended with status 1",
        "rank 1 (pid 7) ended with status 1",
        "rank 2 (pid 7) ended with status 1: ConfigError: b",
        "rank 3 (pid 7) was ended by SIGKILL",
        "rank 4 (pid 7) ended with status 3",
    ]
    assert describe_failures({5: failures[5]}) == ["rank 5 (pid 7) was ended by SIGTERM"]


@pytest.mark.parametrize(
    ("environ", "overrides", "expected"),
    [
        ({}, ["--training.data.data_path=missing/data"], "'missing/data' is neither a directory"),
        (
            {},
            ["--models.student.init_from=./none"],
            r"models\.student\.init_from './none' is not a",
        ),
        ({}, ["--models.student.init_from=null"], r"models\.student\.init_from: .* got None"),
        ({}, ["--training.model_path=./none"], r"training\.model_path './none' is not a directory"),
        (
            {},
            ["--method._target_=toy_run.ToyMethd"],
            r"method\._target_ .* Did you mean 'ToyMethod'",
        ),
        ({}, ["--method._target_=toy_rn.ToyMethod"], r"method\._target_ .* cannot import module"),
        ({"FASTVIDEO_TORCH_PROFILE_REGIONS": "nowhere"}, [], "selects no registered region"),
        ({"FASTVIDEO_TORCH_PROFILE_STEPS": "9-1"}, [], "FASTVIDEO_TORCH_PROFILE_STEPS contains"),
        ({"FASTVIDEO_TORCH_PROFILE_RANKS": "x"}, [], "FASTVIDEO_TORCH_PROFILE_RANKS contains"),
        ({"FASTVIDEO_TORCH_PROFILER_WITH_STACK": "x"}, [], "WITH_STACK='x' cannot be used"),
        ({"FASTVIDEO_STRICT_MESH": "x"}, [], "FASTVIDEO_STRICT_MESH='x' cannot be used"),
        ({"FASTVIDEO_TRACE_LAYERS": "("}, [], r"FASTVIDEO_TRACE_LAYERS='\(' is no regular"),
        ({"FASTVIDEO_TRACE_OUTPUT": "/proc/t"}, [], "FASTVIDEO_TRACE_OUTPUT='/proc/t': expected"),
    ],
)
def test_mistakes_are_found_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
    run_file: Path,
    environ: dict[str, str],
    overrides: list[str],
    expected: str,
) -> None:
    """Everything that every rank would refuse after seconds."""
    defaults = {
        "FASTVIDEO_TORCH_PROFILER_DIR": "traces",
        "FASTVIDEO_TORCH_PROFILE_REGIONS": "training_forward",
        "FASTVIDEO_TRACE_ACTIVATIONS": "1",
    }
    for name, value in defaults.items():
        monkeypatch.setenv(name, value)
    target = (
        "--models.student._target_=fastvideo.train.models.wan.WanModel",
        "--models.student.init_from=tiny-random:wan2.1",
    )
    check_launch(TrainArguments(run_file, dry_run=False, overrides=target))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(FastVideoError, match=expected):
        check_launch(TrainArguments(run_file, dry_run=False, overrides=(*target, *overrides)))


def test_data_of_other_models_is_their_business(run_file: Path) -> None:
    """A model from elsewhere may read anything."""
    overrides = ("--training.data.data_path=store://bucket",)
    check_launch(TrainArguments(run_file, dry_run=False, overrides=overrides))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("--models.student._target_=fastvideo.train.models.wam.WanModel", "Did you mean 'wan'?"),
        ("--method._target_=toy_run.ToyMethd", "Did you mean 'ToyMethod'?"),
    ],
)
def test_a_class_that_is_not_there_is_one_line_before_the_start(
    run_file: Path, override: str, said: str
) -> None:
    """The status is 2, and no rank has said anything."""
    process = _start(run_file, override)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 2
    (line,) = output.splitlines()
    assert line.startswith("error: ")
    assert line.endswith(said)


@pytest.mark.slow
@pytest.mark.distributed
def test_a_mistake_that_both_ranks_make_is_said_once(run_file: Path) -> None:
    """One line with the mistake, and no traceback."""
    student = "--models.student={_target_: toy_run.ToyModel}"
    output, _ = _start(run_file, student, ranks=2).communicate(timeout=240)
    assert output.count("needs 'init_from'") == 1
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_the_launcher_without_a_traceback(
    run_file: Path, number: signal.Signals
) -> None:
    """A signal that arrives twice is one, the rank writes what is pending, and the status tells."""
    process = _start(run_file, "--training.loop.max_train_steps=1000000000")
    assert process.stdout is not None
    try:
        while not process.stdout.readline().startswith("ready "):
            assert process.poll() is None
        process.send_signal(number)
        process.send_signal(number)
        output, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 128 + number
    assert "writing what is pending" in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_ranks_end_with_a_launcher_that_is_killed(run_file: Path) -> None:
    """As on SIGTERM: the step is finished and saved."""
    out = run_file.parent / "out"
    process = _start(
        run_file,
        "--training.loop.max_train_steps=1000000000",
        "--training.checkpoint.training_state_checkpointing_steps=1000000000",
    )
    assert process.stdout is not None
    try:
        while not process.stdout.readline().startswith("ready "):
            assert process.poll() is None
        process.kill()
        output, _ = process.communicate(timeout=60)  # to the end of the rank, which writes there
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert [path.name[:11] for path in out.glob("c*")] == ["checkpoint-"]
    assert "the launcher is gone, and this rank ends with it" in output
    assert "Traceback" not in output


def test_ctrl_c_before_the_start_is_one_line(run_file: Path) -> None:
    """Also one that came while modules were imported, which `fastvideo train` lets wait."""
    program = (
        "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); "
        "signal.raise_signal(signal.SIGINT); os.execv(sys.executable, sys.argv[1:])"
    )
    words = [sys.executable, "-m", LAUNCH, "-m", ENTRY, "--config", str(run_file)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "fastvideo: stopped by SIGINT\n"


def test_ranks_have_the_time_to_save(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun kills them after half a minute otherwise."""
    monkeypatch.delenv("FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS", raising=False)
    cfg = load_run_config(run_file, [])
    assert grace_s(cfg) == 30
    checkpoint = cfg.training.checkpoint
    checkpoint.training_state_checkpointing_steps = 100
    checkpoint.sigterm_timeout_s = 600
    assert grace_s(cfg) == 630
    checkpoint.save_on_sigterm = False
    assert grace_s(cfg) == 30


@pytest.mark.parametrize(("metrics", "expected"), [("1", 71), ("0", 30)])
def test_ranks_have_the_time_for_a_long_wait(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, metrics: str, expected: int
) -> None:
    """Whoever scrapes each minute, and sets that, is not cut off."""
    monkeypatch.setenv("FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS", "61")
    monkeypatch.setenv("FASTVIDEO_METRICS", metrics)
    assert grace_s(load_run_config(run_file, [])) == expected


@pytest.mark.slow
def test_a_rank_that_is_preempted_saves_and_the_status_tells(run_file: Path) -> None:
    """Though the signal came to the rank alone, as some schedulers send it."""
    out = run_file.parent / "out"
    options = (
        "--method.sigterm_at=2",
        "--training.checkpoint.training_state_checkpointing_steps=100",
        f"--training.checkpoint.output_dir={out}",
    )
    process = _start(run_file, "--training.loop.max_train_steps=1000000", *options)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert (out / "checkpoint-3" / "dcp" / ".metadata").is_file(), output
    assert "stopping after step 3, as SIGTERM asked" in output
    assert "Traceback" not in output
