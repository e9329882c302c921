"""From training to a video: a checkpoint is exported and sampled like any other model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastvideo.pipelines.basic.wan.wan_dmd_pipeline import WanDMDPipeline
from fastvideo.pipelines.forward_batch import ForwardBatch
from fastvideo.pipelines.video_generator import VideoGenerator
from fastvideo.train.checkpoint.export import ExportRequest, export_checkpoint
from fastvideo.train.checkpoint.manager import CheckpointConfig

if TYPE_CHECKING:
    from types import ModuleType

STEPS = [1000, 750, 500, 250]


def checkpoint_runs() -> ModuleType:
    """The module that makes runs with checkpoints."""
    path = Path(__file__).parents[1] / "train" / "checkpoint" / "checkpoint_runs.py"
    spec = importlib.util.spec_from_file_location("checkpoint_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_distilled_student_is_sampled_after_its_export(tmp_path: Path) -> None:
    """The generator makes the very sample that the student makes where it was trained."""
    runs = checkpoint_runs()
    data = runs.tiny_runs.write_dataset(tmp_path / "data", rows=4)
    save = CheckpointConfig(save_steps=2)
    run: Any = runs.Run("dmd2", data, tmp_path / "run", save=save).train(2)
    exported = export_checkpoint(
        ExportRequest(
            checkpoint=str(tmp_path / "run"),
            output_dir=tmp_path / "model",
            base_model=runs.tiny_runs.MODEL,
        )
    )
    size = {"height": 32, "width": 32, "num_frames": 5}
    trained = WanDMDPipeline.from_pretrained(
        runs.tiny_runs.MODEL,
        loaded_modules={"transformer": run.method.student.transformer.eval()},
        dmd_denoising_steps=STEPS,
    )
    batch = ForwardBatch(prompt="a", num_inference_steps=4, seeds=(3,), **size)
    expected = trained.forward(batch).output
    with VideoGenerator.from_pretrained(exported, dmd_denoising_steps=STEPS) as generator:
        assert isinstance(generator.pipeline, WanDMDPipeline)
        result = generator.generate_video("a", seed=3, save_video=False, **size)
    assert expected is not None
    assert torch.equal(result["samples"], expected)
    with VideoGenerator.from_pretrained(runs.tiny_runs.MODEL, dmd_denoising_steps=STEPS) as other:
        untrained = other.generate_video("a", seed=3, save_video=False, **size)
    assert not torch.equal(untrained["samples"], expected)
