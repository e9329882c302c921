"""Where preprocessing puts finished samples, so that a killed run loses and repeats nothing.

A finished clip is on disk before the next one begins, as one small Arrow file in ``unfinished/``.
When enough rows are there they become one parquet file of the data set, and the small files go.
Every file appears by a rename. Between the parquet file's rename and the removal of the small
files a kill leaves rows in both places; the next run knows them by their ids and drops the small
ones. So at every moment each finished row is in the data set exactly once, or about to be.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastvideo.dataset.arrow import pa, pq
from fastvideo.dataset.writer import ParquetDatasetWriter
from fastvideo.errors import ConfigError, DataError
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

logger = init_logger(__name__)

DATASET_FOLDER = "combined_parquet_dataset"
"""Folder of the parquet files, below the output directory."""

_STAGING_FOLDER = "unfinished"
_SETTINGS_NAME = "preprocess.json"


@dataclass(slots=True)
class _Staged:
    """The rows of a staging file that are in no parquet file yet: from ``start``, ``rows`` many."""

    path: Path
    start: int
    rows: int


class SampleStore:
    """Finished samples of one output directory. Open it with :func:`open_store`.

    Attributes:
        captions: Caption by id, of every finished row.
    """

    def __init__(self, out: Path, *, schema: pa.Schema, samples_per_file: int) -> None:
        self.captions: dict[str, str] = {}
        self._schema = schema
        self._staging = out / _STAGING_FOLDER
        self._dataset = out / DATASET_FOLDER
        self._samples_per_file = samples_per_file
        self._writer = ParquetDatasetWriter(self._dataset, samples_per_file)
        self._staged: deque[_Staged] = deque()
        self._next_number = 0
        self._load_dataset()
        self._load_staging()

    def __contains__(self, sample_id: str) -> bool:
        return sample_id in self.captions

    def add(self, table: pa.Table) -> None:
        """Keeps rows that belong together, such as all windows of a clip: all or none of them.

        Args:
            table: At least one row, with the store's schema and ids that are not in it yet.

        Raises:
            DataError: An id is in the store already.
        """
        known = [name for name in table["id"].to_pylist() if name in self.captions]
        if known:
            message = f"sample {known[0]!r} was written before"
            raise DataError(message)
        self._staging.mkdir(parents=True, exist_ok=True)
        path = self._staging / f"{self._next_number:08d}.arrow"
        self._next_number += 1
        temporary = path.with_suffix(".tmp")
        with pa.ipc.new_file(temporary, self._schema) as file:
            file.write_table(table)
        temporary.replace(path)
        self._staged.append(_Staged(path, 0, table.num_rows))
        self._remember(table)
        while self._rows_staged() >= self._samples_per_file:
            self._write_chunk(self._samples_per_file)

    def finish(self) -> None:
        """Writes the rows that are left as one last, smaller parquet file."""
        while rows := self._rows_staged():
            self._write_chunk(min(rows, self._samples_per_file))
        if self._staging.is_dir() and not any(self._staging.iterdir()):
            self._staging.rmdir()

    def _rows_staged(self) -> int:
        return sum(staged.rows for staged in self._staged)

    def _write_chunk(self, rows: int) -> None:
        consumed: list[_Staged] = []
        needed = rows
        while needed:
            staged = self._staged[0]
            taken = min(needed, staged.rows)
            table = _read_staged(staged.path, self._schema)
            self._writer.append_table(table.slice(staged.start, taken))
            needed -= taken
            staged.start, staged.rows = staged.start + taken, staged.rows - taken
            if staged.rows == 0:
                consumed.append(self._staged.popleft())
        self._writer.flush(write_remainder=True)
        for staged in consumed:
            staged.path.unlink()

    def _load_dataset(self) -> None:
        for leftover in self._dataset.glob("worker_*/.*.tmp"):
            leftover.unlink()  # we hold the lock, so nobody is writing it
        for path in sorted(self._dataset.rglob("*.parquet")):
            try:
                self._remember(pq.read_table(path, columns=["id", "caption"]))
            except (pa.ArrowException, OSError, KeyError) as error:
                message = (
                    f"{path} cannot be read, so it is unknown which samples are finished: {error}; "
                    "remove it to have its samples made again"
                )
                raise DataError(message) from error

    def _load_staging(self) -> None:
        for leftover in self._staging.glob("*.tmp"):
            leftover.unlink()
        for path in sorted(self._staging.glob("*.arrow")):
            self._next_number = int(path.stem) + 1
            try:
                table = _read_staged(path, self._schema)
            except (pa.ArrowException, OSError) as error:
                logger.warning("%s is damaged and will be made again: %s", path, error)
                path.unlink()
                continue
            ids = table["id"].to_pylist()
            start = next((i for i, name in enumerate(ids) if name not in self.captions), len(ids))
            if start == len(ids):
                path.unlink()  # all of it is in the data set
                continue
            self._staged.append(_Staged(path, start, len(ids) - start))
            self._remember(table)

    def _remember(self, table: pa.Table) -> None:
        ids, captions = table["id"].to_pylist(), table["caption"].to_pylist()
        self.captions.update(zip(ids, captions, strict=True))


@contextmanager
def open_store(
    out: Path, *, schema: pa.Schema, samples_per_file: int, settings: Mapping[str, Any]
) -> Iterator[SampleStore]:
    """Opens the store of an output directory, for one process at a time.

    Args:
        out: The output directory; created if need be.
        schema: Schema of the rows, with the columns ``id`` and ``caption``.
        samples_per_file: Rows per parquet file.
        settings: What decides the content of the samples. They are kept beside the data, and a
            later run must bring the same ones.

    Raises:
        ConfigError: The directory holds samples made with other settings, or a data set of
            somebody else, or another process is writing to it.
        DataError: A parquet file in it is damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        _check_settings(out, dict(settings))
        yield SampleStore(out, schema=schema, samples_per_file=samples_per_file)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Holds an advisory lock; the kernel drops it when the process ends, however it ends."""
    descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"another process is writing to {out}; wait for it or choose another --out"
            raise ConfigError(message) from error
        except OSError as error:
            logger.warning("%s cannot be locked (%s); run one process at a time", out, error)
        yield
    finally:
        os.close(descriptor)


def _check_settings(out: Path, settings: dict[str, Any]) -> None:
    path = out / _SETTINGS_NAME
    in_dataset = any((out / DATASET_FOLDER).rglob("*.parquet"))
    if not in_dataset and not any((out / _STAGING_FOLDER).glob("*.arrow")):
        write_json_atomically(path, settings)
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError) as error:
        message = (
            f"{out} holds samples, but {path.name}, which says how they were made, cannot be read "
            f"({error}); choose another --out"
        )
        raise ConfigError(message) from error
    changed = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
    if changed:
        lines = [f"{key} was {before.get(key)!r}, is {settings.get(key)!r}" for key in changed]
        message = (
            f"{out} holds samples made with other settings ({'; '.join(lines)}); choose another "
            "--out, or the same settings"
        )
        raise ConfigError(message)


def write_json_atomically(path: Path, content: Any) -> None:  # noqa: ANN401 - any JSON
    """Writes a JSON file under a temporary name and renames it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _read_staged(path: Path, schema: pa.Schema) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    if not table.schema.equals(schema):
        message = f"its columns are {table.schema.names}"
        raise pa.ArrowInvalid(message)
    return table
