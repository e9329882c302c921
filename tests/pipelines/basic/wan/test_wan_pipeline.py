"""Sampling along the whole flow equals that of diffusers, to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline
    from fastvideo.pipelines.forward_batch import ForwardBatch


def stock_sample(stock: Any, batch: ForwardBatch, **options: Any) -> torch.Tensor:
    """Returns what the pipeline of diffusers makes of a request."""
    sample: torch.Tensor = stock(
        batch.prompt,
        negative_prompt=batch.negative_prompt,
        height=batch.height,
        width=batch.width,
        num_frames=batch.num_frames,
        num_inference_steps=batch.num_inference_steps,
        guidance_scale=batch.guidance_scale,
        num_videos_per_prompt=len(batch.seeds),
        generator=[torch.Generator().manual_seed(seed) for seed in batch.seeds],
        **options,
    ).frames
    return sample


@pytest.mark.parametrize("guidance_scale", [1.0, 4.5])
@pytest.mark.parametrize("seeds", [(3,), (7, 8)])
def test_latents_equal_those_of_diffusers(
    wan: WanPipeline,
    stock: Any,
    new_batch: Callable[..., ForwardBatch],
    guidance_scale: float,
    seeds: tuple[int, ...],
) -> None:
    """The same seeds, steps and guidance give the same latents, bit for bit."""
    batch = new_batch(guidance_scale=guidance_scale, seeds=seeds, negative_prompt="blurred")
    expected = stock_sample(stock, batch, output_type="latent")
    latents = wan.forward(batch).latents
    assert latents is not None
    assert torch.equal(latents, expected)


def test_pixels_equal_those_of_diffusers(
    wan: WanPipeline, stock: Any, new_batch: Callable[..., ForwardBatch]
) -> None:
    """Decoding and scaling to [0, 1] follow the same operations."""
    batch = new_batch(seeds=(3,))
    expected = stock_sample(stock, batch, output_type="pt")
    output = wan.forward(batch).output
    assert output is not None
    assert output.shape == (1, 3, 5, 32, 48)
    assert torch.equal(output, expected.transpose(1, 2))
