"""Regions and logging around stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo.pipelines.stages import DenoisingStage, PipelineStage
from fastvideo.profiler import RecordingSink, attach, detach

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline
    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs


class OwnDenoising(DenoisingStage):
    """A stage of somebody's own, which overrides `forward`."""

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        return batch


def regions_of(run: Callable[[], object]) -> list[str]:
    """Returns the regions that are entered while something runs."""
    sink = RecordingSink()
    attach(sink)
    try:
        run()
    finally:
        detach(sink)
    return [name for kind, name in sink.events if kind == "enter"]


def test_a_subclass_that_overrides_forward_keeps_the_region(
    wan: WanPipeline, new_batch: Callable[..., ForwardBatch]
) -> None:
    """The region belongs to the class attribute, not to the method."""
    stage = OwnDenoising(wan.modules["transformer"], wan.modules["scheduler"])
    assert regions_of(lambda: stage(new_batch(), wan.args)) == ["inference_denoising"]


def test_every_part_of_a_request_has_its_region(
    wan: WanPipeline, new_batch: Callable[..., ForwardBatch]
) -> None:
    """Encoding, the loop with a region for every step, decoding."""
    batch = new_batch(num_inference_steps=2)
    assert regions_of(lambda: wan.forward(batch)) == [
        "inference_text_encoding",
        "inference_denoising",
        "inference_denoising_step",
        "inference_denoising_step",
        "inference_decoding",
    ]


def test_stages_say_how_long_they_took_where_that_is_asked_for(
    wan: WanPipeline,
    new_batch: Callable[..., ForwardBatch],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On any device; nothing is logged otherwise."""
    caplog.set_level("INFO")
    wan.forward(new_batch(num_inference_steps=1))
    assert "Stage took" not in caplog.text
    monkeypatch.setenv("FASTVIDEO_STAGE_LOGGING", "1")
    wan.forward(new_batch(num_inference_steps=1))
    said = [message for message in caplog.messages if " took " in message]
    assert [message.split()[0] for message in said] == [
        type(stage).__name__ for stage in wan.stages
    ]
    assert all(isinstance(stage, PipelineStage) for stage in wan.stages)
