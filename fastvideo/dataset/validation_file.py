"""Reads the prompts that a training run is validated with."""

from __future__ import annotations

import csv
import json
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastvideo.errors import ConfigError, DataError, did_you_mean, import_extra

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

T = TypeVar("T")

ValidationRecord = dict[str, Any]

_PATH_COLUMNS = frozenset({"image_path", "video_path", "ref_video", "action_path"})
_CONTROL_PREFIX = "control_"


def read_validation_file(path: str | os.PathLike[str]) -> list[ValidationRecord]:
    """Returns the records of a validation file, in its order.

    Every record has a non-empty ``caption``, and ``prompt``, the same text. The columns
    ``image_path``, ``video_path``, ``ref_video``, ``action_path`` and ``control_*`` are paths
    and become absolute, relative ones against the directory of the file. All other columns are
    handed on as they are; empty cells of a csv file are left out.

    Args:
        path: ``.json`` (``{"data": [...]}`` or a list), ``.jsonl``, ``.csv`` with a header, or
            ``.parquet``.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: Another suffix, a damaged file, no records, or a record without a caption; the
            message names the file and the record.
    """
    file = Path(path).expanduser().absolute()
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        message = f"{file}: a validation file ends in one of {', '.join(sorted(_READERS))}"
        raise DataError(message)
    try:
        records = reader(file)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        message = f"{file} cannot be read as a {file.suffix} validation file: {error}"
        raise DataError(message) from error
    if not records:
        message = f"{file} has no records; validation needs at least one caption"
        raise DataError(message)
    return [_checked(record, number, file) for number, record in enumerate(records)]


def _read_json(file: Path) -> list[Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    records = content.get("data") if isinstance(content, dict) else content
    if not isinstance(records, list):
        message = 'expected {"data": [...]} or a list of records'
        raise DataError(message)
    return records


def _read_jsonl(file: Path) -> list[Any]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def _read_csv(file: Path) -> list[Any]:
    with file.open(newline="", encoding="utf-8-sig") as stream:
        rows = list(csv.DictReader(stream, strict=True))
    if any(None in row for row in rows):
        message = "a line has more cells than the header; quote captions that hold commas"
        raise DataError(message)
    return [{name: cell for name, cell in row.items() if cell} for row in rows]


def _read_parquet(file: Path) -> list[Any]:
    if not file.is_file():
        raise FileNotFoundError(str(file))
    records: list[Any] = import_extra("pyarrow.parquet", extra="train").read_table(file).to_pylist()
    return records


_READERS: dict[str, Callable[[Path], list[Any]]] = {
    ".csv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def _checked(record: object, number: int, file: Path) -> ValidationRecord:
    if not isinstance(record, dict):
        message = f"{file}: record {number} must be a mapping, got {type(record).__name__}"
        raise DataError(message)
    caption = record.get("caption")
    if not isinstance(caption, str) or not caption.strip():
        names = [str(name) for name in record if name != "caption"]
        message = (
            f"{file}: record {number} needs a 'caption' with text, got {caption!r}; its keys are "
            f"{', '.join(map(str, record))}.{did_you_mean('caption', names)}"
        )
        raise DataError(message)
    resolved = {name: _resolved(name, value, file.parent) for name, value in record.items()}
    return resolved | {"prompt": caption}


def _resolved(name: str, value: object, folder: Path) -> object:
    is_path = name in _PATH_COLUMNS or name.startswith(_CONTROL_PREFIX)
    if not is_path or not isinstance(value, str) or not value or "://" in value:
        return value
    return str(folder / Path(value).expanduser())


def share_of_group(records: Sequence[T], *, num_groups: int, group: int) -> list[T]:
    """Returns the contiguous part of ``records`` that one sequence-parallel group samples.

    All groups get the same number: the records are repeated from the first one until they
    divide evenly.

    Args:
        records: All records, at least one.
        num_groups: Groups that share them.
        group: Which of them, from 0.

    Raises:
        ConfigError: There is no such group, or there are no records.
    """
    if not records or not 0 <= group < num_groups:
        message = f"cannot give {len(records)} records to group {group} of {num_groups}"
        raise ConfigError(message)
    share = -(-len(records) // num_groups)
    return list(islice(cycle(records), group * share, (group + 1) * share))
