"""Text to video with few-step students of Wan models."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fastvideo.pipelines.composed_pipeline_base import ComposedPipelineBase
from fastvideo.pipelines.stages import (
    ConditioningStage,
    DecodingStage,
    DMDDenoisingStage,
    DMDTimestepStage,
    InputValidationStage,
    LatentPreparationStage,
    PromptEncodingStage,
)

if TYPE_CHECKING:
    from fastvideo.pipelines.stages import PipelineStage


class WanDMDPipeline(ComposedPipelineBase):
    """Students distilled with DMD: a few steps, no guidance.

    ``pipeline_config.dmd_denoising_steps`` says at which timesteps.
    """

    required_modules: ClassVar[tuple[str, ...]] = ("text_encoder", "transformer", "vae")

    def create_stages(self) -> tuple[PipelineStage, ...]:
        """Returns the stages in the order in which they run."""
        modules = self.modules
        transformer = modules["transformer"]
        return (
            InputValidationStage(),
            PromptEncodingStage(modules["text_encoder"]),
            ConditioningStage(transformer),
            DMDTimestepStage(),
            LatentPreparationStage(transformer, modules["vae"].config),
            DMDDenoisingStage(transformer),
            DecodingStage(modules["vae"]),
        )
