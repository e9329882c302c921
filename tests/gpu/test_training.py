"""Training on a CUDA device: a whole run observed, and one that is resumed."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    SpansIn = Callable[[Path], list[tuple[str, float | None]]]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "examples/train/configs"
DMD2 = CONFIGS / "distribution_matching/wan/dmd2_t2v_tiny.yaml"
FINE_TUNE = CONFIGS / "fine_tuning/wan/t2v_tiny.yaml"
REGIONS = (
    "training_train_one_step",
    "training_forward",
    "training_backward",
    "training_optimizer",
    "dmd2_generator_loss",
    "dmd2_critic_loss",
)


def _call(*command: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FASTVIDEO_")}
    done = subprocess.run(
        [sys.executable, "-m", "fastvideo", *command],
        cwd=ROOT,
        env={**kept, "FASTVIDEO_METRICS_PORT": "0", "NUM_GPUS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and a data set encoded with it."""
    out = tmp_path_factory.mktemp("tiny")
    _call("tiny-assets", "--out", str(out))
    return out


def _train(tiny: Path, config: Path, out: Path, *overrides: str, **environment: str) -> None:
    _call(
        "train",
        "--config",
        str(config),
        "--models.*.init_from",
        str(tiny / "model"),
        "--training.data.data_path",
        str(tiny / "t2v"),
        "--training.checkpoint.output_dir",
        str(out),
        "--training.tracker.trackers",
        "[jsonl]",
        *overrides,
        **environment,
    )


def _losses(out: Path) -> list[dict[str, float]]:
    lines = (out / "tracker" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [
        {key: value for key, value in row.items() if "loss" in key or "grad" in key} for row in rows
    ]


@pytest.fixture(scope="module")
def observed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps of DMD2 with kernel traces and spans."""
    out = tmp_path_factory.mktemp("observed")
    _train(
        tiny,
        DMD2,
        out,
        FASTVIDEO_TORCH_PROFILER_DIR=str(out / "traces"),
        FASTVIDEO_TORCH_PROFILE_REGIONS=",".join(REGIONS),
        FASTVIDEO_SPAN_DIR=str(out / "spans"),
    )
    return out


def test_a_run_is_finite(observed: Path) -> None:
    """In the types that a GPU trains with by default."""
    losses = _losses(observed)
    assert len(losses) == 6
    assert all(torch.isfinite(torch.tensor(list(row.values()))).all() for row in losses)


def test_segments_hold_the_kernels_of_their_regions(observed: Path) -> None:
    """Each is exported, uses the device, has a kernel for every launch, and names its regions."""
    traces = observed / "traces"
    lines = (traces / "segments_rank0.jsonl").read_text(encoding="utf-8").splitlines()
    segments = [json.loads(line) for line in lines]
    assert segments
    for segment in segments:
        assert (segment["status"], segment["device"]) == ("ok", "cuda"), segment
        kinds = {warning.partition(":")[0] for warning in segment["warnings"]}
        assert not kinds & {"kernels_lost", "launches_without_kernel", "kernels_before_launch"}
        path = traces / segment["files"]["trace"]
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        kernels = [event for event in events if event.get("cat") == "kernel"]
        assert len(kernels) > 10, segment
        names = {event.get("name") for event in events}
        assert f"fastvideo.region::{segment['region']}" in names
        launches = {
            event["args"]["correlation"]
            for event in events
            if event.get("cat") in ("cuda_runtime", "cuda_driver")
            and "correlation" in event.get("args", {})
        }
        assert {kernel["args"]["correlation"] for kernel in kernels} <= launches


def test_spans_of_steps_have_their_time_on_the_device(observed: Path, spans_in: SpansIn) -> None:
    """All six, and those of the regions below."""
    spans = spans_in(observed / "spans")
    for name in ("training_train_one_step", "training_forward", "training_backward"):
        times = [ms for span, ms in spans if span == name]
        assert len(times) >= 6, name
        assert all(ms is not None and ms > 0 for ms in times), (name, times)


@pytest.mark.parametrize("saved", ["sync", "async"])
def test_a_resumed_run_equals_an_undisturbed_one(tiny: Path, tmp_path: Path, saved: str) -> None:
    """Three and three steps give the losses of six, to the bit."""
    deterministic = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    save = (
        "--training.checkpoint.training_state_checkpointing_steps",
        "3",
        "--training.checkpoint.async_save",
        str(saved == "async").lower(),
    )
    steps = "--training.loop.max_train_steps"
    _train(tiny, FINE_TUNE, tmp_path / "whole", steps, "6", **deterministic)
    _train(tiny, FINE_TUNE, tmp_path / "parts", steps, "3", *save, **deterministic)
    _train(
        tiny,
        FINE_TUNE,
        tmp_path / "parts",
        steps,
        "6",
        "--training.checkpoint.resume_from_checkpoint",
        "latest",
        *save,
        **deterministic,
    )
    whole, parts = _losses(tmp_path / "whole"), _losses(tmp_path / "parts")
    assert parts[-3:] == whole[-3:]


def test_compiled_blocks_train(tiny: Path, tmp_path: Path) -> None:
    """With losses close to those of the same run uncompiled."""
    _train(tiny, FINE_TUNE, tmp_path / "plain")
    _train(tiny, FINE_TUNE, tmp_path / "compiled", "--training.model.enable_torch_compile", "true")
    plain, compiled = _losses(tmp_path / "plain"), _losses(tmp_path / "compiled")
    assert len(plain) == len(compiled)
    for expected, found in zip(plain, compiled, strict=True):
        assert found == pytest.approx(expected, rel=0.05, abs=1e-3)
