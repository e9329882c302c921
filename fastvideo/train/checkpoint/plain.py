"""Files of plain values and tensors, which are read without executing anything they contain.

``torch.load(weights_only=True)`` builds numbers, texts, containers and tensors, and nothing else.
Numpy arrays and scalars are written as tensors and numbers with a note of what they were. Other
objects are refused when they are saved, with the place where they are: a checkpoint that cannot
be read again is worse than an error.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from fastvideo.train.checkpoint.checksums import checksum
from fastvideo.train.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_NUMPY: Final = "__numpy__"
_DTYPE: Final = "dtype"


def to_plain(value: Any, *, where: str) -> Any:  # noqa: ANN401 - any tree of values
    """Returns a copy of a tree of values in which everything can be written to a file.

    Args:
        value: Mappings, lists and tuples of numbers, texts, bytes, tensors and numpy arrays.
        where: What the tree is, for messages.

    Raises:
        CheckpointError: Something else is in the tree; the message says where.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return _exactly(value, where)
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray | np.generic):
        return _from_numpy(value, where)
    if isinstance(value, dict):
        return {
            _exactly(key, where): to_plain(item, where=f"{where}[{key!r}]")
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [to_plain(item, where=f"{where}[{i}]") for i, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    raise _refused(value, where)


def from_plain(value: Any) -> Any:  # noqa: ANN401 - as above
    """Returns what :func:`to_plain` was given; tensors are on the CPU, namedtuples are tuples."""
    if isinstance(value, dict):
        if value.keys() == {_NUMPY, _DTYPE}:
            array = value[_NUMPY].numpy().view(np.dtype(value[_DTYPE]))
            return array if array.ndim else array[()]
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [from_plain(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def write_plain(path: Path, content: dict[str, Any]) -> str:
    """Writes what :func:`to_plain` returned, and waits until it is on the disk.

    Returns:
        The checksum of the file, taken before it was written.

    Raises:
        OSError: The file cannot be written.
    """
    buffer = io.BytesIO()  # torch.save turns an OSError of its file into a RuntimeError
    torch.save(content, buffer)
    with path.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())
    return checksum(buffer.getbuffer())


def read_plain(path: Path) -> dict[str, Any]:
    """Reads what :func:`write_plain` wrote, for :func:`from_plain`.

    Raises:
        CheckpointError: The file is missing, damaged, or holds something else.
    """
    try:
        _check_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes of torch's reader
        message = f"{path} cannot be read: {_reason(error)}; resume from another checkpoint"
        raise CheckpointError(message) from error
    if not isinstance(content, dict):
        message = f"{path} holds a {type(content).__name__}; expected the state of a rank"
        raise CheckpointError(message)
    return content


def _check_archive(path: Path) -> None:
    """Compares a file's parts with the checksums that torch writes and does not compare."""
    if not zipfile.is_zipfile(path):
        return  # torch says what it makes of it
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        message = "its content does not match its checksum"
        raise zipfile.BadZipFile(message)


def _reason(error: Exception) -> str:
    """Returns what is wrong, without torch's advice to execute what is in the file."""
    kind = type(error).__name__
    if isinstance(error, pickle.UnpicklingError):
        return f"{kind}: it is damaged, or holds more than numbers, texts, containers and tensors"
    return f"{kind}: {str(error).strip().partition(chr(10))[0]}"


def _exactly(value: Any, where: str) -> Any:  # noqa: ANN401 - a scalar of whatever type
    """Refuses subclasses of the plain types, such as enums, which would come back as others."""
    if value is not None and type(value) not in {bool, int, float, str, bytes}:
        raise _refused(value, where)
    return value


def _from_numpy(value: np.ndarray[Any, Any] | np.generic, where: str) -> dict[str, Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise _refused(value, where)
    # The bits travel as signed integers of the same width: torch has no unsigned ones of old.
    bits = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}.get(array.dtype.itemsize)
    if bits is None:
        raise _refused(value, where)
    return {_NUMPY: torch.from_numpy(array.copy().view(bits)), _DTYPE: array.dtype.str}


def _refused(value: object, where: str) -> CheckpointError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    message = (
        f"{where} is a {kind}, which a checkpoint cannot keep: state must be made of numbers, "
        "texts, bytes, tensors, numpy arrays, dicts, lists and tuples"
    )
    return CheckpointError(message)
