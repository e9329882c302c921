"""Files of a data set are complete or not there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fastvideo.dataset import (
    ParquetDatasetWriter,
    pyarrow_schema_text_only,
    records_to_table,
    text_only_record_creator,
)
from fastvideo.dataset import writer as writer_module
from fastvideo.dataset.writer import row_group_size, write_parquet_atomically
from fastvideo.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


def _table(start: int, count: int) -> pa.Table:
    return pa.table({"number": pa.array(range(start, start + count), pa.int64())})


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def _numbers(root: Path) -> list[int]:
    by_chunk = sorted(_files(root), key=lambda path: path.name)
    return [n for path in by_chunk for n in pq.read_table(path)["number"].to_pylist()]


def test_only_full_chunks_are_written(tmp_path: Path) -> None:
    """Rows beyond the last full file stay buffered until the remainder is asked for."""
    writer = ParquetDatasetWriter(tmp_path / "out", samples_per_file=4)
    writer.append_table(_table(0, 6))
    assert writer.flush() == 4
    assert writer.buffered_rows == 2
    assert writer.flush() == 0
    writer.append_table(_table(6, 1))
    assert writer.flush(write_remainder=True) == 3
    assert writer.buffered_rows == 0
    assert [pq.read_metadata(path).num_rows for path in _files(tmp_path)] == [4, 3]
    assert _numbers(tmp_path) == list(range(7))


def test_nothing_buffered_writes_nothing(tmp_path: Path) -> None:
    """A writer without rows makes no directory."""
    assert ParquetDatasetWriter(tmp_path / "out", 4).flush(write_remainder=True) == 0
    assert not (tmp_path / "out").exists()


def test_workers_write_into_their_own_directories(tmp_path: Path) -> None:
    """Several threads share the chunks, and no row is lost or doubled."""
    writer = ParquetDatasetWriter(tmp_path, samples_per_file=3)
    writer.append_table(_table(0, 20))
    assert writer.flush(num_workers=3, write_remainder=True) == 20
    assert {path.parent.name for path in _files(tmp_path)} == {"worker_0", "worker_1", "worker_2"}
    assert _numbers(tmp_path) == list(range(20))


def test_a_later_writer_goes_on_after_existing_files(tmp_path: Path) -> None:
    """A second run into the same directory overwrites nothing."""
    for start in (0, 4):
        writer = ParquetDatasetWriter(tmp_path, samples_per_file=2)
        writer.append_table(_table(start, 4))
        writer.flush(num_workers=2)
    assert _numbers(tmp_path) == list(range(8))


def test_files_are_zstd_with_small_row_groups(tmp_path: Path) -> None:
    """A row of 3 MiB shares its row group with one other row at most."""
    data = [os.urandom(3 * 2**20) for _ in range(4)]
    writer = ParquetDatasetWriter(tmp_path, samples_per_file=4)
    writer.append_table(pa.table({"data": pa.array(data, pa.binary())}))
    writer.flush()
    metadata = pq.read_metadata(_files(tmp_path)[0])
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 2]
    assert metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(
    ("dtype", "codec"), [(torch.float32, "UNCOMPRESSED"), (torch.bfloat16, "ZSTD")]
)
def test_tensors_that_do_not_shrink_are_stored_as_they_are(
    tmp_path: Path, dtype: torch.dtype, codec: str
) -> None:
    """All other columns are compressed, and every tensor is read as it was written."""
    tensor = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    record = text_only_record_creator("a", tensor.reshape(100, 1000), "caption")
    path = tmp_path / "a.parquet"
    write_parquet_atomically(records_to_table([record], pyarrow_schema_text_only), path)
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    found = {column.path_in_schema: column.compression for column in columns}
    assert found.pop("text_embedding_bytes") == codec
    assert set(found.values()) == {"ZSTD"}
    (row,) = pq.read_table(path).to_pylist()
    assert row["text_embedding_bytes"] == record["text_embedding_bytes"]


@pytest.mark.parametrize("compression", ["none", "snappy", "ZSTD"])
def test_other_codecs(tmp_path: Path, compression: str) -> None:
    """Whatever parquet offers is used for what it makes smaller; nulls and empty values do."""
    data = pa.array([None, b"", bytes(1000)], pa.binary())
    for number, rows in enumerate((data, data[1:], data[2:], data[:0])):
        path = tmp_path / f"{number}.parquet"
        write_parquet_atomically(pa.table({"x_bytes": rows}), path, compression=compression)
        assert pq.read_table(path)["x_bytes"].to_pylist() == rows.to_pylist()
    expected = compression.upper().replace("NONE", "UNCOMPRESSED")
    written = pq.read_metadata(tmp_path / "2.parquet").row_group(0).column(0)
    assert written.compression == expected


def test_row_group_size_is_between_one_and_all_rows() -> None:
    """Huge rows get a group each; tiny tables are one group."""
    assert row_group_size(_table(0, 10)) == 10
    assert row_group_size(_table(0, 0)) == 1
    assert row_group_size(pa.table({"data": pa.array([bytes(9 * 2**20)] * 2)})) == 1


def test_tables_must_agree(tmp_path: Path) -> None:
    """A table with other columns is refused when it is appended."""
    writer = ParquetDatasetWriter(tmp_path, 2)
    writer.append_table(_table(0, 1))
    with pytest.raises(DataError, match=r"\['other'\] to one with columns \['number'\]"):
        writer.append_table(pa.table({"other": [1]}))
    assert writer.buffered_rows == 1


def test_failed_write_leaves_no_file_and_keeps_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a full disk the rows are still buffered, and a second flush writes them."""
    writer = ParquetDatasetWriter(tmp_path, 2)
    writer.append_table(_table(0, 4))

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
    assert _files(tmp_path) == []
    assert writer.flush() == 4
    assert _numbers(tmp_path) == [0, 1, 2, 3]


def test_existing_file_survives_a_failed_rewrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the rename the old content stays in place."""
    path = tmp_path / "a.parquet"
    write_parquet_atomically(_table(0, 2), path)

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer_module.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_parquet_atomically(_table(5, 2), path)
    assert _numbers(tmp_path) == [0, 1]


def test_samples_per_file_must_be_positive(tmp_path: Path) -> None:
    """A file of no rows is refused at once."""
    with pytest.raises(ValueError, match="samples_per_file must be at least 1, got 0"):
        ParquetDatasetWriter(tmp_path, 0)
