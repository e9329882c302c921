"""Whether there can be a file or folder at a place, asked before there is anything to write."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def why_unwritable(folder: Path) -> str:
    """Returns why a folder cannot be made or written to; empty if it can.

    It is tried: what rights say is not all, as in ``/proc`` or on a disk that is read-only.
    Nothing is left behind.

    Args:
        folder: The folder; what is missing of its path would be made.
    """
    folder = folder.absolute()
    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    if not os.path.isdir(there):  # noqa: PTH112 - never raises
        return f"{there} is no directory"
    try:
        with tempfile.TemporaryDirectory(prefix=".fastvideo-", dir=there):
            return ""
    except OSError as error:
        return f"{there} cannot be written to ({error.strerror})"
