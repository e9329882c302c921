"""The loader of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fastvideo.dataset import (
    ParquetDatasetWriter,
    pyarrow_schema_text_only,
    records_to_table,
    text_only_record_creator,
)
from fastvideo.errors import ConfigError, DataError
from fastvideo.train.models.data import (
    build_training_dataloader,
    check_latent_shape,
    check_text_shape,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fastvideo.train.config import TrainingConfig


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A text-only data set of four prompts."""
    writer = ParquetDatasetWriter(str(tmp_path / "prompts"), samples_per_file=4)
    records = [
        text_only_record_creator(f"p{i}", torch.full((3, 32), float(i)), f"caption {i}")
        for i in range(4)
    ]
    writer.append_table(records_to_table(records, pyarrow_schema_text_only))
    writer.flush(write_remainder=True)
    return tmp_path / "prompts"


def test_text_only_data_needs_no_latents(config: TrainingConfig, prompts: Path) -> None:
    """Batches have the configured size, and text has the length of the encoder."""
    config.data.data_path = str(prompts)
    config.data.preprocessed_data_type = "text_only"
    config.data.train_batch_size = 2
    batches = list(build_training_dataloader(config, text_len=16))
    assert len(batches) == 2
    assert batches[0]["text_embedding"].shape == (2, 16, 32)


@pytest.mark.parametrize(("asked", "has_cuda"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_batches_are_pinned_if_asked_for_and_useful(
    config: TrainingConfig,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: int,
    has_cuda: int,
) -> None:
    """Only training.distributed.pin_cpu_memory pins, and only where CUDA is used."""
    config.data.data_path = str(prompts)
    config.data.preprocessed_data_type = "text_only"
    config.distributed.pin_cpu_memory = bool(asked)
    monkeypatch.setattr("torch.cuda.is_available", lambda: bool(has_cuda))
    monkeypatch.setattr("torch.cuda.device_count", lambda: has_cuda)
    loader = build_training_dataloader(config, text_len=4)
    assert loader.pin_memory is bool(asked and has_cuda)


def test_a_video_data_set_must_have_latents(config: TrainingConfig, prompts: Path) -> None:
    """A data set of prompts under type t2v is refused when the loader is built."""
    config.data.data_path = str(prompts)
    with pytest.raises(ValueError, match="vae_latent"):
        build_training_dataloader(config, text_len=16)


def test_the_loader_of_a_rank_has_its_share(
    config: TrainingConfig, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks together read every row once."""
    config.data.data_path = str(prompts)
    config.data.preprocessed_data_type = "text_only"
    monkeypatch.setenv("WORLD_SIZE", "2")
    captions = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        for batch in build_training_dataloader(config, text_len=4):
            captions += batch["caption_text"]
    assert sorted(captions) == [f"caption {i}" for i in range(4)]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("data_path", "", r"training\.data\.data_path is empty"),
        ("preprocessed_data_type", "video", r"training\.data\.preprocessed_data_type is 'video'"),
    ],
)
def test_settings_that_cannot_be_used(
    config: TrainingConfig, prompts: Path, name: str, value: str, message: str
) -> None:
    """The message names the key."""
    config.data.data_path = str(prompts)
    setattr(config.data, name, value)
    with pytest.raises(ConfigError, match=message):
        build_training_dataloader(config, text_len=16)


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((1, 12, 3, 8, 8), r"\[12, 3, 8, 8\]"),
        ((1, 16, 3, 8, 9), r"\[16, 3, 8, 9\]"),
        ((1, 16, 8, 8), r"\[16, 8, 8\]"),
        ((1, 16, 0, 8, 8), r"\[16, 0, 8, 8\]"),
    ],
)
def test_latents_of_another_model_are_refused(shape: tuple[int, ...], found: str) -> None:
    """The message names the column, its shape, and what the model takes."""
    wanted = r"\[16, T, H \(2·n\), W \(2·n\)\]"
    with pytest.raises(
        DataError, match=rf"column vae_latent: .* {found}; the model takes {wanted}"
    ):
        check_latent_shape(torch.empty(shape), channels=16, patch=(1, 2, 2))
    check_latent_shape(torch.empty(1, 16, 3, 8, 8), channels=16, patch=(1, 2, 2))


@pytest.mark.parametrize(("shape", "found"), [((1, 6, 48), r"\[6, 48\]"), ((1, 32), r"\[32\]")])
def test_text_of_another_model_is_refused(shape: tuple[int, ...], found: str) -> None:
    """The message names the column, its shape, and what the model takes."""
    with pytest.raises(DataError, match=rf"column text_embedding: .* {found}; .* \[L, 32\]"):
        check_text_shape(torch.empty(shape), width=32)
    check_text_shape(torch.empty(1, 6, 32), width=32)
