"""The main job, end to end: real clips, a data set, a DMD2 run on two processes, its traces."""

from __future__ import annotations

import functools
import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.distributed, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PREFIX = "fastvideo.region::"
DMD2_TINY = "examples/train/configs/distribution_matching/wan/dmd2_t2v_tiny.yaml"
FINETUNE_TINY = "examples/train/configs/fine_tuning/wan/t2v_tiny.yaml"
STEP_REGIONS = (
    "training_train_one_step,training_dataloader,training_forward,training_backward,"
    "training_optimizer,training_callbacks,dmd2_student_rollout,dmd2_generator_loss,dmd2_critic_loss"
)
ONE_STEP = [
    "training_dataloader",
    "training_forward",
    "training_backward",
    "training_optimizer",
    "training_callbacks",
]


@dataclass(frozen=True)
class Assets:
    """What a run needs."""

    model: Path
    data: Path


@dataclass(frozen=True)
class Run:
    """A finished run."""

    directory: Path
    output: str

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl that belong to steps."""
        lines = (self.directory / "tracker" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line, parse_constant=_refuse) for line in lines]

    def segments(self, rank: int) -> list[dict[str, Any]]:
        """The index of one rank's segments."""
        lines = (self.directory / "traces" / f"segments_rank{rank}.jsonl").read_text().splitlines()
        return [json.loads(line, parse_constant=_refuse) for line in lines]

    def trace(self, segment: dict[str, Any]) -> dict[str, Any]:
        """One trace, parsed strictly."""
        path = self.directory / "traces" / segment["files"]["trace"]
        with gzip.open(path, "rt", encoding="utf-8", errors="strict") as file:
            return json.load(file, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    message = f"{constant} is not JSON"
    raise ValueError(message)


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FASTVIDEO_")}
    finished = subprocess.run(
        command,
        cwd=ROOT,
        env={
            **kept,
            "OMP_NUM_THREADS": "1",
            "WANDB_MODE": "offline",
            "FASTVIDEO_METRICS_PORT": "0",
            **(environment or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-6000:]
    return finished.stdout


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    """A tiny model and the data set made from the real clips, as the demo makes them."""
    root = tmp_path_factory.mktemp("assets")
    cli = [sys.executable, "-m", "fastvideo"]
    _run([*cli, "tiny-assets", "--out", str(root / "model"), "--model-only"])
    _run([sys.executable, "examples/demo/make_clips.py", "--out", str(root / "clips")])
    size = ["--height", "64", "--width", "64", "--num-frames", "9", "--fps", "16"]
    places = ["--videos", str(root / "clips"), "--captions", "auto", "--out", str(root / "data")]
    _run([*cli, "preprocess", "--model", str(root / "model"), *places, *size])
    return Assets(root / "model", root / "data" / "combined_parquet_dataset")


def _train(
    assets: Assets, out: Path, config: str, regions: str, processes: int, *overrides: str
) -> Run:
    environment = {"NUM_GPUS": str(processes), "LOG_DIR": str(out)}
    if regions:
        environment["FASTVIDEO_TORCH_PROFILER_DIR"] = str(out / "traces")
        environment["FASTVIDEO_TORCH_PROFILE_REGIONS"] = regions
    out.mkdir(parents=True, exist_ok=True)
    command = ["bash", "examples/train/run.sh", config]
    command += ["--models.*.init_from", str(assets.model)]
    command += ["--training.data.data_path", str(assets.data)]
    command += ["--training.checkpoint.output_dir", str(out), *overrides]
    return Run(out, _run(command, environment))


SIX_STEPS = (
    "--training.loop.max_train_steps",
    "6",
    "--training.checkpoint.training_state_checkpointing_steps",
    "0",
    "--callbacks.validation.every_steps",
    "0",
)


@pytest.fixture(scope="module")
def whole_run(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Six steps on two processes, with the whole run as the outermost region."""
    out = tmp_path_factory.mktemp("whole")
    return _train(assets, out, DMD2_TINY, f"training_train,{STEP_REGIONS}", 2, *SIX_STEPS)


@pytest.fixture(scope="module")
def step_run(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same six steps, with the step as the outermost region."""
    out = tmp_path_factory.mktemp("steps")
    return _train(assets, out, DMD2_TINY, STEP_REGIONS, 2, *SIX_STEPS)


def _slices(trace: dict[str, Any]) -> list[tuple[str, float, float]]:
    """The annotations of regions on the host, as (region, start, end) in order of their start."""
    found = [
        (event["name"].removeprefix(PREFIX), event["ts"], event["ts"] + event["dur"])
        for event in trace["traceEvents"]
        if event.get("ph") == "X"
        and event.get("cat") == "user_annotation"
        and event["name"].startswith(PREFIX)
    ]
    return sorted(found, key=lambda slice_: (slice_[1], -slice_[2]))


def _inside(slices: list[tuple[str, float, float]], name: str) -> list[list[str]]:
    """For every slice called ``name``, the names of the slices directly inside it, in order."""
    children: list[list[str]] = []
    for outer in (s for s in slices if s[0] == name):
        within = [s for s in slices if s is not outer and outer[1] <= s[1] and s[2] <= outer[2]]
        direct = [
            s[0]
            for s in within
            if not any(o is not s and o[1] <= s[1] and s[2] <= o[2] for o in within)
        ]
        children.append(direct)
    return children


def test_six_steps_are_logged_with_their_times(whole_run: Run) -> None:
    """Every step has its number, its time, its wait for data, and its losses."""
    rows = whole_run.metrics
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        assert 0 <= row["dataloader_time_sec"] < row["step_time_sec"]
        assert row["fake_score_loss"] > 0


def test_the_student_is_updated_at_step_five_only(whole_run: Run) -> None:
    """The generator update interval of the recipe is 5."""
    assert [row["update_student"] for row in whole_run.metrics] == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_whole_run_is_one_segment(whole_run: Run, rank: int) -> None:
    """With the run selected, one segment per rank holds all six steps, each in order."""
    (segment,) = whole_run.segments(rank)
    assert (segment["region"], segment["status"]) == ("training_train", "ok")
    slices = _slices(whole_run.trace(segment))
    assert slices[0][0] == "training_train"
    assert _inside(slices, "training_train") == [["training_train_one_step"] * 6]
    assert _inside(slices, "training_train_one_step") == [ONE_STEP] * 6


@pytest.mark.parametrize("rank", [0, 1])
def test_every_step_is_a_segment(step_run: Run, rank: int) -> None:
    """With the step as the outermost region there are six segments, numbered by their step."""
    segments = sorted(step_run.segments(rank), key=lambda segment: segment["index"])
    assert [segment["step"] for segment in segments] == [1, 2, 3, 4, 5, 6]
    for segment in segments:
        slices = _slices(step_run.trace(segment))
        assert slices[0][0] == "training_train_one_step"
        assert _inside(slices, "training_train_one_step") == [ONE_STEP]
        losses = ["dmd2_critic_loss"]
        if segment["step"] == 5:
            losses = ["dmd2_generator_loss", "dmd2_critic_loss"]
        assert _inside(slices, "training_forward") == [losses]
        assert _inside(slices, "dmd2_critic_loss") == [["dmd2_student_rollout"]]


def test_metadata_says_where_a_segment_belongs(step_run: Run) -> None:
    """Rank, step and start in unix time are in the trace itself."""
    for rank in (0, 1):
        for segment in step_run.segments(rank):
            trace = step_run.trace(segment)
            ours = trace["fastvideo"]
            assert (ours["rank"], ours["step"]) == (rank, segment["step"])
            assert ours["start_unix_ns"] == segment["start_unix_ns"]
            assert trace["distributedInfo"]["rank"] == rank


def test_a_fixed_seed_gives_the_same_losses_traced_or_not(whole_run: Run, step_run: Run) -> None:
    """Two runs of one recipe agree to the bit, whatever is traced."""
    names = ("total_loss", "generator_loss", "fake_score_loss")
    first = [[row.get(name) for name in names] for row in whole_run.metrics]
    assert first == [[row.get(name) for name in names] for row in step_run.metrics]


@pytest.mark.filterwarnings("ignore")  # of HTA's own dependencies
def test_holistic_trace_analysis_reads_both_ranks(
    step_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader people use loads the first segment of each rank and finds our annotations."""
    from hta.common.trace import Trace  # noqa: PLC0415
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415

    # Its default forks a pool from this process, whose threads make that a matter of luck.
    alone = functools.partialmethod(Trace.load_traces, use_multiprocessing=False)
    monkeypatch.setattr(Trace, "load_traces", alone)

    files = {}
    for rank in (0, 1):
        first = min(step_run.segments(rank), key=lambda segment: segment["index"])
        files[rank] = str(step_run.directory / "traces" / first["files"]["trace"])
    analysis = TraceAnalysis(trace_files=files, trace_dir=str(tmp_path))
    for rank in (0, 1):
        symbols = analysis.t.symbol_table.get_sym_table()
        frame = analysis.t.get_trace(rank)
        names = {symbols[index] for index in frame["name"]}
        assert PREFIX + "training_forward" in names


def test_weights_and_biases_works_offline(whole_run: Run) -> None:
    """Without a key and without a network there is an offline run."""
    assert list((whole_run.directory / "tracker").rglob("offline-run-*"))


def test_fine_tuning_on_the_clips_lowers_the_loss(assets: Assets, tmp_path: Path) -> None:
    """Two hundred steps on real latents learn something."""
    run = _train(
        assets,
        tmp_path / "finetune",
        FINETUNE_TINY,
        "",
        1,
        "--training.loop.max_train_steps",
        "200",
        "--training.optimizer.learning_rate",
        "3e-3",
    )
    losses = [row["finetune_loss"] for row in run.metrics]
    assert len(losses) == 200
    assert sum(losses[-40:]) < 0.8 * sum(losses[:40])


def test_the_demo_report_reads_the_run(whole_run: Run) -> None:
    """The closing table of the demo shows every step and what to open."""
    text = _run([sys.executable, "examples/demo/report.py", str(whole_run.directory)])
    assert "ui.perfetto.dev" in text
    assert "Scraped from rank 0" not in text
    assert text.count("updated") == 1
