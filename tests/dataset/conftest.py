"""Small data sets for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest
import torch

from fastvideo.dataset import (
    ParquetDatasetWriter,
    VideoBatch,
    basic_t2v_record_creator,
    pyarrow_schema_t2v,
    records_to_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class DatasetFactory(Protocol):
    """Writes a text-to-video data set and returns its directory."""

    def __call__(
        self,
        rows: int,
        *,
        name: str = "data",
        samples_per_file: int = 4,
        dtype: torch.dtype = torch.float32,
    ) -> Path: ...


def make_videos(
    count: int, *, dtype: torch.dtype = torch.float32, prefix: str = "clip"
) -> VideoBatch:
    """Samples whose latent holds their number everywhere, with 1 to 4 text tokens of size 5."""
    return VideoBatch(
        video_file_name=[f"{prefix}{i:03d}" for i in range(count)],
        prompt=[f"caption {i}" for i in range(count)],
        latents=[torch.full((4, 3, 2, 2), float(i), dtype=dtype) for i in range(count)],
        prompt_embeds=[torch.full((1 + i % 4, 5), i + 1.0, dtype=dtype) for i in range(count)],
        width=[64] * count,
        height=[48] * count,
        fps=[8.0] * count,
    )


@pytest.fixture
def videos() -> Callable[..., VideoBatch]:
    """The function that makes samples; see :func:`make_videos`."""
    return make_videos


@pytest.fixture
def t2v_dataset(tmp_path: Path) -> DatasetFactory:
    """A factory of text-to-video data sets, each in its own directory."""

    def write(
        rows: int,
        *,
        name: str = "data",
        samples_per_file: int = 4,
        dtype: torch.dtype = torch.float32,
    ) -> Path:
        writer = ParquetDatasetWriter(tmp_path / name, samples_per_file)
        records = basic_t2v_record_creator(make_videos(rows, dtype=dtype))
        writer.append_table(records_to_table(records, pyarrow_schema_t2v))
        writer.flush(write_remainder=True)
        return tmp_path / name

    return write
