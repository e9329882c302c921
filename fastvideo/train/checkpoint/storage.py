"""Torch's distributed checkpoints, read and written with more care.

* Their index is a pickle. It is read by an unpickler that knows the few classes an index is made
  of and refuses everything else, so that a checkpoint cannot run code.
* Their files hold each tensor as a zip archive with a checksum that torch writes and does not
  compare. It is compared here before anything is read, so that a damaged file is named.
* Their errors are gathered from all ranks and become one line.
"""

from __future__ import annotations

import importlib
import io
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from fastvideo.train.checkpoint.errors import CheckpointError, CheckpointWriteError
from fastvideo.train.checkpoint.layout import DCP_METADATA

if TYPE_CHECKING:
    from concurrent.futures import Future
    from os import PathLike

    import torch.distributed as dist
    from torch import Tensor
    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import ReadItem

    from fastvideo.distributed import RankGroup

_METADATA_MODULE: Final = "torch.distributed.checkpoint.metadata"
_DTYPES: Final = (
    *("bfloat16", "bool", "complex128", "complex64", "float16", "float32", "float64", "int16"),
    *("int32", "int64", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"),
)
_KNOWN: Final = frozenset(
    {
        *((_METADATA_MODULE, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
        (_METADATA_MODULE, "BytesStorageMetadata"),
        (_METADATA_MODULE, "ChunkStorageMetadata"),
        (_METADATA_MODULE, "TensorProperties"),
        (_METADATA_MODULE, "TensorStorageMetadata"),
        (_METADATA_MODULE, "_MEM_FORMAT_ENCODING"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        *(("torch", name) for name in _DTYPES),
        *(("pathlib", name) for name in ("Path", "PosixPath", "PurePosixPath")),
        ("pathlib._local", "PosixPath"),
        ("builtins", "getattr"),  # replaced below
    }
)


@final
class CheckpointWriter(FileSystemWriter):
    """Writes one file per rank, synced to the disk; the index names no directory.

    The memory for copies of the tensors is kept from one save to the next, on CUDA machines as
    pinned memory: making it takes longer than filling it.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path, sync_files=True, overwrite=False, cache_staged_state_dict=True)

    def stage(self, state_dict: dict[str, Any]) -> Any:  # noqa: ANN401 - as torch has it
        """Returns a copy of the tensors."""
        if self.state_dict_cache is None and not torch.cuda.is_available():
            self.cache_staged_state_dict = False  # torch would want pinned memory
            self.state_dict_cache = super().stage(state_dict)
            self.cache_staged_state_dict = True
            return self.state_dict_cache
        return super().stage(state_dict)

    def storage_meta(self) -> StorageMeta:
        """Returns what the index says of the save: not where it was made."""
        return StorageMeta(checkpoint_id=None, save_id=self.save_id)


@final
class CheckpointReader(FileSystemReader):
    """Reads without executing anything that a file contains."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ANN401, ARG002
        """Returns the index.

        Raises:
            CheckpointError: It cannot be read, or is not an index.
        """
        metadata = read_index(Path(self.path))
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


@final
class _TensorsOnly(DefaultLoadPlanner):
    """Refuses values that are pickled into a checkpoint; this package writes none there."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> NoReturn:
        """Refuses."""
        del value
        message = f"{read_item.dest_index.fqn} is a pickled value, which is not loaded"
        raise CheckpointError(message)


@final
class _IndexUnpickler(pickle.Unpickler):
    """Knows the classes of an index only."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a class or function
        """Returns a class that an index may contain.

        Raises:
            UnpicklingError: It is another one.
        """
        if (module, name) not in _KNOWN:
            message = f"it contains {module}.{name}, which no index needs"
            raise pickle.UnpicklingError(message)
        if module == "builtins":
            return _enum_member
        return getattr(importlib.import_module(module), name)


def read_index(directory: Path) -> Metadata:
    """Returns the index of a distributed checkpoint.

    Args:
        directory: The ``dcp`` directory.

    Raises:
        CheckpointError: It cannot be read, or is not an index.
    """
    path = directory / DCP_METADATA
    try:
        with path.open("rb") as file:
            metadata = _IndexUnpickler(file).load()
        names = metadata.state_dict_metadata.keys()
    except Exception as error:  # whatever a damaged file makes of the unpickler
        message = f"{path} cannot be read: {type(error).__name__}: {error}"
        raise CheckpointError(message) from error
    del names
    found: Metadata = metadata
    return found


def verify_files(directory: Path, index: Metadata, *, part: int = 0, parts: int = 1) -> None:
    """Compares the contents of a checkpoint's files with their checksums.

    Args:
        directory: The ``dcp`` directory.
        index: What :func:`read_index` returned.
        part: Which share of the files this process looks at, from 0.
        parts: How many processes share the work.

    Raises:
        CheckpointError: A file cannot be read or is not as it was written; it is named.
    """
    entries: dict[str, list[tuple[int, int]]] = {}
    for info in index.storage_data.values():
        entries.setdefault(info.relative_path, []).append((info.offset, info.length))
    for name in sorted(entries)[part::parts]:
        path = directory / name
        try:
            with path.open("rb") as file:
                for offset, length in sorted(entries[name]):
                    file.seek(offset)
                    _verify_archive(file.read(length), length)
        except Exception as error:  # whatever damage makes of the reader of archives
            reason = str(error) or type(error).__name__
            message = f"{path} is damaged: {reason}; resume from another checkpoint"
            raise CheckpointError(message) from error


def save_tensors(tensors: dict[str, Tensor], path: Path, group: RankGroup) -> None:
    """Writes the ranks' tensors, and waits until they are on the disk.

    Args:
        tensors: By name; every rank has the same names.
        path: The directory to write.
        group: The ranks that take part, all of which call this.

    Raises:
        CheckpointWriteError: A rank could not write; raised on all of them.
    """
    try:
        save(
            _nested(tensors),
            storage_writer=CheckpointWriter(path),
            planner=DefaultSavePlanner(),
            **_ranks(group),
        )
    except CheckpointException as error:
        raise CheckpointWriteError(_summary("cannot write", path, error)) from _cause(error)


def save_tensors_later(
    tensors: dict[str, Tensor], path: Path, group: RankGroup, writer: CheckpointWriter
) -> Future[Any]:
    """Copies the tensors, and writes the copies in a thread.

    Args:
        tensors: By name; free to change when this returns.
        path: The directory to write.
        group: The ranks that take part; nothing else may use its process group meanwhile.
        writer: The writer, which may keep memory for the copies from one save to the next.

    Returns:
        What becomes done when all ranks have written; its exception is for
        :func:`finished_save`.
    """
    # Its type names what comes back from stagers that work in a thread as well; this one does not.
    result: Any = async_save(
        _nested(tensors),
        checkpoint_id=path,
        storage_writer=writer,
        planner=DefaultSavePlanner(),
        **_ranks(group),
    )
    future: Future[Any] = result
    return future


def finished_save(future: Future[Any], path: Path, timeout_s: float | None = None) -> None:
    """Waits for what :func:`save_tensors_later` began.

    Raises:
        CheckpointWriteError: A rank could not write.
        TimeoutError: It takes longer.
    """
    try:
        future.result(timeout_s)
    except CheckpointException as error:
        raise CheckpointWriteError(_summary("cannot write", path, error)) from _cause(error)


def load_tensors(tensors: dict[str, Tensor], path: Path, group: RankGroup) -> None:
    """Reads into the ranks' tensors.

    Args:
        tensors: By name; names that the checkpoint has besides are left alone.
        path: The ``dcp`` directory.
        group: The ranks that take part, all of which call this.

    Raises:
        CheckpointError: A rank could not read; raised on all of them.
    """
    try:
        load(
            tensors,
            storage_reader=CheckpointReader(path),
            planner=_TensorsOnly(),
            **_ranks(group),
        )
    except CheckpointException as error:
        raise CheckpointError(_summary("cannot read", path, error)) from _cause(error)


def _nested(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Splits the names at their first dot; torch joins them again.

    It writes two log records for every top-level name, which would take longer than the saving.
    """
    result: dict[str, Any] = {}
    for name, tensor in tensors.items():
        top, _, rest = name.partition(".")
        if rest:
            result.setdefault(top, {})[rest] = tensor
        else:
            result[name] = tensor
    return result


def _ranks(group: RankGroup) -> dict[str, Any]:
    process_group: dist.ProcessGroup | None = group.process_group
    if process_group is not None:
        return {"process_group": process_group}
    # Torch warns of a single process even if it is told of it, also in its own threads.
    warnings.filterwarnings("ignore", "torch.distributed is disabled, unavail", UserWarning)
    return {"no_dist": True}


def _verify_archive(content: bytes, length: int) -> None:
    if len(content) != length:
        message = f"it ends {length - len(content)} bytes too early"
        raise CheckpointError(message)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if archive.testzip() is not None:
            message = "its content does not match its checksum"
            raise CheckpointError(message)


def _summary(what: str, path: Path, error: CheckpointException) -> str:
    first = min(error.failures)
    cause = _cause(error)
    reason = str(cause).strip().partition("\n")[0]
    others = f" (and {len(error.failures) - 1} more)" if len(error.failures) > 1 else ""
    return f"{what} {path}: rank {first}{others}: {type(cause).__name__}: {reason}"


def _cause(error: CheckpointException) -> BaseException:
    return error.failures[min(error.failures)][0]


def _enum_member(kind: Any, name: str) -> Any:  # noqa: ANN401 - an enum and its member
    """Stands for ``getattr`` in an index: pickles of Python 3.11 name enum members with it."""
    enum = importlib.import_module(_METADATA_MODULE)._MEM_FORMAT_ENCODING  # noqa: SLF001
    if kind is not enum or name not in enum.__members__:
        message = f"it asks for {name!r} of {kind!r}"
        raise pickle.UnpicklingError(message)
    return enum[name]
