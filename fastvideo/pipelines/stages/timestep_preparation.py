"""Decides at which timesteps the transformer is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastvideo.pipelines.stages.stage import PipelineStage

if TYPE_CHECKING:
    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs


class TimestepPreparationStage(PipelineStage):
    """Lets the scheduler lay out its timesteps.

    Args:
        scheduler: A flow scheduler of diffusers.
    """

    def __init__(self, scheduler: Any) -> None:  # noqa: ANN401 - diffusers is untyped
        self._scheduler = scheduler

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Lays out ``num_inference_steps`` timesteps, from noise to the sample."""
        self._scheduler.set_timesteps(batch.num_inference_steps, device=args.device)
        batch.timesteps = self._scheduler.timesteps
        return batch
