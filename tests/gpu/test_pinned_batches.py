"""Batches in page-locked memory, where a CUDA device can copy them while it computes."""

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
from fastvideo.train.config import TrainingConfig
from fastvideo.train.models.data import build_training_dataloader

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("asked", [0, 1])
def test_batches_are_pinned_if_asked_for(tmp_path: Path, asked: int, workers: int) -> None:
    """Whether a worker process reads them or the training process does."""
    writer = ParquetDatasetWriter(str(tmp_path), samples_per_file=4)
    records = [text_only_record_creator(f"p{i}", torch.ones(3, 32), "caption") for i in range(4)]
    writer.append_table(records_to_table(records, pyarrow_schema_text_only))
    writer.flush(write_remainder=True)
    config = TrainingConfig()
    config.data.data_path = str(tmp_path)
    config.data.preprocessed_data_type = "text_only"
    config.data.dataloader_num_workers = workers
    config.distributed.pin_cpu_memory = bool(asked)
    for batch in build_training_dataloader(config, text_len=16):
        assert batch["text_embedding"].is_pinned() is bool(asked)
