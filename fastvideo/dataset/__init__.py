"""Preprocessed data sets: schemas, writing, and loading in a fresh order every epoch."""

from __future__ import annotations

from fastvideo.dataset.file_list import get_parquet_files_and_length
from fastvideo.dataset.loader import build_parquet_dataloader
from fastvideo.dataset.parquet_dataset import LatentsParquetMapStyleDataset
from fastvideo.dataset.records import (
    VideoBatch,
    basic_t2v_record_creator,
    i2v_record_creator,
    ode_text_only_record_creator,
    records_to_table,
    text_only_record_creator,
)
from fastvideo.dataset.sampler import DP_SP_BatchSampler
from fastvideo.dataset.schema import (
    pyarrow_schema_i2v,
    pyarrow_schema_ode_trajectory_text_only,
    pyarrow_schema_t2v,
    pyarrow_schema_t2va,
    pyarrow_schema_text_only,
)
from fastvideo.dataset.writer import ParquetDatasetWriter

__all__ = [
    "DP_SP_BatchSampler",
    "LatentsParquetMapStyleDataset",
    "ParquetDatasetWriter",
    "VideoBatch",
    "basic_t2v_record_creator",
    "build_parquet_dataloader",
    "get_parquet_files_and_length",
    "i2v_record_creator",
    "ode_text_only_record_creator",
    "pyarrow_schema_i2v",
    "pyarrow_schema_ode_trajectory_text_only",
    "pyarrow_schema_t2v",
    "pyarrow_schema_t2va",
    "pyarrow_schema_text_only",
    "records_to_table",
    "text_only_record_creator",
]
