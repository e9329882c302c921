"""Checksums of a checkpoint's files, kept in its ``metadata.json``.

The files of ``dcp/`` with the tensors have checksums of their own, tensor by tensor; see
:func:`fastvideo.train.checkpoint.storage.verify_files`. Here are those of all other files: the
ranks', the index of ``dcp/``, and ``metadata.json`` itself, whose checksum is that of its content
without it. Checkpoints of older versions have none, and pass.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.checkpoint.layout import METADATA, checkpoint_step, read_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHECKSUMS: Final = "sha256"
"""Key of ``metadata.json`` with the checksums of other files by name."""

OWN: Final = "metadata_sha256"
"""Key of ``metadata.json`` with its own."""


def checksum(content: bytes | memoryview) -> str:
    """Returns the SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def signed(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metadata as JSON keeps it, with the checksum of all of it.

    Args:
        metadata: What ``metadata.json`` is to say; values that JSON does not know become texts.
    """
    content: dict[str, Any] = json.loads(json.dumps(metadata, default=str))
    return {**content, OWN: _own(content)}


def check_metadata(checkpoint: Path) -> dict[str, Any]:
    """Returns the content of ``metadata.json`` if it is as it was written, where it was written.

    Args:
        checkpoint: A directory called ``checkpoint-<step>``.

    Raises:
        CheckpointError: The file was damaged or edited, or is about another step than the name of
            the directory, which was renamed or put together by hand then.
    """
    content = read_metadata(checkpoint)
    expected = content.get(OWN)
    if expected is not None and expected != _own(content):
        message = (
            f"{checkpoint / METADATA} is damaged: its content does not match its checksum; resume "
            f"from another checkpoint. If it was edited on purpose, remove {OWN!r} from it"
        )
        raise CheckpointError(message)
    check_step(checkpoint, content.get("step"), METADATA)
    return content


def check_step(checkpoint: Path, step: object, file: str) -> None:
    """Refuses a checkpoint in a directory that is called by another step.

    Args:
        checkpoint: The directory.
        step: The step that one of its files says; None where it says none.
        file: Name of that file.

    Raises:
        CheckpointError: The steps differ.
    """
    named = checkpoint_step(checkpoint)
    if step is None or step == named:
        return
    message = (
        f"{checkpoint} is named after step {named}, but its {file} is of step {step!r}. Give the "
        f"directory its own name again (checkpoint-{step}), or resume from another checkpoint"
    )
    raise CheckpointError(message)


def verify_checksums(checkpoint: Path, *, part: int = 0, parts: int = 1) -> None:
    """Compares the files that ``metadata.json`` has checksums of with these.

    Args:
        checkpoint: The directory.
        part: Which share of the files this process looks at, from 0.
        parts: How many processes share the work.

    Raises:
        CheckpointError: A file cannot be read or is not as it was written; it is named.
    """
    sums = read_metadata(checkpoint).get(CHECKSUMS)
    if not isinstance(sums, dict):
        return
    for name in sorted(sums)[part::parts]:
        path = checkpoint / name
        try:
            found = checksum(path.read_bytes())
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror or error}"
            raise CheckpointError(message) from error
        if found != sums[name]:
            message = (
                f"{path} is damaged: its content does not match its checksum; resume from another "
                "checkpoint"
            )
            raise CheckpointError(message)


def _own(content: Mapping[str, Any]) -> str:
    """The order of keys and the layout of the file do not count."""
    rest = {key: value for key, value in content.items() if key != OWN}
    return checksum(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())
