"""Text to video with Wan models, along the whole flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo.errors import DataError
from fastvideo.pipelines.composed_pipeline_base import ComposedPipelineBase
from fastvideo.pipelines.stages import (
    ConditioningStage,
    DecodingStage,
    DenoisingStage,
    InputValidationStage,
    LatentPreparationStage,
    PromptEncodingStage,
    TimestepPreparationStage,
)

if TYPE_CHECKING:
    from fastvideo.pipelines.stages import PipelineStage


class WanPipeline(ComposedPipelineBase):
    """Wan 2.1 text to video; models with two experts (Wan 2.2 14B) are sampled likewise."""

    def create_stages(self) -> tuple[PipelineStage, ...]:
        """Returns the stages in the order in which they run.

        Raises:
            DataError: The model conditions on more than text.
        """
        if self.model_index.get("expand_timesteps"):
            message = (
                f"{self.model_dir} has a timestep for every token (expand_timesteps in "
                "model_index.json), which this pipeline does not sample"
            )
            raise DataError(message)
        modules = self.modules
        transformer, scheduler = modules["transformer"], modules["scheduler"]
        return (
            InputValidationStage(),
            PromptEncodingStage(modules["text_encoder"]),
            ConditioningStage(transformer),
            TimestepPreparationStage(scheduler),
            LatentPreparationStage(transformer, modules["vae"].config),
            DenoisingStage(
                transformer,
                scheduler,
                transformer_2=modules.get("transformer_2"),
                boundary_ratio=self.model_index.get("boundary_ratio"),
            ),
            DecodingStage(modules["vae"]),
        )
