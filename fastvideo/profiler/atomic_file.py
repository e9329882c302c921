"""Files that are whole or absent: written under a temporary name, checked, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_GZIP_LEVEL = 6
_GZIP_WINDOW = 31
_READ_BYTES = 1 << 20
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}


class GzipFile:
    """A gzip file being written, and what is needed to check it afterwards.

    Attributes:
        path: Where it is written.
        raw_bytes: Bytes written so far, before compression.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw_bytes = 0
        self._compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        self._file = path.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Compresses and writes ``data``."""
        self.raw_bytes += len(data)
        self._write_all(self._compressor.compress(data))

    def finish(self) -> None:
        """Writes the end of the file, closes it, and reads it back.

        Raises:
            OSError: It cannot be written, or does not hold what was written.
        """
        self._write_all(self._compressor.flush())
        self._file.close()
        self._check()

    def close(self) -> None:
        """Closes the file where it stands."""
        self._file.close()

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def _check(self) -> None:
        decompressor = zlib.decompressobj(_GZIP_WINDOW)
        size = 0
        try:
            with self.path.open("rb", buffering=0) as file:
                while data := file.read(_READ_BYTES):
                    size += len(decompressor.decompress(data))
        except zlib.error as error:
            message = f"{self.path.name} does not read back: {error}"
            raise OSError(errno.EIO, message) from error
        if size != self.raw_bytes or not decompressor.eof:
            message = f"{self.path.name} reads back {size} of {self.raw_bytes} bytes"
            raise OSError(errno.EIO, message)


@contextlib.contextmanager
def temporary(final: Path) -> Iterator[Path]:
    """Gives a hidden path beside ``final`` and sees that nothing is left under it."""
    path = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def publish(written: Path, final: Path, *, replace: bool = False) -> None:
    """Gives a finished file its final name.

    Args:
        written: The file under its temporary name, on the same file system.
        final: The name it gets.
        replace: Whether a file that has this name already is replaced.

    Raises:
        FileExistsError: The name is taken, and ``replace`` is False.
        OSError: The file system refuses.
    """
    if replace:
        written.replace(final)
        return
    try:
        # A link, unlike a rename, fails when the name is taken.
        os.link(written, final)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if final.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from None
        written.rename(final)
    else:
        written.unlink()


def write_whole(final: Path, data: bytes, *, replace: bool = False) -> None:
    """Writes ``data`` to ``final`` so that the file is whole or absent.

    Raises:
        FileExistsError: The file exists, and ``replace`` is False.
        OSError: It cannot be written.
    """
    with temporary(final) as path:
        path.write_bytes(data)
        publish(path, final, replace=replace)


def append_line(path: Path, line: bytes) -> None:
    """Appends one line with a single write; a line that does not fit is taken back.

    Args:
        path: File of lines; created if missing. An unfinished last line, left by a writer that was
            killed, is closed first.
        line: The line, without a newline.

    Raises:
        OSError: The line cannot be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        unfinished = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if unfinished else b"") + line + b"\n"
        written = os.write(descriptor, data)
        if written < len(data):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)
