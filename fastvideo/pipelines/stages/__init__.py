"""The stages that pipelines are made of."""

from __future__ import annotations

from fastvideo.pipelines.stages.conditioning import ConditioningStage
from fastvideo.pipelines.stages.decoding import DecodingStage
from fastvideo.pipelines.stages.denoising import DenoisingStage
from fastvideo.pipelines.stages.dmd_denoising import DMDDenoisingStage, DMDTimestepStage
from fastvideo.pipelines.stages.input_validation import InputValidationStage
from fastvideo.pipelines.stages.latent_preparation import LatentPreparationStage
from fastvideo.pipelines.stages.prompt_encoding import PromptEncodingStage
from fastvideo.pipelines.stages.stage import PipelineStage
from fastvideo.pipelines.stages.timestep_preparation import TimestepPreparationStage

__all__ = [
    "ConditioningStage",
    "DMDDenoisingStage",
    "DMDTimestepStage",
    "DecodingStage",
    "DenoisingStage",
    "InputValidationStage",
    "LatentPreparationStage",
    "PipelineStage",
    "PromptEncodingStage",
    "TimestepPreparationStage",
]
