"""What the tests of pipelines share: one tiny model, and the stock pipeline on its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from diffusers import WanPipeline as StockWanPipeline

from fastvideo.dataset.encoders import load_transformer, load_vae
from fastvideo.dataset.tiny_assets import write_tiny_wan_model
from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline
from fastvideo.pipelines.forward_batch import ForwardBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in diffusers layout."""
    return write_tiny_wan_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def wan(tiny_model: Path) -> WanPipeline:
    """Our pipeline of the tiny model."""
    return WanPipeline.from_pretrained(tiny_model)


@pytest.fixture(scope="session")
def stock(tiny_model: Path) -> Any:
    """The pipeline of diffusers on the same weights."""
    pipeline = StockWanPipeline.from_pretrained(
        tiny_model, transformer=load_transformer(tiny_model), vae=load_vae(tiny_model)
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="session")
def new_batch() -> Callable[..., ForwardBatch]:
    """Returns a small request, with fields of one's own."""

    def make(**fields: Any) -> ForwardBatch:
        small = {
            "prompt": "a red ball",
            "height": 32,
            "width": 48,
            "num_frames": 5,
            "num_inference_steps": 3,
        }
        return ForwardBatch(**{**small, **fields})

    return make
