"""Refuses requests that cannot be fulfilled, before anything is computed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from fastvideo.pipelines.stages.stage import PipelineStage
from fastvideo.pipelines.typed_fields import fail

if TYPE_CHECKING:
    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs

SPATIAL_MULTIPLE: Final = 16
"""Pixels: 8 by the VAE, and 2 by the transformer's patches."""

TEMPORAL_MULTIPLE: Final = 4
"""Frames per latent frame."""

_SEEDS: Final = 1 << 63


class InputValidationStage(PipelineStage):
    """Checks sizes, numbers of steps and videos, guidance and prompt."""

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Checks a request.

        Args:
            batch: The request.
            args: Where and how to run.

        Raises:
            ConfigError: A value cannot be used; the message names the field and what would do.
        """
        del args
        check_size("height", batch.height)
        check_size("width", batch.width)
        check_num_frames(batch.num_frames)
        if batch.num_inference_steps < 1:
            got = batch.num_inference_steps
            fail("num_inference_steps", f"expected a whole number of at least 1, got {got!r}")
        for name in ("guidance_scale", "guidance_scale_2"):
            scale = getattr(batch, name)
            if scale is not None and not (scale > 0 and math.isfinite(scale)):
                fail(name, f"expected a number above 0 (1 is no guidance), got {scale!r}")
        if batch.prompt_embeds is None and not batch.prompt.strip():
            fail("prompt", f"expected text, got {batch.prompt!r}")
        if not batch.seeds:
            fail("num_videos_per_prompt", "expected at least 1")
        for seed in batch.seeds:
            if not 0 <= seed < _SEEDS:
                fail("seed", f"expected a whole number from 0 to 2**63 - 1, got {seed!r}")
        return batch


def check_size(name: str, pixels: int) -> None:
    """Checks a height or width.

    Raises:
        ConfigError: It is not a positive multiple of 16.
    """
    if pixels < 1 or pixels % SPATIAL_MULTIPLE:
        near = max(1, round(pixels / SPATIAL_MULTIPLE)) * SPATIAL_MULTIPLE
        fail(name, f"expected a multiple of {SPATIAL_MULTIPLE} such as {near}, got {pixels!r}")


def check_num_frames(frames: int, *, name: str = "num_frames") -> None:
    """Checks a number of frames.

    Raises:
        ConfigError: It is not 4k + 1.
    """
    if frames < 1 or (frames - 1) % TEMPORAL_MULTIPLE:
        near = max(0, round((frames - 1) / TEMPORAL_MULTIPLE)) * TEMPORAL_MULTIPLE + 1
        fail(name, f"expected 4k + 1 (1, 5, 9, ...) such as {near}, got {frames!r}")
