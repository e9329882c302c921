"""Writes a data set as many parquet files, each of them complete or not there."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import final

from fastvideo.dataset.arrow import pa, pq
from fastvideo.errors import DataError
from fastvideo.logger import init_logger

logger = init_logger(__name__)

# Shuffled reading fetches a whole row group for one row, so a group holds few large rows.
_ROW_GROUP_BYTES = 8 * 2**20
# Random numbers in float32 lose a twelfth in zstd, which costs readers as much as all the rest.
_WORTH_COMPRESSING = 0.9
_TRIED_BYTES = 2**20
_CHUNK_NAME = re.compile(r"data_chunk_(\d+)\.parquet")


@final
class ParquetDatasetWriter:
    """Buffers tables and writes them in files of a fixed number of rows.

    Files are ``<out_dir>/worker_<w>/data_chunk_<n>.parquet`` with ``n`` counting through the
    whole directory, going on after the files an earlier run left. Each one is written under a
    temporary name, synced and renamed, so a reader never sees half a file.

    Not thread-safe; two processes need two directories.

    Args:
        out_dir: Directory of the data set, created when the first file is written.
        samples_per_file: Rows per file.
        compression: Parquet codec; see :func:`write_parquet_atomically`.

    Raises:
        ValueError: ``samples_per_file`` is less than 1.
    """

    def __init__(
        self, out_dir: str | os.PathLike[str], samples_per_file: int, compression: str = "zstd"
    ) -> None:
        if samples_per_file < 1:
            message = f"samples_per_file must be at least 1, got {samples_per_file}"
            raise ValueError(message)
        self.out_dir = Path(out_dir)
        self.samples_per_file = samples_per_file
        self.compression = compression
        self._buffer: pa.Table | None = None
        self._next_chunk: int | None = None

    @property
    def buffered_rows(self) -> int:
        """Rows that were appended and are in no file yet."""
        return 0 if self._buffer is None else int(self._buffer.num_rows)

    def append_table(self, table: pa.Table) -> None:
        """Adds rows to the buffer, without copying them; nothing is written.

        Raises:
            DataError: The schema is not that of the rows appended before.
        """
        if self._buffer is None:
            self._buffer = table
        elif table.schema.equals(self._buffer.schema):
            self._buffer = pa.concat_tables([self._buffer, table])
        else:
            message = (
                f"cannot append a table with columns {table.schema.names} to one with columns "
                f"{self._buffer.schema.names}: names, order and types must agree"
            )
            raise DataError(message)

    def flush(self, num_workers: int | None = None, *, write_remainder: bool = False) -> int:
        """Writes every full chunk that is buffered.

        Rows leave the buffer when all files of this call are in place; after an error they are
        still there.

        Args:
            num_workers: Threads that write files side by side, each into its own
                ``worker_<w>`` directory; 1 when None.
            write_remainder: Also write a last, smaller file; otherwise its rows stay buffered.

        Returns:
            The number of rows written.

        Raises:
            OSError: A file could not be written; no partial file is left.
        """
        rows = self.buffered_rows
        if not write_remainder:
            rows -= rows % self.samples_per_file
        if self._buffer is None or rows == 0:
            return 0
        first = self._first_free_chunk()
        starts = range(0, rows, self.samples_per_file)
        workers = min(max(1, num_workers or 1), len(starts))
        jobs = [
            (self._chunk_path(first + i, worker=i % workers), self._slice(start, rows))
            for i, start in enumerate(starts)
        ]
        with ThreadPoolExecutor(workers, thread_name_prefix="parquet-writer") as pool:
            for _ in pool.map(self._write_file, *zip(*jobs, strict=True)):
                pass
        self._next_chunk = first + len(starts)
        self._buffer = self._buffer.slice(rows) if rows < self.buffered_rows else None
        return rows

    def _slice(self, start: int, end: int) -> pa.Table:
        assert self._buffer is not None  # noqa: S101 - flush returned before
        return self._buffer.slice(start, min(self.samples_per_file, end - start))

    def _chunk_path(self, number: int, *, worker: int) -> Path:
        return self.out_dir / f"worker_{worker}" / f"data_chunk_{number:06d}.parquet"

    def _first_free_chunk(self) -> int:
        if self._next_chunk is not None:
            return self._next_chunk
        matches = (_CHUNK_NAME.fullmatch(p.name) for p in self.out_dir.glob("worker_*/*.parquet"))
        return 1 + max((int(match[1]) for match in matches if match), default=-1)

    def _write_file(self, path: Path, table: pa.Table) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_parquet_atomically(table, path, compression=self.compression)
        logger.debug("wrote %d rows to %s", table.num_rows, path)


def write_parquet_atomically(table: pa.Table, path: Path, *, compression: str = "zstd") -> None:
    """Writes ``table`` to ``path`` under a temporary name, syncs and renames it.

    Row groups are small, so that a shuffled reader fetches little it does not need. Pages carry
    checksums: most flipped bits in compressed numbers give other numbers and no error otherwise.
    Tensors that compression makes smaller by less than a tenth are stored as they are.

    Args:
        table: The rows.
        path: The file.
        compression: Parquet codec, ``"none"`` for no compression.

    Raises:
        OSError: The file could not be written; the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(
            table,
            temporary,
            compression=column_codecs(table, compression),
            row_group_size=row_group_size(table),
            # A dictionary of values that never come twice would be one more copy for readers.
            use_dictionary=[name for name in table.column_names if not name.endswith("_bytes")],
            write_page_checksum=True,
        )
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def column_codecs(table: pa.Table, compression: str) -> dict[str, str]:
    """Returns the codec of every column, by the path that parquet gives it.

    Args:
        table: The rows; the first one decides for a tensor.
        compression: The codec of columns that it makes smaller.
    """
    codecs = {}
    for field in table.schema:
        is_list = pa.types.is_list(field.type) or pa.types.is_large_list(field.type)
        keep = field.name.endswith("_bytes") and not shrinks(table[field.name], compression)
        codecs[f"{field.name}.list.element" if is_list else field.name] = (
            "none" if keep else compression
        )
    return codecs


def shrinks(column: pa.ChunkedArray, compression: str) -> bool:
    """Returns whether a codec makes the first bytes of a column smaller by a tenth or more."""
    codec = compression.lower()
    first = next((value for value in column.slice(0, 1) if value.is_valid), None)
    if first is None or codec == "none" or not pa.Codec.is_available(codec):
        return True
    tried = first.as_buffer()[:_TRIED_BYTES]
    return len(pa.compress(tried, codec)) <= _WORTH_COMPRESSING * len(tried)


def row_group_size(table: pa.Table) -> int:
    """Returns how many rows of ``table`` make a row group of about 8 MiB, at least 1."""
    if table.num_rows == 0:
        return 1
    bytes_per_row = max(1, int(table.nbytes) // int(table.num_rows))
    return min(int(table.num_rows), max(1, _ROW_GROUP_BYTES // bytes_per_row))
