"""The trainer's program: its sequence, its exit status, and what is flushed when it ends early."""

from __future__ import annotations

import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from fastvideo.errors import ConfigError
from fastvideo.observability import TelemetryConfig
from fastvideo.profiler import RecordingSink, attach, detach
from fastvideo.train.checkpoint import lock
from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.entrypoint import train
from fastvideo.train.entrypoint.termination import Terminated
from fastvideo.train.run_config import load_run_config

if TYPE_CHECKING:
    from collections.abc import Iterator

TOYS = Path(__file__).parents[1]
CONFIGS = Path(__file__).parents[3] / "examples" / "train" / "configs"
TARGET = "_target_"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run file that trains the toy student for three steps."""
    content = {
        "models": {"student": {TARGET: "toy_run.ToyModel", "init_from": "base"}},
        "method": {TARGET: "toy_run.ToyMethod"},
        "training": {
            "loop": {"max_train_steps": 3},
            "checkpoint": {"output_dir": str(tmp_path / "out")},
            "tracker": {"trackers": ["jsonl"]},
        },
    }
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture
def _in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets `main` run here and takes back what it sets for its process."""
    monkeypatch.syspath_prepend(str(TOYS))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "FASTVIDEO_TORCH_PROFILER_DIR"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger("fastvideo")
    before = root.handlers[:], root.level, root.propagate
    flags = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    yield
    root.handlers[:], root.level, root.propagate = before
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = flags


def _metrics(run_file: Path) -> list[dict[str, Any]]:
    path = run_file.parent / "out" / "tracker" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _start(run_file: Path, *overrides: str, **environ: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if k not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}}
    return subprocess.Popen(
        [sys.executable, "-m", train.__name__, "--config", str(run_file), *overrides],
        env=clean | {"PYTHONPATH": str(TOYS), "OMP_NUM_THREADS": "1"} | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("_in_process")
def test_run_trains_and_keeps_the_run_file(run_file: Path) -> None:
    """All steps are logged in order, and the tracker holds the run file."""
    sink = RecordingSink()
    attach(sink)
    try:
        status = train.main(["--config", str(run_file), "--training.loop.max_train_steps", "2"])
    finally:
        detach(sink)
    assert status == 0
    outer = [e for e in sink.events if e[1] in {"model_loading", "training_train"}]
    assert outer == [
        ("enter", "model_loading"),
        ("exit", "model_loading"),
        ("enter", "training_train"),
        ("exit", "training_train"),
    ]
    assert [line["step"] for line in _metrics(run_file)] == [1, 2]
    kept = load_run_config(run_file.parent / "out" / "tracker" / train.RUN_FILE_NAME)
    words = ["--training.loop.max_train_steps", "2"]
    assert kept.raw == load_run_config(run_file, words).raw
    assert torch.backends.cudnn.deterministic is True
    assert torch.backends.cudnn.benchmark is False


@pytest.mark.usefixtures("_in_process")
def test_dry_run_builds_and_stops(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is trained or written; the log says that everything could be built."""
    assert train.main(["--config", str(run_file), "--dry-run"]) == 0
    assert "dry run succeeded: ToyMethod with student on 1 process, 3 steps" in (
        capsys.readouterr().err
    )
    assert not (run_file.parent / "out").exists()


@pytest.mark.usefixtures("_in_process")
def test_latest_without_a_checkpoint_is_said(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who asks to go on where there is nothing learns that the run starts afresh."""
    train.main(["--config", str(run_file), "--resume-from-checkpoint", "latest"])
    assert capsys.readouterr().err.count("out, starting afresh") == 1


@pytest.mark.usefixtures("_in_process")
def test_an_output_directory_is_for_one_run_at_a_time(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one is refused before it builds anything, unless it saves nothing."""
    out = run_file.parent / "out"
    out.mkdir()
    monkeypatch.setattr(lock, "_WAIT_S", 0.0)
    other = lock.OutputLock(out, run_id="other")
    other.acquire()
    saving = ["--training.checkpoint.training_state_checkpointing_steps=2"]
    words = ["--config", str(run_file)]
    with pytest.raises(lock.OutputInUseError, match=r"another run \(run other, process"):
        train.main([*words, *saving, "--models.student.init_from="])
    assert [path.name for path in out.iterdir()] == [lock.LOCK]
    train.main(words)
    other.release()
    train.main([*words, *saving])
    assert {"checkpoint-2", "checkpoint-3"} <= {path.name for path in out.iterdir()}
    other.acquire()
    other.release()


@pytest.mark.usefixtures("_in_process")
def test_a_refused_checkpoint_keeps_its_run_file(run_file: Path) -> None:
    """What another method has left in the output directory stays as it was."""
    out = run_file.parent / "out"
    saving = "--training.checkpoint.training_state_checkpointing_steps=3"
    words = ["--config", str(run_file), saving, "--resume-from-checkpoint", "latest"]
    train.main(words)
    metadata = out / "checkpoint-3" / "metadata.json"
    content = json.loads(metadata.read_text())
    content["method"]["target"] = "elsewhere.OtherMethod"
    del content["metadata_sha256"]
    metadata.write_text(json.dumps(content))
    kept = (out / "tracker" / train.RUN_FILE_NAME).read_text()
    lines = _metrics(run_file)
    with pytest.raises(CheckpointError, match=r"saved by OtherMethod .* method is ToyMethod"):
        train.main([*words, "--training.loop.max_train_steps=6"])
    assert (out / "tracker" / train.RUN_FILE_NAME).read_text() == kept
    assert _metrics(run_file) == lines
    content["method"]["target"] = "elsewhere.ToyMethod"
    metadata.write_text(json.dumps(content))
    train.main([*words, "--training.loop.max_train_steps=6"])
    assert "max_train_steps: 6" in (out / "tracker" / train.RUN_FILE_NAME).read_text()
    assert [line["step"] for line in _metrics(run_file)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--training.loop.max_train_steps=0"], "training.loop.max_train_steps: expected"),
        (["--method._target_=toy_run.ToyMethd"], "Did you mean 'ToyMethod'?"),
        (["--models.student={_target_: toy_run.ToyModel}"], "needs 'init_from'; given"),
    ],
)
def test_mistake_of_the_user_is_one_line(run_file: Path, words: list[str], said: str) -> None:
    """No traceback, status 1, and the line names the mistake."""
    child = _start(run_file, *words)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 1
    assert "Traceback" not in errors
    (line,) = (line for line in errors.splitlines() if not line.startswith("INFO "))
    assert line.startswith("ERROR ")
    assert said in line


@pytest.mark.usefixtures("_in_process")
def test_exports_of_a_stopped_run_are_not_waited_for(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks wait for the end of this one, so what a helper finishes does not hold it up."""
    finished = threading.Event()

    class Controller:
        def stop(self) -> None:
            finished.wait(60)

    monkeypatch.setattr(train, "get_or_create_profiler", lambda directory: Controller())
    monkeypatch.setattr(train, "_TRACING_S", 0.01)
    try:
        with pytest.raises(Terminated):
            train.main(["--config", str(run_file), "--method.sigterm_at=2"])
        assert not finished.is_set()
    finally:
        finished.set()


@pytest.mark.usefixtures("_in_process")
def test_exception_stops_the_profiler_and_leaves_the_process_group(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each part that was started is ended, though one breaks; the exception passes unchanged."""
    ended: list[str] = []

    class Controller:
        def stop(self) -> None:
            ended.append("profiler")

    class Telemetry:
        config = TelemetryConfig()

        def shutdown(self, *, error: BaseException, linger: bool, **_: object) -> None:
            ended.append(f"telemetry after {type(error).__name__}, linger {linger}")
            message = "and this part breaks as well"
            raise OSError(message)

    telemetry = Telemetry()
    for name in ("describe", "add_collective_wait", "stop_lingering"):
        monkeypatch.setattr(telemetry, name, lambda *_, **__: None, raising=False)
    monkeypatch.setattr(train, "start_telemetry", lambda settings: telemetry)
    monkeypatch.setattr(train, "get_or_create_profiler", lambda directory: Controller())
    monkeypatch.setattr(train, "cleanup_dist_env_and_memory", lambda: ended.append("group"))
    with pytest.raises(RuntimeError, match="broken on purpose at step 2"):
        train.main(["--config", str(run_file), "--method.fail_at=2"])
    assert "closing it failed as well" in capsys.readouterr().err
    assert ended == ["profiler", "telemetry after RuntimeError, linger False", "group"]


@pytest.mark.usefixtures("_in_process")
def test_strict_mesh_comes_from_the_environment(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FASTVIDEO_STRICT_MESH=1 refuses a mesh of four on one process, and adapts it otherwise."""
    words = ["--config", str(run_file), "--training.distributed.num_gpus=4", "--dry-run"]
    assert train.main(words) == 0
    monkeypatch.setenv("FASTVIDEO_STRICT_MESH", "1")
    with pytest.raises(ConfigError, match="hsdp_shard_dim 4"):
        train.main(words)


@pytest.mark.usefixtures("_in_process")
def test_config_warnings_come_from_rank_zero_only(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other ranks read the same file and stay silent about it."""
    words = ["--config", str(run_file), "--training={later: 1, loop: {max_train_steps: 1}}"]
    words += ["--dry-run"]
    levels = {name: logging.getLogger(name).level for name in train._CONFIG_MODULES}
    try:
        train.main(words)
        assert "unknown key training.later" in capsys.readouterr().err
        monkeypatch.setattr(train, "get_world_rank", lambda: 1)
        train.main(words)
        assert "unknown key" not in capsys.readouterr().err
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def test_sigterm_flushes_the_open_segment(run_file: Path, tmp_path: Path) -> None:
    """A run that is told to stop ends with 143 and leaves a whole kernel trace behind."""
    traces = tmp_path / "traces"
    child = _start(
        run_file,
        "--method.sigterm_at=2",
        FASTVIDEO_TORCH_PROFILER_DIR=str(traces),
        FASTVIDEO_TORCH_PROFILE_REGIONS="training_train",
    )
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 128 + signal.SIGTERM, errors
    (trace,) = traces.glob("trace_rank0_*training_train.pt.trace.json.gz")
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "fastvideo.region::training_train" in names
    assert [line["step"] for line in _metrics(run_file)] == [1]


def test_a_dead_data_worker_is_one_line(run_file: Path) -> None:
    """It says what died and what to do, and the run ends with status 1."""
    process = _start(run_file, "--models.student.worker_dies=true")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "a process that loads data for this rank has died: DataLoader worker" in errors
    assert "Set a smaller --training.data.dataloader_num_workers" in errors
    assert "--training.checkpoint.resume_from_checkpoint latest" in errors
    assert "Traceback" not in errors


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model and data set that the tiny run files are made for."""
    out = tmp_path_factory.mktemp("tiny")
    command = [sys.executable, "-m", "fastvideo", "tiny-assets", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run_file", "built"),
    [
        ("distribution_matching/wan/dmd2_t2v_tiny.yaml", "DMD2Method with critic, student, t"),
        ("fine_tuning/wan/t2v_tiny.yaml", "FineTuneMethod with student on"),
    ],
)
def test_shipped_tiny_run_files_can_be_built(
    tiny: Path, tmp_path: Path, run_file: str, built: str
) -> None:
    """A dry run builds real models, method and loader, inside a region that can be traced."""
    overrides = (
        *("--models.*.init_from", str(tiny / "model")),
        *("--training.data.data_path", str(tiny / "t2v")),
    )
    child = _start(
        CONFIGS / run_file,
        *(*overrides, "--dry-run"),
        FASTVIDEO_TORCH_PROFILER_DIR=str(tmp_path),
        FASTVIDEO_TORCH_PROFILE_REGIONS="model_loading",
    )
    _, errors = child.communicate(timeout=240)
    assert child.returncode == 0, errors
    assert f"dry run succeeded: {built}" in errors
    assert "Warning" not in errors
    assert len(list(tmp_path.glob("trace_rank0_*model_loading.pt.trace.json.gz"))) == 1
