"""Directories that appear whole or not at all, and the removal of old ones."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger
from fastvideo.train.checkpoint.checksums import CHECKSUMS, checksum, signed
from fastvideo.train.checkpoint.errors import CheckpointError, CheckpointWriteError
from fastvideo.train.checkpoint.layout import (
    DCP,
    DCP_METADATA,
    METADATA,
    REPLACED,
    UNFINISHED,
    checkpoint_name,
    checkpoint_step,
    list_checkpoints,
    read_metadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

logger = init_logger(__name__)

NONFINITE: Final = "nonfinite"
"""Key of ``metadata.json``: names of tensors that were NaN or infinite somewhere, the first few."""

_MIB = 2**20


@contextmanager
def telling_of_files(what: str, path: Path) -> Iterator[None]:
    """Turns an `OSError` of the body into one line with the path and the space that is left.

    Args:
        what: What the body does, such as ``"cannot write"``.
        path: Where it does it.

    Raises:
        CheckpointWriteError: The body has raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        message = f"{what} {path}: {_reason(error)}{free_space(path)}"
        raise CheckpointWriteError(message) from error


def _reason(error: OSError) -> str:
    """Returns why; where copying a tree failed for many files, why it did for the first."""
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        _, _, first = error.args[0][0]
        return str(first)
    return error.strerror or str(error)


def free_space(path: Path) -> str:
    """Returns ``"; 12 MiB are free there"`` for a path, or nothing where that is not known."""
    for place in (path, *path.parents):
        with suppress(OSError):
            return f"; {shutil.disk_usage(place).free // _MIB} MiB are free there"
    return ""


def check_writable(output_dir: Path) -> None:
    """Makes a run's output directory, and sees whether files can be made in it.

    Raises:
        CheckpointWriteError: They cannot.
    """
    probe = output_dir / f"{UNFINISHED}probe-{os.getpid()}"
    with telling_of_files("training.checkpoint.output_dir: cannot write to", output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        probe.mkdir()
        probe.rmdir()


def begin_directory(output_dir: Path, step: int) -> Path:
    """Makes the directory in which a checkpoint is written, under a name of its own.

    Raises:
        CheckpointWriteError: It cannot be made.
    """
    path = output_dir / f"{UNFINISHED}{step}-{os.getpid()}"
    with telling_of_files("cannot make", path):
        output_dir.mkdir(parents=True, exist_ok=True)
        if path.exists():
            shutil.rmtree(path)
        path.mkdir()
    return path


def complete_directory(
    path: Path, step: int, metadata: Mapping[str, Any], checksums: Mapping[str, str] | None = None
) -> Path:
    """Gives a written checkpoint its name, after which it counts.

    One of the same step that is there already is replaced.

    Args:
        path: What :func:`begin_directory` returned, with everything but ``metadata.json``.
        step: The step.
        metadata: What that file says besides the files' names, sizes and checksums.
        checksums: Those of files that other processes may have written, by name. That of the index
            of ``dcp/`` is taken here.

    Returns:
        The checkpoint's directory.

    Raises:
        CheckpointWriteError: A file cannot be written, or the directory cannot be renamed.
    """
    target = path.parent / checkpoint_name(step)
    with telling_of_files("cannot complete", target):
        files = {
            str(file.relative_to(path)): file.stat().st_size
            for file in sorted(path.rglob("*"))
            if file.is_file()
        }
        index = {f"{DCP}/{DCP_METADATA}": checksum((path / DCP / DCP_METADATA).read_bytes())}
        content = {"step": step, "time": time.time(), **metadata, "files": files}
        content = signed({**content, CHECKSUMS: {**(checksums or {}), **index}})
        with (path / METADATA).open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _sync(path / DCP)
        _sync(path)
        replaced = None
        if target.exists():
            replaced = target.with_name(f"{REPLACED}{step}-{os.getpid()}")
            target.rename(replaced)
        path.rename(target)
        _sync(target.parent)
    if replaced is not None:
        remove_directory(replaced)
    return target


def remove_directory(path: Path) -> None:
    """Removes a directory as well as it goes; what stays is said."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        logger.warning("cannot remove %s: %s", path, error)


def remove_leftovers(output_dir: Path) -> None:
    """Removes what saves that were killed have left behind.

    Args:
        output_dir: A directory that only this run saves to.
    """
    for pattern in (f"{UNFINISHED}*", f"{REPLACED}*"):
        for path in output_dir.glob(pattern):
            logger.info("removing %s, which was never completed", path)
            remove_directory(path)


def keep_newest(output_dir: Path, count: int, *, always: Path) -> None:
    """Removes all checkpoints but the newest.

    Where none of these is known to be of finite numbers, the newest that is stays as well.

    Args:
        output_dir: The run's output directory.
        count: How many stay; 0 keeps all.
        always: One that stays even if others are of later steps, as they are in a run that went
            back to an older checkpoint.
    """
    if count <= 0:
        return
    others = [path for path in list_checkpoints(output_dir) if path != always]
    split = max(0, len(others) - (count - 1))
    spare = None
    if split and not any(is_finite(path) for path in (always, *others[split:])):
        spare = next((path for path in reversed(others[:split]) if is_finite(path)), None)
    for path in others[:split]:
        if path == spare:
            continue
        # Renamed first: a directory that is half removed must not look like a checkpoint.
        doomed = path.with_name(f"{REPLACED}{checkpoint_step(path)}-{os.getpid()}")
        try:
            path.rename(doomed)
        except OSError as error:
            logger.warning("cannot remove %s: %s", path, error)
        else:
            remove_directory(doomed)


def is_finite(checkpoint: Path) -> bool:
    """Tells whether nothing in a checkpoint was NaN or infinite when it was saved.

    Args:
        checkpoint: Its directory; one of an older version, which does not say, passes.
    """
    try:
        return not read_metadata(checkpoint).get(NONFINITE)
    except CheckpointError:
        return False


def _sync(directory: Path) -> None:
    """Makes names in a directory survive a crash of the machine, where the system can do that."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
