"""Names of a segment's files: numbered per rank, never used twice in a directory.

A number is taken in three steps that hold against any other process: a lock file that only one
process can create, a look at what is there, and the raw file, which stands for the number until
the files with their final names do.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class Stem:
    """The name that all files of one segment share.

    Attributes:
        index: Number of the segment among those of its rank in the directory.
        name: ``rank<N>_segment<MMMM>_<region>``.
        raw_path: Where the native trace is written first; it exists, empty.
    """

    index: int
    name: str
    raw_path: Path

    @property
    def trace_file(self) -> str:
        """Name of the trace, once it is exported."""
        return f"trace_{self.name}.pt.trace.json.gz"

    def discard(self) -> None:
        """Removes what was written under the temporary name, as far as that is possible."""
        for path in (self.raw_path, self.raw_path.with_name(self.raw_path.name + ".tmp")):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def claim_stem(
    directory: Path, rank: int, region: str, *, tell: Callable[[Stem], object] | None = None
) -> Stem:
    """Takes the next free number of ``rank`` in ``directory``, which is created if missing.

    Args:
        directory: Absolute directory of the traces.
        rank: Global rank.
        region: Short name of the region.
        tell: Called with the name before its file is created, so that whoever is interrupted
            afterwards can remove it.

    Raises:
        OSError: The directory cannot be created, read or written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    index = next_index(directory, rank)
    for candidate in range(index, index + _ATTEMPTS):
        lock = directory / f".rank{rank}_segment{candidate:04d}.lock"
        is_ours = True  # an interrupt can come before it is known
        try:
            is_ours = _create(lock)
            if not is_ours or candidate < next_index(directory, rank):
                continue
            name = f"rank{rank}_segment{candidate:04d}_{region}"
            raw_path = directory / f".raw_{name}.{os.getpid()}.json"
            stem = Stem(candidate, name, raw_path)
            if tell is not None:
                tell(stem)
            raw_path.touch(exist_ok=False)
            return stem
        finally:
            if is_ours:
                with contextlib.suppress(OSError):
                    lock.unlink(missing_ok=True)
    message = f"no free segment number for rank {rank} in {directory}"
    raise FileExistsError(message)


def next_index(directory: Path, rank: int) -> int:
    """Returns the number after the highest that ``rank`` used in ``directory``, in any run."""
    return max(_used(directory, rank), default=-1) + 1


def _used(directory: Path, rank: int) -> Iterator[int]:
    pattern = re.compile(rf"(?:trace|summary|raw|\..+?)_rank{rank}_segment(\d+)_")
    with os.scandir(directory) as entries:
        for entry in entries:
            match = pattern.match(entry.name)
            if match is not None:
                yield int(match[1])


def _create(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True
