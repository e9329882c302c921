"""Sampling along the whole flow equals that of diffusers, to the bit."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from diffusers import WanPipeline as StockWanPipeline

from fastvideo.dataset.encoders import load_transformer, load_vae
from fastvideo.dataset.tiny_assets import write_tiny_wan_model
from fastvideo.errors import DataError
from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def test_latents_equal_those_of_diffusers_in_bfloat16(
    tiny_model: Path, new_batch: Callable[..., ForwardBatch]
) -> None:
    """Types are converted at the same places; norms and time embedding stay in float32."""
    transformer = load_transformer(tiny_model, dtype=torch.bfloat16, sensitive_in_fp32=True)
    stock = StockWanPipeline.from_pretrained(
        tiny_model, transformer=transformer, vae=load_vae(tiny_model)
    )
    stock.text_encoder.to(torch.bfloat16)
    stock.set_progress_bar_config(disable=True)
    ours = WanPipeline.from_pretrained(tiny_model, dit_precision="bf16")
    types = {name: p.dtype for name, p in ours.modules["transformer"].named_parameters()}
    assert types["patch_embedding.weight"] == torch.bfloat16
    assert types["scale_shift_table"] == types["blocks.0.norm2.weight"] == torch.float32
    batch = new_batch(guidance_scale=4.5, negative_prompt="blurred")
    expected = stock_sample(stock, batch, output_type="latent")
    latents = ours.forward(batch).latents
    assert latents is not None
    assert torch.equal(latents, expected)


def test_two_experts_share_the_steps_as_in_diffusers(
    tiny_model: Path, tmp_path: Path, new_batch: Callable[..., ForwardBatch]
) -> None:
    """Above the boundary the first expert predicts, below it the second, with its own guidance."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    other = write_tiny_wan_model(tmp_path / "other", seed=1)
    shutil.copytree(other / "transformer", model / "transformer_2")
    index = json.loads((model / "model_index.json").read_text())
    index |= {"transformer_2": index["transformer"], "boundary_ratio": 0.9}
    (model / "model_index.json").write_text(json.dumps(index))
    stock = StockWanPipeline.from_pretrained(
        model,
        transformer=load_transformer(model),
        transformer_2=load_transformer(model, component="transformer_2"),
        vae=load_vae(model),
    )
    stock.set_progress_bar_config(disable=True)
    ours = WanPipeline.from_pretrained(model)
    batch = new_batch(guidance_scale=4.0, guidance_scale_2=3.0, num_inference_steps=4)
    assert batch.is_guided
    expected = stock_sample(stock, batch, output_type="latent", guidance_scale_2=3.0)
    latents = ours.forward(batch).latents
    assert latents is not None
    assert torch.equal(latents, expected)
    calls = [0, 0]
    for number, name in enumerate(("transformer", "transformer_2")):

        def count(*_: object, number: int = number) -> None:
            calls[number] += 1

        ours.modules[name].register_forward_hook(count)
    ours.forward(new_batch(num_inference_steps=4))
    assert min(calls) > 0


def test_a_model_with_a_timestep_for_each_token_is_refused(
    tiny_model: Path, tmp_path: Path
) -> None:
    """It would be sampled wrongly."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps(index | {"expand_timesteps": True}))
    with pytest.raises(DataError, match="expand_timesteps"):
        WanPipeline.from_pretrained(model)
