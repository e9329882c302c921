"""Draws the noise that sampling starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fastvideo.pipelines.stages.input_validation import TEMPORAL_MULTIPLE
from fastvideo.pipelines.stages.stage import PipelineStage
from fastvideo.pipelines.typed_fields import fail

if TYPE_CHECKING:
    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs


class LatentPreparationStage(PipelineStage):
    """Draws noise from the generator of each video.

    Args:
        transformer: Its config says how many channels latents have, and how large they may be.
        vae_config: Its ``scale_factor_spatial`` says how many pixels a latent pixel has.
    """

    def __init__(self, transformer: Any, vae_config: Any) -> None:  # noqa: ANN401 - untyped
        self._channels = int(transformer.config.in_channels)
        self._positions = getattr(transformer.config, "rope_max_seq_len", None)
        self._patch = tuple(getattr(transformer.config, "patch_size", (1, 1, 1)))
        self._factor = int(getattr(vae_config, "scale_factor_spatial", None) or 8)

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Draws the latents, unless the request brings some along.

        Raises:
            ConfigError: A side is longer than the model has positions for.
        """
        if batch.latents is None:
            self._check_lengths(batch)
            shape = (
                self._channels,
                (batch.num_frames - 1) // TEMPORAL_MULTIPLE + 1,
                batch.height // self._factor,
                batch.width // self._factor,
            )
            batch.latents = batch.draw_noise(shape)
        batch.latents = batch.latents.to(args.device, torch.float32)
        return batch

    def _check_lengths(self, batch: ForwardBatch) -> None:
        if self._positions is None:
            return
        latents, rows, columns = (int(self._positions) * patch for patch in self._patch)
        most = {
            "num_frames": (latents - 1) * TEMPORAL_MULTIPLE + 1,
            "height": rows * self._factor,
            "width": columns * self._factor,
        }
        for name, longest in most.items():
            if getattr(batch, name) > longest:
                got = getattr(batch, name)
                fail(name, f"this model has positions for {longest} at most, got {got!r}")
