"""Rows by number from many parquet files, keeping open files and decoded row groups at hand."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fastvideo.dataset.arrow import pa, pq, unreadable
from fastvideo.dataset.schema import tensor_column_parts
from fastvideo.dataset.tensors import StoredTensor
from fastvideo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_OPEN_FILES = 32


@dataclass(frozen=True, slots=True)
class Row:
    """One row of an Arrow table that stays in memory as long as the row is used.

    Attributes:
        table: The row group that holds it.
        number: Row within the table.
        source: File and row, for messages.
    """

    table: pa.Table
    number: int
    source: str

    def scalar(self, column: str) -> Any:  # noqa: ANN401 - any column type
        """Returns the value of ``column`` as a Python object; None where it is null."""
        return self.table.column(column)[self.number].as_py()

    def has(self, column: str) -> bool:
        """Returns whether the file has ``column``."""
        return column in self.table.column_names

    def tensor(self, name: str) -> StoredTensor:
        """Returns the tensor called ``name``, its bytes not copied.

        Raises:
            DataError: Bytes, shape and dtype do not fit together.
        """
        data, shape, dtype = tensor_column_parts(name)
        return StoredTensor.checked(
            field=name,
            data=_bytes_at(self.table.column(data), self.number),
            shape=self.scalar(shape),
            dtype=self.scalar(dtype),
            source=self.source,
        )


def _bytes_at(column: pa.ChunkedArray, number: int) -> Any:  # noqa: ANN401 - Arrow ships no types
    """Returns the bytes of a row without a copy, which a scalar of Arrow is; None for a null."""
    for chunk in column.chunks:
        if number < len(chunk):
            break
        number -= len(chunk)
    width = 8 if pa.types.is_large_binary(chunk.type) else 4
    if width == 4 and not pa.types.is_binary(chunk.type):  # noqa: PLR2004 - bytes of an offset
        return chunk[number].as_buffer()
    if chunk.null_count and not chunk.is_valid()[number].as_py():
        return None
    _, offsets, values = chunk.buffers()
    begin, end = np.frombuffer(offsets, f"<i{width}", 2, (chunk.offset + number) * width).tolist()
    return b"" if values is None else values.slice(begin, end - begin)


@final
class _OpenFile:
    """An open parquet file and where its row groups begin."""

    def __init__(self, path: str, *, needed: Sequence[str], wanted: Sequence[str]) -> None:
        self.parquet = pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
        metadata = self.parquet.metadata
        sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        self.starts = [0, *accumulate(sizes)]
        names = self.parquet.schema_arrow.names
        missing = [name for name in needed if name not in names]
        if missing:
            message = f"{path} lacks the columns {', '.join(missing)}; it has {', '.join(names)}"
            raise DataError(message)
        self.columns = [name for name in wanted if name in names]


class _Kept(threading.local):
    """What a thread of a process has open and decoded."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.pid = os.getpid()
        self.files: OrderedDict[str, _OpenFile] = OrderedDict()
        self.groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self.group_bytes = 0


@final
class RowGroupReader:
    """Reads single rows of a list of files; any number of threads may do so at once.

    A row group is decoded once and kept while it is among the last ones used and all kept ones
    together stay below ``cache_bytes`` (the last one is kept in any case). Every thread has open
    files and row groups of its own, so none waits for another. After a fork, and in a process
    that received it pickled, files are opened anew: an inherited handle may hold a lock that a
    thread of the parent had taken, and that thread does not exist here.

    Args:
        files: Paths of the parquet files.
        lengths: Rows of each of them.
        needed: Columns every file must have.
        wanted: Columns that are read where they are.
        cache_bytes: Bound on the decoded row groups that a thread keeps.
    """

    def __init__(
        self,
        files: Sequence[str],
        lengths: Sequence[int],
        *,
        needed: Sequence[str],
        wanted: Sequence[str],
        cache_bytes: int,
    ) -> None:
        self._files = files
        self._lengths = lengths
        self._starts = [0, *accumulate(lengths)]
        self._needed = tuple(needed)
        self._wanted = tuple(wanted)
        self._cache_bytes = cache_bytes
        self._kept = _Kept()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _kept=_Kept())

    @property
    def cached_bytes(self) -> int:
        """Bytes of the decoded row groups that this thread keeps now."""
        return self._kept.group_bytes

    def row(self, index: int) -> Row:
        """Returns row ``index``, counted through all files.

        Raises:
            IndexError: There is no such row.
            DataError: The file is damaged, was changed, or lacks a column; the message names it.
        """
        if not 0 <= index < self._starts[-1]:
            message = f"row {index} of a data set with {self._starts[-1]} rows"
            raise IndexError(message)
        if self._kept.pid != os.getpid():
            self._kept.forget()
        number = bisect_right(self._starts, index) - 1
        path, row = self._files[number], index - self._starts[number]
        file = self._file(path, rows=self._lengths[number])
        group = bisect_right(file.starts, row) - 1
        table = self._group(path, file, group)
        return Row(table, row - file.starts[group], f"{path} row {row}")

    def _file(self, path: str, *, rows: int) -> _OpenFile:
        opened = self._kept.files
        file = opened.get(path)
        if file is None:
            try:
                file = _OpenFile(path, needed=self._needed, wanted=self._wanted)
            except (pa.ArrowException, OSError) as error:
                raise unreadable(path, error) from error
            if file.starts[-1] != rows:
                message = (
                    f"{path} has {file.starts[-1]} rows, but had {rows} when the data set was "
                    f"listed; start again after files have changed"
                )
                raise DataError(message)
            opened[path] = file
            if len(opened) > _MAX_OPEN_FILES:
                opened.popitem(last=False)[1].parquet.close()
        opened.move_to_end(path)
        return file

    def _group(self, path: str, file: _OpenFile, group: int) -> pa.Table:
        kept = self._kept
        table = kept.groups.get((path, group))
        if table is None:
            try:
                table = file.parquet.read_row_group(group, file.columns, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                first, end = file.starts[group : group + 2]
                where = f"{path} row group {group} (rows {first} to {end - 1})"
                raise unreadable(where, error) from error
            kept.groups[path, group] = table
            kept.group_bytes += table.nbytes
            while kept.group_bytes > self._cache_bytes and len(kept.groups) > 1:
                kept.group_bytes -= kept.groups.popitem(last=False)[1].nbytes
        kept.groups.move_to_end((path, group))
        return table
