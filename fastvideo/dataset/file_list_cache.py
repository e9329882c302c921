"""The stored row counts of a data set: our JSON file, and the pickle of older preprocessors."""

from __future__ import annotations

import json
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, final

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = init_logger(__name__)

CACHE_FOLDER = "map_style_cache"
_VERSION = 1
_LEGACY_LIMIT_BYTES = 256 * 2**20


class FileKey(NamedTuple):
    """What a row count holds for: a file that was not written again.

    Attributes:
        name: Path relative to the root, with forward slashes.
        size: Bytes.
        mtime_ns: Modification time, nanoseconds since the epoch.
    """

    name: str
    size: int
    mtime_ns: int


@final
class FileListCache:
    """Row counts of the files below one root.

    Args:
        root: Directory of the data set.
        fallback: File that is used where the root is read-only.
    """

    def __init__(self, root: Path, *, fallback: Path) -> None:
        self._root = root
        self._paths = (root / CACHE_FOLDER / "file_list.json", fallback)
        self._legacy = root / CACHE_FOLDER / "file_info.pkl"

    def read(self) -> dict[FileKey, int]:
        """Returns every stored row count; a missing or unreadable file counts as empty."""
        known: dict[FileKey, int] = {}
        if self._legacy.is_file():
            known.update(_read_legacy(self._legacy, self._root))
        for path in reversed(self._paths):
            if path.is_file():
                known.update(_read_json(path))
        return known

    def write(self, rows: Mapping[FileKey, int]) -> None:
        """Stores the counts beside the data or in the fallback; warns if neither is writable."""
        files = [[*key, count] for key, count in sorted(rows.items())]
        text = json.dumps({"version": _VERSION, "files": files})
        errors = []
        for path in self._paths:
            try:
                _write_atomically(path, text)
            except OSError as error:
                errors.append(str(error))
            else:
                return
        logger.warning(
            "the row counts of %s cannot be stored, so every start reads all files: %s",
            self._root,
            "; ".join(errors),
        )


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _read_json(path: Path) -> dict[FileKey, int]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            return {}
        return {
            FileKey(_text(name), _count(size), _count(mtime_ns)): _count(rows)
            for name, size, mtime_ns, rows in content["files"]
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("%s is damaged and will be written again: %r", path, error)
        return {}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    message = f"expected text, got {value!r}"
    raise TypeError(message)


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    message = f"expected a whole number of at least 0, got {value!r}"
    raise TypeError(message)


@final
class _PlainUnpickler(pickle.Unpickler):
    """Loads tuples, lists, text and numbers; whatever needs an import is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        message = f"it refers to {module}.{name}; only tuples, lists, text and numbers are read"
        raise pickle.UnpicklingError(message)


def _read_legacy(path: Path, root: Path) -> dict[FileKey, int]:
    """Reads the pickle of file names and row counts that older preprocessors left.

    It says neither sizes nor times, so a count is taken only for a file that has not changed
    since the pickle was written.
    """
    try:
        status = path.stat()
        if status.st_size > _LEGACY_LIMIT_BYTES:
            message = f"{status.st_size} bytes are more than a file list takes"
            raise ValueError(message)  # noqa: TRY301 - one place reports what is wrong with it
        with path.open("rb") as file:
            names, counts = _PlainUnpickler(file).load()
        pairs = [(_text(n), _count(c)) for n, c in zip(names, counts, strict=True)]
    except Exception as error:  # noqa: BLE001 - damaged pickles raise nearly anything
        logger.warning("the old file list %s is not used: %s", path, error)
        return {}
    return dict(_unchanged_since(status.st_mtime_ns, pairs, root))


def _unchanged_since(
    written_ns: int, pairs: list[tuple[str, int]], root: Path
) -> list[tuple[FileKey, int]]:
    unchanged = []
    for name, rows in pairs:
        file = Path(name) if Path(name).is_absolute() else root / name
        with suppress(OSError, ValueError):
            status: Any = file.stat()
            if status.st_mtime_ns <= written_ns:
                relative = file.relative_to(root).as_posix()
                unchanged.append((FileKey(relative, status.st_size, status.st_mtime_ns), rows))
    return unchanged
