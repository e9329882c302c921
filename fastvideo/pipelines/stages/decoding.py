"""Turns latents into pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

from fastvideo.pipelines.stages.stage import PipelineStage

if TYPE_CHECKING:
    from torch import Tensor

    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs


class DecodingStage(PipelineStage):
    """Decodes latents with the VAE, one video after the other.

    Args:
        vae: An ``AutoencoderKLWan``.
    """

    profiler_region: ClassVar[str | None] = "inference_decoding"

    def __init__(self, vae: Any) -> None:  # noqa: ANN401 - diffusers is untyped
        self._vae = vae

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Decodes, unless only latents are wanted."""
        if not batch.decode:
            return batch
        latents = cast("Tensor", batch.latents)
        with args.in_use("vae", self._vae) as vae:
            videos = [_decode(vae, video[None]) for video in latents]
        batch.output = torch.cat(videos)
        return batch


def _decode(vae: Any, latents: Tensor) -> Tensor:  # noqa: ANN401 - diffusers is untyped
    """Returns [1, 3, T, H, W] in [0, 1]; the operations are those of ``diffusers.WanPipeline``."""
    latents = latents.to(vae.dtype)
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean).view(shape).to(latents)
    inverse_std = 1.0 / torch.tensor(vae.config.latents_std).view(shape).to(latents)
    video: Tensor = vae.decode(latents / inverse_std + mean, return_dict=False)[0]
    return (video * 0.5 + 0.5).clamp(0, 1).float()
