"""The tiny Wan model for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fastvideo.dataset import (
    ParquetDatasetWriter,
    VideoBatch,
    basic_t2v_record_creator,
    pyarrow_schema_t2v,
    records_to_table,
)
from fastvideo.dataset.model_files import resolve_model_path
from fastvideo.train.config import TrainingConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the tiny model and text embeddings out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTVIDEO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def model_dir(_own_cache: None) -> Path:
    """A tiny random Wan model in diffusers layout."""
    return resolve_model_path("tiny-random:wan2.1")


@pytest.fixture
def config() -> TrainingConfig:
    """A training section that fits the tiny model: latents [16, 3, 8, 8]."""
    config = TrainingConfig()
    config.data.num_latent_t, config.data.num_height, config.data.num_width = 3, 64, 64
    return config


@pytest.fixture
def raw() -> dict[str, torch.Tensor]:
    """A batch of two samples with 4 latent frames, one more than is used."""
    draws = torch.Generator().manual_seed(0)
    return {
        "vae_latent": torch.randn((2, 16, 4, 8, 8), generator=draws),
        "text_embedding": torch.randn((2, 6, 32), generator=draws),
        "text_attention_mask": torch.tensor([[1.0] * 6, [1.0] * 4 + [0.0] * 2]),
        "info_list": [{"prompt": "a"}, {"prompt": "b"}],
    }


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """A text-to-video data set of two samples that fits the tiny model."""
    batch = VideoBatch(
        video_file_name=["a", "b"],
        prompt=["a", "b"],
        latents=[torch.zeros(16, 3, 8, 8)] * 2,
        prompt_embeds=[torch.zeros(4, 32)] * 2,
        width=[64] * 2,
        height=[64] * 2,
        fps=[8.0] * 2,
    )
    writer = ParquetDatasetWriter(str(tmp_path / "data"), samples_per_file=2)
    writer.append_table(records_to_table(basic_t2v_record_creator(batch), pyarrow_schema_t2v))
    writer.flush(write_remainder=True)
    return tmp_path / "data"
