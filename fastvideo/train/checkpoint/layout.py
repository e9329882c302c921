"""Where checkpoints are and which of them are whole, decided from names and sizes of files alone.

    <output_dir>/checkpoint-<step>/
        metadata.json            step, run file, world size, name and size of every file
        dcp/                     weights, optimizer state and EMA: one file per rank, and .metadata
        rng_state_rank<r>.pt     what belongs to one rank: random state, data position, callbacks

A checkpoint is written under a name that starts with a dot and gets its own name when everything
is on disk, so a directory called ``checkpoint-<step>`` is whole unless somebody has touched it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger
from fastvideo.train.checkpoint.errors import CheckpointError, CheckpointNotFoundError

logger = init_logger(__name__)

LATEST: Final = "latest"
"""Value of ``resume_from_checkpoint`` that stands for the newest checkpoint, if there is one."""

DCP: Final = "dcp"
DCP_METADATA: Final = ".metadata"
METADATA: Final = "metadata.json"
UNFINISHED: Final = ".tmp-checkpoint-"
REPLACED: Final = ".old-checkpoint-"
_PREFIX: Final = "checkpoint-"
_NAME: Final = re.compile(rf"{_PREFIX}(0|[1-9][0-9]*)")


def checkpoint_name(step: int) -> str:
    """Returns the name of the directory of a step."""
    return f"{_PREFIX}{step}"


def rank_file_name(rank: int) -> str:
    """Returns the name of the file with what belongs to one rank."""
    return f"rng_state_rank{rank}.pt"


def checkpoint_step(directory: Path) -> int | None:
    """Returns the step in the name of a checkpoint's directory; None for other names."""
    match = _NAME.fullmatch(directory.name)
    return None if match is None else int(match[1])


def list_checkpoints(output_dir: str | Path) -> list[Path]:
    """Returns the directories of a run that are named like checkpoints, oldest step first.

    Args:
        output_dir: The run's output directory, which need not exist; "" has none.
    """
    if not str(output_dir):
        return []
    steps = {
        step: path
        for path in Path(output_dir).expanduser().glob(f"{_PREFIX}*")
        if (step := checkpoint_step(path)) is not None and path.is_dir()
    }
    return [steps[step] for step in sorted(steps)]


def what_is_missing(checkpoint: Path) -> str | None:
    """Tells what a checkpoint lacks, by looking at names and sizes; None if nothing.

    Checkpoints without ``metadata.json`` are only asked for their ``dcp`` directory.

    Args:
        checkpoint: A directory called ``checkpoint-<step>``.
    """
    if not (checkpoint / DCP / DCP_METADATA).is_file():
        return f"it has no {DCP}/{DCP_METADATA}"
    if not (checkpoint / METADATA).exists():
        return None
    try:
        files = read_metadata(checkpoint).get("files", {})
        for name, size in dict(files).items():
            found = checkpoint / name
            if not found.is_file():
                return f"{name} is missing"
            if found.stat().st_size != size:
                return f"{name} has {found.stat().st_size} bytes instead of {size}"
    except (CheckpointError, TypeError, ValueError) as error:
        return str(error)
    return None


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """Returns the content of ``metadata.json``; empty if there is none.

    Args:
        checkpoint: A checkpoint's directory.

    Raises:
        CheckpointError: The file is no JSON object, or cannot be read.
    """
    path = checkpoint / METADATA
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        message = f"{path} cannot be read as JSON: {error}"
        raise CheckpointError(message) from error
    if not isinstance(content, dict):
        message = f"{path} holds a JSON {type(content).__name__}; expected an object"
        raise CheckpointError(message)
    return content


def latest_checkpoint(output_dir: str | Path) -> Path | None:
    """Returns the newest checkpoint that is whole; those that are not are warned of.

    Args:
        output_dir: The run's output directory.
    """
    for checkpoint in reversed(list_checkpoints(output_dir)):
        missing = what_is_missing(checkpoint)
        if missing is None:
            return checkpoint
        logger.warning("ignoring %s: %s", checkpoint, missing)
    return None


def resolve_checkpoint(
    value: str,
    output_dir: str | Path = "",
    *,
    option: str = "training.checkpoint.resume_from_checkpoint",
) -> Path | None:
    """Finds the checkpoint that a key or an option stands for.

    Args:
        value: ``latest``, a directory ``checkpoint-<step>``, its ``dcp``, or a run's output
            directory, which stands for its newest checkpoint; "" for none.
        output_dir: Where ``latest`` looks.
        option: What the value was given as, for messages.

    Returns:
        A directory ``checkpoint-<step>``; None for "" and for ``latest`` without checkpoints.

    Raises:
        FileNotFoundError: There is no such directory, or the checkpoint has no ``dcp``.
        ConfigError: (a `ValueError`) The directory is neither a checkpoint nor has any.
        CheckpointError: Files of the checkpoint are missing or cut off; they are named.
    """
    if not value:
        return None
    if value == LATEST:
        return latest_checkpoint(output_dir)
    path = Path(value).expanduser()
    if not path.is_dir():
        message = f"{option}: there is no directory {path}{_offer(path.parent)}"
        raise CheckpointNotFoundError(message)
    path = path.resolve()
    if path.name == DCP and checkpoint_step(path.parent) is not None:
        path = path.parent
    if checkpoint_step(path) is not None:
        return _whole(path)
    found = latest_checkpoint(path)
    if found is None:
        message = (
            f"{option}: Could not resolve {value!r}: it is no directory called "
            f"{_PREFIX}<step>, and holds none that is whole"
        )
        raise ConfigError(message)
    return found


def _whole(checkpoint: Path) -> Path:
    missing = what_is_missing(checkpoint)
    if missing is None:
        return checkpoint
    if DCP_METADATA in missing:
        message = f"{checkpoint} is no complete checkpoint: {missing}{_offer(checkpoint.parent)}"
        raise CheckpointNotFoundError(message)
    message = f"{checkpoint} is damaged: {missing}{_offer(checkpoint.parent)}"
    raise CheckpointError(message)


def _offer(output_dir: Path) -> str:
    whole = [path.name for path in list_checkpoints(output_dir) if what_is_missing(path) is None]
    return f"; {output_dir} has {', '.join(whole[-4:])}" if whole else ""
