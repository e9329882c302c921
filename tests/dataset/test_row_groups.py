"""Rows are found in any file, row groups are kept within a bound, and a fork reads for itself."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastvideo.dataset.row_groups import RowGroupReader, _bytes_at
from fastvideo.dataset.writer import write_parquet_atomically
from fastvideo.errors import DataError


def _write(folder: Path, lengths: list[int], *, group: int) -> list[str]:
    files, start = [], 0
    for number, rows in enumerate(lengths):
        path = folder / f"{number}.parquet"
        values = pa.array(range(start, start + rows), pa.int64())
        padding = pa.array([bytes(1000)] * rows, pa.binary())
        pq.write_table(pa.table({"a": values, "pad": padding}), path, row_group_size=group)
        files.append(str(path))
        start += rows
    return files


def _reader(
    files: list[str], lengths: list[int], *, cache_bytes: int = 2**20, needed: str = "a"
) -> RowGroupReader:
    return RowGroupReader(
        files, lengths, needed=[needed], wanted=["a", "pad", "absent"], cache_bytes=cache_bytes
    )


@pytest.mark.parametrize("group", [1, 3, 100])
@pytest.mark.parametrize("cache_bytes", [0, 5000, 2**20])
def test_every_row_is_found(tmp_path: Path, group: int, cache_bytes: int) -> None:
    """Any row number in any order gives that row, across empty files and uneven groups."""
    lengths = [5, 0, 1, 7, 3]
    reader = _reader(_write(tmp_path, lengths, group=group), lengths, cache_bytes=cache_bytes)
    order = list(range(16)) * 3
    random.Random(group).shuffle(order)
    for index in order:
        row = reader.row(index)
        assert row.scalar("a") == index
        assert row.has("pad")
        assert not row.has("absent")


def test_kept_row_groups_stay_below_the_bound(tmp_path: Path) -> None:
    """The bound holds while all rows are read, and a last used group is kept in any case."""
    reader = _reader(_write(tmp_path, [40], group=2), [40], cache_bytes=9000)
    for index in range(40):
        reader.row(index)
        assert 0 < reader.cached_bytes <= 9000
    tight = _reader(_write(tmp_path, [40], group=2), [40], cache_bytes=1)
    sizes = set()
    for index in range(40):
        tight.row(index)
        sizes.add(tight.cached_bytes)
    assert len(sizes) <= 2
    assert max(sizes) < 3000


def test_row_group_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one group cost one read; files stay open."""
    reads: list[int] = []
    real = pq.ParquetFile.read_row_group

    def recording(self: pq.ParquetFile, number: int, *args: object, **kwargs: object) -> pa.Table:
        reads.append(number)
        return real(self, number, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", recording)
    reader = _reader(_write(tmp_path, [6], group=3), [6])
    for index in (0, 4, 1, 5, 2, 3):
        reader.row(index)
    assert reads == [0, 1]


def test_many_files_do_not_exhaust_descriptors(tmp_path: Path) -> None:
    """The number of open files is bounded, whatever the number of files."""
    lengths = [1] * 60
    reader = _reader(_write(tmp_path, lengths, group=1), lengths, cache_bytes=0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for index in range(60):
        assert reader.row(index).scalar("a") == index
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 40


def test_pickled_reader_reads(tmp_path: Path) -> None:
    """A reader that was used travels to a spawned process without its handles."""
    reader = _reader(_write(tmp_path, [4], group=2), [4])
    reader.row(0)
    copy = pickle.loads(pickle.dumps(reader))
    assert [copy.row(index).scalar("a") for index in range(4)] == [0, 1, 2, 3]


_FORK = """
import os, sys
import pyarrow.parquet as pq
from fastvideo.dataset.row_groups import RowGroupReader, _bytes_at
from fastvideo.dataset.writer import write_parquet_atomically
opened = []
class Recording(pq.ParquetFile):
    def __init__(self, *args, **kwargs):
        opened.append(os.getpid())
        super().__init__(*args, **kwargs)
pq.ParquetFile = Recording
reader = RowGroupReader([sys.argv[1]], [400], needed=["a"], wanted=["a"], cache_bytes=0)
reader.row(0)
pid = os.fork()
right = [reader.row(index).scalar("a") for index in range(400)] == list(range(400))
if pid == 0:
    os._exit(0 if right and opened[1:] == [os.getpid()] else 1)
print(right, len(opened), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_forked_child_opens_its_own_files(tmp_path: Path) -> None:
    """Parent and child read at once, each through its own handle, and both read right."""
    (file,) = _write(tmp_path, [400], group=1)
    done = subprocess.run(
        [sys.executable, "-c", _FORK, file], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True 1 0\n"


def test_row_out_of_range(tmp_path: Path) -> None:
    """Rows before the first and after the last do not exist."""
    reader = _reader(_write(tmp_path, [2, 0], group=1), [2, 0])
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"row {index} of a data set with 2 rows"):
            reader.row(index)


def test_damaged_row_group_names_the_file(tmp_path: Path) -> None:
    """Bytes that rot behind an intact footer are an error that names the file."""
    (file,) = _write(tmp_path, [50], group=50)
    content = bytearray((tmp_path / "0.parquet").read_bytes())
    content[4:200] = os.urandom(196)
    (tmp_path / "0.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"0\.parquet row group 0 \(rows 0 to 49\) cannot"):
        _reader([file], [50]).row(0)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(3)])
@pytest.mark.parametrize("group", [1, 2, 6])
def test_bytes_are_those_of_their_row(tmp_path: Path, kind: pa.DataType, group: int) -> None:
    """In any binary type, with nulls and empty values, and in a table of several pieces."""
    values = [b"abc", None, b"def", b"" if kind != pa.binary(3) else b"ghi", b"jkl", None]
    tensors = {"a_bytes": pa.array(values, kind), "a_shape": [[3]] * 6, "a_dtype": ["uint8"] * 6}
    pq.write_table(pa.table(tensors), tmp_path / "0.parquet", row_group_size=group)
    tables = [pq.read_table(tmp_path / "0.parquet"), pa.table(tensors).slice(0, 6)]
    pieces = pa.concat_tables([tables[1].slice(0, 1), tables[1].slice(1, 3), tables[1].slice(4)])
    for table in (*tables, pieces):
        found = [_bytes_at(table.column("a_bytes"), number) for number in range(6)]
        assert [value if value is None else bytes(value) for value in found] == values


def test_the_damaged_row_group_is_named(tmp_path: Path) -> None:
    """The others can still be read."""
    path = tmp_path / "0.parquet"
    (file,) = _write(tmp_path, [50], group=20)
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 50] = os.urandom(50)
    path.write_bytes(content)
    reader = _reader([file], [50])
    assert reader.row(19).scalar("a") == 19
    with pytest.raises(DataError, match=r"0\.parquet row group 1 \(rows 20 to 39\) cannot be read"):
        reader.row(20)
    assert reader.row(40).scalar("a") == 40


def test_a_flipped_bit_never_passes_for_another_number(tmp_path: Path) -> None:
    """What our writer has written is read as it was, or refused with the name of the file."""
    path = tmp_path / "0.parquet"
    draws = random.Random(0)
    rows = [draws.randbytes(500) for _ in range(8)]
    write_parquet_atomically(pa.table({"a": range(8), "pad": pa.array(rows, pa.binary())}), path)
    intact = path.read_bytes()
    complaints = []
    for _ in range(150):
        content = bytearray(intact)
        content[draws.randrange(len(content))] ^= 1 << draws.randrange(8)
        path.write_bytes(content)
        try:
            read = [row.scalar("pad") for row in map(_reader([str(path)], [8]).row, range(8))]
        except DataError as error:
            complaints.append(str(error))
        else:
            assert read == rows
    assert len(complaints) > 100
    assert all("0.parquet" in text for text in complaints)


def test_vanished_file_is_named(tmp_path: Path) -> None:
    """A file that is removed after listing is named."""
    (file,) = _write(tmp_path, [2], group=1)
    (tmp_path / "0.parquet").unlink()
    with pytest.raises(DataError, match=r"0\.parquet cannot be read"):
        _reader([file], [2]).row(0)


def test_changed_file_is_noticed(tmp_path: Path) -> None:
    """A file with another number of rows than listed would shift every index: an error."""
    (file,) = _write(tmp_path, [3], group=1)
    with pytest.raises(DataError, match=r"0\.parquet has 3 rows, but had 2"):
        _reader([file], [2]).row(0)


def test_missing_column_names_file_and_columns(tmp_path: Path) -> None:
    """A file without a needed column says what it has."""
    (file,) = _write(tmp_path, [3], group=1)
    with pytest.raises(DataError, match=r"0\.parquet lacks the columns b; it has a, pad"):
        _reader([file], [3], needed="b").row(0)
