"""Activations of a pipeline's transformers, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.analysis import ActivationFile, ActivationRecord, Tolerances, diff_activations
from fastvideo.dataset.encoders import load_transformer
from fastvideo.hooks.activation_trace import attach_activation_trace, detach_activation_trace
from fastvideo.pipelines.basic.wan.wan_dmd_pipeline import WanDMDPipeline
from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastvideo.analysis import ActivationDiff
    from fastvideo.pipelines.composed_pipeline_base import ComposedPipelineBase
    from fastvideo.pipelines.forward_batch import ForwardBatch


@pytest.fixture
def trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tracing is on, for two layers."""
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "1")
    monkeypatch.setenv("FASTVIDEO_TRACE_LAYERS", r"^blocks\.[01]$")
    monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", str(tmp_path / "t.jsonl"))
    return tmp_path / "t.jsonl"


def _records(pipeline: ComposedPipelineBase, batch: ForwardBatch, path: Path) -> Any:
    pipeline.forward(batch)
    for name in ("transformer", "transformer_2"):
        if name in pipeline.modules:
            detach_activation_trace(attach_activation_trace(pipeline.modules[name]))
    return list(ActivationFile(path).records())


def _place(record: ActivationRecord) -> tuple[Any, ...]:
    key = record.key
    return key.step.loop, key.step.number, key.role, key.module, key.call


def test_every_step_and_both_passes_of_guidance(
    tiny_model: Path, new_batch: Callable[..., ForwardBatch], trace_file: Path
) -> None:
    """Steps are those of the loop; the pass without the prompt is the second call."""
    pipeline = WanPipeline.from_pretrained(tiny_model)
    records = _records(pipeline, new_batch(guidance_scale=2.0), trace_file)
    assert [_place(record) for record in records] == [
        ("denoising", step, "transformer", f"blocks.{block}", call)
        for step in range(3)
        for call in range(2)
        for block in range(2)
    ]


def test_the_steps_of_a_few_step_student(
    tiny_model: Path, new_batch: Callable[..., ForwardBatch], trace_file: Path
) -> None:
    """Its loop is another one, and has steps too."""
    pipeline = WanDMDPipeline.from_pretrained(tiny_model, dmd_denoising_steps=[1000, 500])
    records = _records(pipeline, new_batch(), trace_file)
    assert {_place(record)[:2] for record in records} == {("denoising", 0), ("denoising", 1)}


def test_both_experts_are_traced(tiny_model: Path, trace_file: Path) -> None:
    """Each under its name, in the same file."""
    experts = {
        name: load_transformer(tiny_model, dtype=torch.float32)
        for name in ("transformer", "transformer_2")
    }
    pipeline = WanPipeline.from_pretrained(tiny_model, loaded_modules=experts)
    assert pipeline.modules["transformer_2"] is experts["transformer_2"]
    traces = [attach_activation_trace(expert) for expert in experts.values()]
    assert [trace.role for trace in traces if trace] == ["transformer", "transformer_2"]
    for trace in traces:
        detach_activation_trace(trace)
    file = ActivationFile(trace_file)
    assert list(file.records()) == []
    assert set(file.modules) == {"transformer", "transformer_2"}


def test_a_student_can_be_compared_with_the_transformer_of_a_pipeline(
    tiny_model: Path, new_batch: Callable[..., ForwardBatch], trace_file: Path
) -> None:
    """As in validation, where the pipeline samples what the trainer traces under another role."""
    _records(WanPipeline.from_pretrained(tiny_model), new_batch(), trace_file)
    expected = trace_file.rename(trace_file.with_name("transformer.jsonl"))
    student = load_transformer(tiny_model)

    def compared() -> ActivationDiff:
        trace = attach_activation_trace(student, role="student")
        pipeline = WanPipeline.from_pretrained(tiny_model, loaded_modules={"transformer": student})
        pipeline.forward(new_batch())
        detach_activation_trace(trace)
        files = ActivationFile(expected), ActivationFile(trace_file)
        return diff_activations(*files, Tolerances.parse(), roles={"transformer": "student"})

    result = compared()
    assert (result.same, result.compared) == (True, 6)
    with torch.no_grad():
        student.blocks[1].ffn.net[2].weight.mul_(1.01)
    result = compared()
    assert result.first is not None
    assert (result.first.key.role, result.first.key.module) == ("transformer", "blocks.1")


def test_off_attaches_nothing(tiny_model: Path) -> None:
    """A pipeline without the variable has a transformer without hooks."""
    pipeline = WanPipeline.from_pretrained(tiny_model)
    assert not any(module._forward_hooks for module in pipeline.modules["transformer"].modules())
