"""Few-step sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fastvideo.errors import ConfigError
from fastvideo.pipelines.basic.wan.wan_dmd_pipeline import WanDMDPipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastvideo.pipelines.forward_batch import ForwardBatch


@pytest.fixture(scope="module")
def dmd(tiny_model: Path) -> WanDMDPipeline:
    """The tiny model as a student of two steps."""
    return WanDMDPipeline.from_pretrained(tiny_model, dmd_denoising_steps=[1000, 500])


def test_the_sample_follows_the_formula(
    dmd: WanDMDPipeline, new_batch: Callable[..., ForwardBatch]
) -> None:
    """x̂₀ = x - sigma·v̂, then (1 - sigma')·x̂₀ + sigma'·ε, then x̂₀ again; no guidance."""
    transformer = dmd.modules["transformer"]
    calls: list[tuple[torch.Tensor, float]] = []
    outputs: list[torch.Tensor] = []
    hook = transformer.register_forward_hook(
        lambda _, args, kwargs, out: (
            calls.append((kwargs["hidden_states"], float(kwargs["timestep"][0]))),
            outputs.append(out[0]),
        )[0],
        with_kwargs=True,
    )
    try:
        batch = dmd.forward(new_batch(guidance_scale=6.0, seeds=(5,), num_inference_steps=50))
    finally:
        hook.remove()
    assert [timestep for _, timestep in calls] == [1000.0, 500.0]
    own = torch.Generator().manual_seed(5)
    noise, added = (torch.randn(calls[0][0].shape, generator=own) for _ in range(2))
    assert torch.equal(calls[0][0], noise)
    clean = noise - outputs[0]
    assert torch.allclose(calls[1][0], 0.5 * clean + 0.5 * added, atol=1e-6)
    assert batch.latents is not None
    assert torch.allclose(batch.latents, calls[1][0] - 0.5 * outputs[1], atol=1e-6)
    assert batch.num_inference_steps == 2


def test_videos_do_not_depend_on_their_batch(
    dmd: WanDMDPipeline, new_batch: Callable[..., ForwardBatch]
) -> None:
    """A seed gives the same video alone and beside others."""
    both = dmd.forward(new_batch(seeds=(3, 4))).output
    alone = dmd.forward(new_batch(seeds=(4,))).output
    assert both is not None
    assert alone is not None
    assert torch.allclose(both[1], alone[0], atol=1e-5)


def test_a_student_needs_its_timesteps(
    tiny_model: Path, new_batch: Callable[..., ForwardBatch]
) -> None:
    """Without them the message says which key is missing."""
    with pytest.raises(ConfigError, match=r"pipeline_config\.dmd_denoising_steps"):
        WanDMDPipeline.from_pretrained(tiny_model).forward(new_batch())
