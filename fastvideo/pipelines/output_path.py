"""Where a video goes: names made of prompts, and never over a file that is there."""

from __future__ import annotations

import itertools
import os
import re
from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger
from fastvideo.pipelines.typed_fields import expanded, fail
from fastvideo.pipelines.video_file import VideoWriteError
from fastvideo.profiler.writable import why_unwritable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

logger = init_logger(__name__)

_INVALID: Final = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]')
_OTHER_KINDS: Final = frozenset({".avi", ".gif", ".m4v", ".mkv", ".mov", ".webm"})
_LONGEST: Final = 100
_LONGEST_BYTES: Final = 200
_NAMELESS: Final = "output"


def output_paths(wanted: str, prompt: str) -> Iterator[Path]:
    """Yields where a video may go, the best name first; the files do not exist.

    Args:
        wanted: A file that ends in ``.mp4``, or a folder, in which the file is called after the
            first hundred characters of the prompt. ``_1``, ``_2`` and so on follow where the name
            is taken.
        prompt: The prompt.
    """
    path = expanded(wanted, where="output_path")
    folder = _folder(path)
    name, suffix = _clean(prompt[:_LONGEST]), ".mp4"
    if folder != path:
        name, suffix = _clean(path.stem), path.suffix
        if name != path.stem:
            logger.warning("the name %r has invalid characters; it becomes %r", path.stem, name)
    for number in itertools.count():
        found = folder / (f"{name}_{number}{suffix}" if number else f"{name}{suffix}")
        if not found.exists():
            yield found


def make_output_folder(name: str, wanted: str) -> None:
    """Makes the folder of a video, so that nothing is computed in vain where there can be none.

    Args:
        name: What the path is called, for messages.
        wanted: What :func:`output_paths` is to be given.

    Raises:
        ConfigError: It cannot be meant.
        VideoWriteError: The folder cannot be made, or nothing can be written to it.
    """
    check_output_path(name, wanted)
    folder = _folder(expanded(wanted, where=name))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{name} {wanted!r} cannot be used: {error.strerror or error}"
        raise VideoWriteError(message) from error


def check_output_path(name: str, wanted: str) -> None:
    """Refuses what cannot be meant, and a place where nothing can be written.

    Args:
        name: What the path is called, for messages.
        wanted: What :func:`output_paths` is to be given.

    Raises:
        ConfigError: It is empty or has no name, names a user who does not exist, or ends like a
            video that is not an mp4 and would become a folder of that name.
        VideoWriteError: What is there of the folder is a file, or nothing can be written to it.
    """
    path = expanded(wanted, where=name)
    other = path.suffix.lower() in _OTHER_KINDS and not os.path.isdir(path)  # noqa: PTH112 - never raises
    if other or not wanted.strip() or path.name.lower() == ".mp4":
        fail(name, f"expected a folder, or a file that ends in .mp4, got {wanted!r}")
    reason = why_unwritable(_folder(path))
    if reason:
        message = f"{name} {wanted!r} cannot be used: {reason}"
        raise VideoWriteError(message)


def _folder(path: Path) -> Path:
    """Returns the folder of a video: the path itself, unless it is that of a file."""
    is_file = path.suffix.lower() == ".mp4" and not os.path.isdir(path)  # noqa: PTH112 - as above
    return path.parent if is_file else path


def _clean(text: str) -> str:
    """Returns a name that every file system takes."""
    name = " ".join(_INVALID.sub("", " ".join(text.split())).split()).strip(" .")
    short = name.encode(errors="ignore")[:_LONGEST_BYTES].decode(errors="ignore").strip(" .")
    return short or _NAMELESS
