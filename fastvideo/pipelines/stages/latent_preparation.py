"""Draws the noise that sampling starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fastvideo.pipelines.stages.input_validation import TEMPORAL_MULTIPLE
from fastvideo.pipelines.stages.stage import PipelineStage

if TYPE_CHECKING:
    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs


class LatentPreparationStage(PipelineStage):
    """Draws noise from the generator of each video.

    Args:
        transformer: Its config says how many channels latents have.
        vae_config: Its ``scale_factor_spatial`` says how many pixels a latent pixel has.
    """

    def __init__(self, transformer: Any, vae_config: Any) -> None:  # noqa: ANN401 - untyped
        self._channels = int(transformer.config.in_channels)
        self._factor = int(getattr(vae_config, "scale_factor_spatial", None) or 8)

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Draws the latents, unless the request brings some along."""
        if batch.latents is None:
            shape = (
                self._channels,
                (batch.num_frames - 1) // TEMPORAL_MULTIPLE + 1,
                batch.height // self._factor,
                batch.width // self._factor,
            )
            batch.latents = batch.draw_noise(shape)
        batch.latents = batch.latents.to(args.device, torch.float32)
        return batch
