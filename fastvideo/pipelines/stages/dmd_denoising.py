"""Few-step sampling of students distilled with DMD."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import torch

from fastvideo.errors import ConfigError
from fastvideo.pipelines.denoising_step import denoising_step
from fastvideo.pipelines.stages.denoising import begin_steps, call_transformer, note_step
from fastvideo.pipelines.stages.stage import PipelineStage

if TYPE_CHECKING:
    from torch import Tensor

    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs

NUM_TRAIN_TIMESTEPS: Final = 1000
"""The timestep of pure noise."""


class DMDTimestepStage(PipelineStage):
    """Takes the timesteps that the student was distilled for."""

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Sets the timesteps, and the number of steps with them.

        Raises:
            ConfigError: The settings name none.
        """
        steps = args.pipeline_config.dmd_denoising_steps
        if not steps:
            message = (
                "pipeline_config.dmd_denoising_steps: a distilled student needs the timesteps it "
                "was trained for, such as [1000, 750, 500, 250]"
            )
            raise ConfigError(message)
        batch.timesteps = torch.tensor(steps, dtype=torch.float32, device=args.device)
        batch.num_inference_steps = len(steps)
        return batch


class DMDDenoisingStage(PipelineStage):
    """Predicts the clean sample, adds noise of the next level, and so on; without guidance.

    With x the latents and v̂ the predicted velocity at noise level sigma = t / 1000, the clean
    sample is x̂₀ = x - sigma·v̂, in float64, and the next latents are
    (1 - sigma')·x̂₀ + sigma'·ε. Each video goes on drawing from its own generator.

    Args:
        transformer: Predicts the velocity.
    """

    profiler_region: ClassVar[str | None] = "inference_denoising"

    def __init__(self, transformer: Any) -> None:  # noqa: ANN401 - diffusers is untyped
        self._transformer = transformer

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Denoises the latents."""
        timesteps = cast("Tensor", batch.timesteps)
        latents = cast("Tensor", batch.latents)
        begin_steps(batch)
        with args.in_use("transformer", self._transformer) as model:
            for index, timestep in enumerate(timesteps):
                with denoising_step(index):
                    clean = _predict_clean(model, latents, timestep, batch, args)
                    latents = clean
                    if index + 1 < len(timesteps):
                        level = timesteps[index + 1] / NUM_TRAIN_TIMESTEPS
                        noise = batch.draw_noise(clean.shape[1:]).to(clean.device)
                        latents = (1 - level) * clean + level * noise
                note_step(batch, index, timestep, latents)
        batch.latents = latents
        return batch


def _predict_clean(
    model: Any,  # noqa: ANN401 - diffusers is untyped
    latents: Tensor,
    timestep: Tensor,
    batch: ForwardBatch,
    args: InferenceArgs,
) -> Tensor:
    velocity = call_transformer(model, latents, timestep, batch.prompt_embeds, args)
    level = (timestep / NUM_TRAIN_TIMESTEPS).double()
    return (latents.double() - level * velocity.double()).float()
