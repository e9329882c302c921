"""Which parquet files make a data set, and how many rows each of them has.

Counting rows means opening every file, so the counts of larger data sets are kept in a JSON file
and used again for files whose name, size and modification time are unchanged. It lies beside the
data (``map_style_cache/file_list.json``), or in the user's cache where the data is read-only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo.dataset.arrow import pa, pq, unreadable
from fastvideo.dataset.file_list_cache import FileKey, FileListCache
from fastvideo.dataset.model_files import cache_directory
from fastvideo.errors import ConfigError, FastVideoError, counted
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = init_logger(__name__)

DataPath = str | os.PathLike[str] | Sequence[str] | Mapping[str, int]
"""A directory, ``"a:2,b:1"``, a list of directories, or directories with their repeats."""

_CACHE_FROM_FILES = 32  # below that, opening every file is faster than explaining a cache
_FOOTER_THREADS = 16
_MOST_FILES = 10_000_000  # with repeats; each is an entry of a sorted list
_WHERE = "training.data.data_path"


class MissingDataError(FastVideoError, FileNotFoundError):
    """A data path names nothing that can be read."""


@dataclass(frozen=True, slots=True)
class PathSpec:
    """One data root and how often its files are taken.

    Attributes:
        path: Directory, or a single parquet file.
        repeat: At least 1.
    """

    path: str
    repeat: int


def parse_data_path_specs(path: DataPath) -> list[PathSpec]:
    """Returns the roots that ``path`` names, in its order.

    Args:
        path: A directory or file; ``"a:2,b"`` for several with repeats; a list (each taken
            once); or a mapping from path to repeat. A repeat of 0 drops the path.

    Raises:
        ConfigError: A repeat is not a whole number of at least 0, or all of them are 0.
    """
    if isinstance(path, str | os.PathLike):
        text = os.fspath(path)
        pairs = [(text, "1")] if _exists(text) else _split_specs(text)
    elif isinstance(path, Mapping):
        pairs = [(os.fspath(name), str(repeat)) for name, repeat in path.items()]
    else:
        pairs = [(os.fspath(name), "1") for name in path]
    specs = [PathSpec(name, _whole_number(name, repeat)) for name, repeat in pairs]
    kept = [spec for spec in specs if spec.repeat > 0]
    if specs and not kept:
        names = ", ".join(repr(spec.path) for spec in specs)
        message = f"{_WHERE}: the repeat of {names} is 0, which drops it, so nothing is left"
        raise ConfigError(message)
    return kept


def _split_specs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, repeat = part.rpartition(":")
        whole = not colon or _exists(part)
        pairs.append((part, "1") if whole else (name.strip(), repeat.strip()))
    return pairs


def _exists(text: str) -> bool:
    # A long list of roots is no valid file name, where Path.exists would raise.
    return text != "" and os.path.exists(text)  # noqa: PTH110


def _whole_number(name: str, repeat: str) -> int:
    try:
        number = int(repeat)
    except ValueError:
        number = -1
    if number < 0:
        message = (
            f"{_WHERE}: the repeat of {name!r} must be a whole number of at least 0, got {repeat!r}"
        )
        raise ConfigError(message)
    return number


def get_parquet_files_and_length(path: DataPath) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the parquet files below ``path`` and the number of rows of each.

    Files are sorted by name, so all ranks agree on what index means which row; a root with a
    repeat contributes its files as many times. Hidden files and directories are passed over.

    Args:
        path: See :func:`parse_data_path_specs`.

    Returns:
        Absolute file names, and their row counts in the same order.

    Raises:
        MissingDataError: No parquet file there (a ``FileNotFoundError``).
        ConfigError: A repeat cannot be used.
        DataError: A file is damaged; the message names it.
    """
    entries: list[tuple[str, int]] = []
    for spec in parse_data_path_specs(path):
        files = _root_files(spec.path)
        _check_repeat(spec, len(files))
        entries += files * spec.repeat
    if not entries:
        raise _no_files(path)
    entries.sort()
    return tuple(name for name, _ in entries), tuple(rows for _, rows in entries)


def check_data_path(path: DataPath, *, at_least: int = 1) -> None:
    """Refuses a data path without files or with too few rows, as far as a moment tells.

    Files are looked for, and those of a small data set opened; nothing is written.

    Args:
        path: See :func:`parse_data_path_specs`.
        at_least: Rows that a batch takes.

    Raises:
        MissingDataError: A root is neither a directory nor a file, or there is no parquet file.
        ConfigError: A repeat cannot be used, or there are fewer rows than ``at_least``.
        DataError: A file of a small data set is damaged.
    """
    found: list[tuple[Path, int]] = []
    for spec in parse_data_path_specs(path):
        root = _existing_root(spec.path)
        keys = [] if root.is_file() else islice(_list_parquet_files(root), _CACHE_FROM_FILES)
        files = [root] if root.is_file() else [root / key.name for key in keys]
        _check_repeat(spec, len(files))
        found += [(file, spec.repeat) for file in files]
    if not found:
        raise _no_files(path)
    if len(found) >= _CACHE_FROM_FILES:
        return  # the trainer counts these, and keeps the counts
    rows = sum(count_rows(file) * repeat for file, repeat in found)
    if rows < at_least:
        message = (
            f"{_WHERE}={path!r} has {counted(rows, 'row')}, fewer than one batch: "
            f"training.data.train_batch_size is {at_least}"
        )
        raise ConfigError(message)


def _check_repeat(spec: PathSpec, files: int) -> None:
    if spec.repeat * files > _MOST_FILES:
        message = (
            f"{_WHERE}: the repeat of {spec.path!r}, {spec.repeat}, makes {spec.repeat * files} "
            f"files of {files} or more; expected at most {_MOST_FILES} with repeats"
        )
        raise ConfigError(message)


def _no_files(path: DataPath) -> MissingDataError:
    message = (
        f"no *.parquet file found for {_WHERE}={path!r}; expected a directory that "
        f"`fastvideo preprocess` wrote, or one below it"
    )
    return MissingDataError(message)


def _existing_root(path: str) -> Path:
    root = Path(path).expanduser().absolute()
    if not root.is_dir() and not root.is_file():
        message = f"{_WHERE}: {path!r} is neither a directory nor a file (seen as {root})"
        raise MissingDataError(message)
    return root


def _root_files(path: str) -> list[tuple[str, int]]:
    root = _existing_root(path)
    if root.is_file():
        return [(str(root), count_rows(root))]
    keys = list(_list_parquet_files(root))
    rows = _count_all(root, keys) if len(keys) < _CACHE_FROM_FILES else _cached_rows(root, keys)
    return [(str(root / key.name), rows[key]) for key in keys]


def _list_parquet_files(root: Path) -> Iterator[FileKey]:
    seen: set[tuple[int, int]] = set()  # directories, so that a looping link ends the walk
    for directory, subdirectories, names in os.walk(root, followlinks=True):
        status = os.stat(directory)  # noqa: PTH116 - os.walk yields strings
        if (status.st_dev, status.st_ino) in seen:
            subdirectories.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
        for name in sorted(names):
            if name.endswith(".parquet") and not name.startswith("."):
                file = Path(directory, name)
                stat = file.stat()
                yield FileKey(file.relative_to(root).as_posix(), stat.st_size, stat.st_mtime_ns)


def count_rows(file: Path) -> int:
    """Returns the number of rows that the footer of ``file`` states.

    Raises:
        DataError: The file cannot be read as parquet; the message names it.
    """
    try:
        return int(pq.read_metadata(file).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error


def _count_all(root: Path, keys: Sequence[FileKey]) -> dict[FileKey, int]:
    if not keys:
        return {}
    threads = min(_FOOTER_THREADS, len(keys))
    with ThreadPoolExecutor(threads, thread_name_prefix="parquet-footer") as pool:
        counts = pool.map(count_rows, [root / key.name for key in keys])
        return dict(zip(keys, counts, strict=True))


def _cached_rows(root: Path, keys: Sequence[FileKey]) -> dict[FileKey, int]:
    """Takes the counts from the cache and counts only what it does not know.

    The lock makes it one scan per node: the process that comes first counts, the others wait and
    find the counts. It needs no process group, and a process that dies gives it back.
    """
    folder = cache_directory() / "file_lists"
    name = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:24]
    cache = FileListCache(root, fallback=folder / f"{name}.json")
    with _exclusive(folder / f"{name}.lock"):
        known = cache.read()
        unknown = [key for key in keys if key not in known]
        rows = {key: known[key] for key in keys if key in known} | _count_all(root, unknown)
        if unknown:
            cache.write(rows)
    logger.debug("%s: %d files, %d of them counted now", root, len(keys), len(unknown))
    return rows


@contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    """Holds a file lock; where files cannot be locked, counting twice is the lesser harm."""
    try:
        import fcntl  # noqa: PLC0415 - not on every platform

        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError) as error:
        logger.debug("no lock for the file list (%s)", error)
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            logger.debug("no lock for the file list (%s)", error)
        yield
    finally:
        os.close(descriptor)
