"""Requests that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline
    from fastvideo.pipelines.forward_batch import ForwardBatch


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("height", 50, "height: expected a multiple of 16 such as 48, got 50"),
        ("width", 0, "width: expected a multiple of 16 such as 16, got 0"),
        ("num_frames", 8, r"num_frames: expected 4k \+ 1 .* such as 9, got 8"),
        ("num_inference_steps", 0, "num_inference_steps: expected a whole number of at least 1"),
        ("guidance_scale", 0.0, "guidance_scale: expected a number above 0"),
        ("guidance_scale", float("nan"), "guidance_scale: expected a number above 0"),
        ("guidance_scale_2", -1.0, "guidance_scale_2: expected a number above 0"),
        ("prompt", " ", "prompt: expected text, got ' '"),
        ("prompt", "a \udcff", r"prompt: expected text in UTF-8, got 'a \\udcff'"),
        ("negative_prompt", "\ud800", "negative_prompt: expected text in UTF-8"),
        ("height", 1600000, "height: this model has positions for 1024 at most, got 1600000"),
        ("width", 1040, "width: this model has positions for 1024 at most, got 1040"),
        ("num_frames", 257, "num_frames: this model has positions for 253 at most, got 257"),
        ("seeds", (), "num_videos_per_prompt: expected at least 1"),
        ("seeds", (-1,), "seed: expected a whole number from 0"),
    ],
)
def test_what_cannot_be_made_is_named(
    wan: WanPipeline,
    new_batch: Callable[..., ForwardBatch],
    field: str,
    value: Any,
    message: str,
) -> None:
    """The message has the field, what would do, and what was given."""
    with pytest.raises(ConfigError, match=message):
        wan.forward(new_batch(**{"guidance_scale": 2.0, field: value}))
