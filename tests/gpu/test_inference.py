"""Videos made on a CUDA device: those of diffusers, observed without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from diffusers import WanPipeline as StockWanPipeline

from fastvideo import VideoGenerator, observability
from fastvideo.dataset.encoders import load_transformer, load_vae
from fastvideo.dataset.tiny_assets import write_tiny_wan_model
from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline
from fastvideo.pipelines.forward_batch import ForwardBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    SpansIn = Callable[[Path], list[tuple[str, float | None]]]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE: dict[str, Any] = {
    "height": 32,
    "width": 48,
    "num_frames": 5,
    "num_inference_steps": 4,
    "guidance_scale": 4.5,
    "negative_prompt": "blurred",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in diffusers layout."""
    return write_tiny_wan_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_latents_and_pixels_equal_those_of_diffusers(model: Path, precision: str) -> None:
    """The same operations in the same order, bit for bit."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    transformer = load_transformer(model, dtype=dtype, sensitive_in_fp32=precision == "bf16")
    stock = StockWanPipeline.from_pretrained(model, transformer=transformer, vae=load_vae(model))
    ours = WanPipeline.from_pretrained(model, dit_precision=precision)
    encoder = ours.modules["text_encoder"]._model
    stock.text_encoder.to(next(encoder.parameters()).dtype)
    stock.to("cuda")
    stock.set_progress_bar_config(disable=True)
    batch = ours.forward(ForwardBatch(prompt="a red ball", seeds=(3,), **SIZE))
    expected = {
        kind: stock(
            "a red ball",
            generator=[torch.Generator().manual_seed(3)],
            output_type=kind,
            **SIZE,
        ).frames
        for kind in ("latent", "pt")
    }
    assert batch.latents is not None
    assert batch.latents.device.type == "cuda"
    assert torch.equal(batch.latents, expected["latent"])
    assert batch.output is not None
    torch.testing.assert_close(
        batch.output.cpu().float(), expected["pt"].transpose(1, 2).cpu().float()
    )


def test_a_request_has_its_times_on_the_device(
    model: Path, tmp_path: Path, spans_in: SpansIn
) -> None:
    """Spans of the stages, the steps of denoising, and the peak of the memory."""
    environ = {"FASTVIDEO_METRICS_PORT": "0", "FASTVIDEO_SPAN_DIR": str(tmp_path / "spans")}
    telemetry = observability.start(observability.TelemetryConfig.from_sources(environ))
    try:
        with VideoGenerator.from_pretrained(model) as generator:
            result: Any = generator.generate_video(
                "a red ball", output_path=str(tmp_path / "out"), **SIZE
            )
            assert result["peak_memory_mb"] > 0
    finally:
        telemetry.shutdown()
    spans = spans_in(tmp_path / "spans")
    for name in ("inference_text_encoding", "inference_denoising", "inference_decoding"):
        (ms,) = (ms for span, ms in spans if span == name)
        assert ms is not None, name
        assert ms > 0, name
    assert list((tmp_path / "out").glob("**/*.mp4"))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # the compiler's own
def test_a_compiled_generator_makes_the_same_video(model: Path) -> None:
    """Up to the rounding of fused kernels."""
    found = []
    for compiled in (False, True):
        with VideoGenerator.from_pretrained(
            model, enable_torch_compile=compiled, dit_precision="fp32"
        ) as generator:
            result: Any = generator.generate_video(
                "a red ball", save_video=False, return_frames=True, seed=3, **SIZE
            )
            found.append(torch.as_tensor(np.stack(result["frames"])))
    plain, compiled_frames = (frames.float() for frames in found)
    assert (plain - compiled_frames).abs().mean() < 1.0
