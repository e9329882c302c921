"""Refuses requests that cannot be fulfilled, before anything is computed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from fastvideo.pipelines.stages.stage import PipelineStage
from fastvideo.pipelines.typed_fields import fail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs
    from fastvideo.pipelines.sampling_param import SamplingParam

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
        check_numbers(batch, batch.seeds)
        if batch.prompt_embeds is None:
            check_prompt("prompt", batch.prompt)
        if batch.is_guided and batch.negative_prompt_embeds is None:
            check_unicode("negative_prompt", batch.negative_prompt)
        if not batch.seeds:
            fail("num_videos_per_prompt", "expected at least 1")
        return batch


def check_numbers(
    values: ForwardBatch | SamplingParam, seeds: Iterable[int], *, where: str = ""
) -> None:
    """Checks size, length, steps, guidance and seeds.

    Args:
        values: What has them.
        seeds: Those of the videos.
        where: What stands before the names in messages, such as ``request.sampling.``.

    Raises:
        ConfigError: One cannot be used.
    """
    check_size(f"{where}height", values.height)
    check_size(f"{where}width", values.width)
    check_num_frames(values.num_frames, name=f"{where}num_frames")
    steps = values.num_inference_steps
    if steps < 1:
        fail(f"{where}num_inference_steps", f"expected a whole number of at least 1, got {steps!r}")
    for name in ("guidance_scale", "guidance_scale_2"):
        scale = getattr(values, name)
        if scale is not None and not (scale > 0 and math.isfinite(scale)):
            fail(f"{where}{name}", f"expected a number above 0 (1 is no guidance), got {scale!r}")
    for seed in seeds:
        if not 0 <= seed < _SEEDS:
            fail(f"{where}seed", f"expected a whole number from 0 to 2**63 - 1, got {seed!r}")


def check_prompt(name: str, prompt: str) -> None:
    """Checks a prompt.

    Raises:
        ConfigError: It is blank, or no text.
    """
    if not prompt.strip():
        fail(name, f"expected text, got {prompt!r}")
    check_unicode(name, prompt)


def check_unicode(name: str, text: str) -> None:
    """Checks that a text can be encoded, and so be given to a tokenizer.

    Raises:
        ConfigError: It cannot, as that from a command line in another encoding.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = ascii(text[max(0, error.start - 20) : error.end + 20])
        fail(name, f"expected text in UTF-8, got {shown}")


def check_fps(name: str, fps: int) -> None:
    """Checks a number of frames per second.

    Raises:
        ConfigError: It is less than 1.
    """
    if fps < 1:
        fail(name, f"expected at least 1, got {fps!r}")


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
