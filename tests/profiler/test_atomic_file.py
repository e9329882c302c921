"""Files that are whole or absent."""

from __future__ import annotations

import errno
import gzip
import os
from typing import TYPE_CHECKING

import pytest

from fastvideo.profiler import atomic_file
from fastvideo.profiler.atomic_file import GzipFile, append_line, publish, temporary, write_whole

if TYPE_CHECKING:
    from pathlib import Path


def test_gzip_holds_what_was_written(tmp_path: Path) -> None:
    """The file decompresses to all that was written, and says how much that was."""
    file = GzipFile(tmp_path / "a.gz")
    for _ in range(1000):
        file.write(b"hello ")
    file.finish()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"hello " * 1000
    assert file.raw_bytes == 6000


@pytest.mark.parametrize("keep", [0, 5, 30])
def test_gzip_that_lost_bytes_is_noticed(tmp_path: Path, keep: int) -> None:
    """A file whose end went missing on the way to the disk is not taken for whole."""
    path = tmp_path / "a.gz"

    class Lossy(GzipFile):
        def _check(self) -> None:
            os.truncate(path, keep)
            super()._check()

    file = Lossy(path)
    file.write(os.urandom(1000))
    with pytest.raises(OSError, match=r"a\.gz reads back"):
        file.finish()


def test_gzip_that_was_changed_is_noticed(tmp_path: Path) -> None:
    """A flipped bit is an error too."""
    path = tmp_path / "a.gz"

    class Flipped(GzipFile):
        def _check(self) -> None:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.write_bytes(data)
            super()._check()

    file = Flipped(path)
    file.write(os.urandom(1000))
    with pytest.raises(OSError, match=r"a\.gz (?:reads|does not read) back"):
        file.finish()


@pytest.mark.parametrize("links", [True, False])
def test_a_name_that_is_taken_stays_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    """An earlier file is never overwritten, on file systems with and without hard links."""
    if not links:
        monkeypatch.setattr(atomic_file.os, "link", _no_links)
    final = tmp_path / "a.txt"
    write_whole(final, b"first")
    with pytest.raises(FileExistsError):
        write_whole(final, b"second")
    assert final.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [final]


def test_a_name_can_be_replaced(tmp_path: Path) -> None:
    """Replacing is possible where it is asked for."""
    final = tmp_path / "a.txt"
    final.write_bytes(b"half of an earlier attempt")
    write_whole(final, b"whole", replace=True)
    assert final.read_bytes() == b"whole"


def test_nothing_stays_under_the_temporary_name(tmp_path: Path) -> None:
    """What is not published is gone afterwards."""
    with temporary(tmp_path / "a.txt") as path:
        path.write_bytes(b"half")
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_linking_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is reported, not worked around."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_file.os, "link", full)
    (tmp_path / "written").touch()
    with pytest.raises(OSError, match="No space left"):
        publish(tmp_path / "written", tmp_path / "final")


def test_lines_are_appended(tmp_path: Path) -> None:
    """Lines follow each other; one that a killed writer left unfinished is closed first."""
    path = tmp_path / "lines.jsonl"
    append_line(path, b"one")
    append_line(path, b"two")
    with path.open("ab") as file:
        file.write(b'{"half')
    append_line(path, b"three")
    assert path.read_bytes() == b'one\ntwo\n{"half\nthree\n'


def test_a_line_that_does_not_fit_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the file ends with its last whole line."""
    path = tmp_path / "lines.jsonl"
    append_line(path, b"one")
    write = os.write
    monkeypatch.setattr(atomic_file.os, "write", lambda fd, data: write(fd, data[:3]))
    with pytest.raises(OSError, match="No space left"):
        append_line(path, b"two is longer")
    assert path.read_bytes() == b"one\n"


def _no_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))
