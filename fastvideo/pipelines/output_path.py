"""Where a video goes: names made of prompts, and never over a file that is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from fastvideo.logger import init_logger
from fastvideo.pipelines.typed_fields import fail

logger = init_logger(__name__)

_INVALID: Final = re.compile(r'[\\/:*?"<>|\x00-\x1f]')
_OTHER_KINDS: Final = frozenset({".avi", ".gif", ".m4v", ".mkv", ".mov", ".webm"})
_LONGEST: Final = 100
_LONGEST_BYTES: Final = 200
_NAMELESS: Final = "output"


def output_path(wanted: str, prompt: str) -> Path:
    """Returns where a video goes; the file does not exist, its folder does.

    Args:
        wanted: A file that ends in ``.mp4``, or a folder, in which the file is called after the
            first hundred characters of the prompt. ``_1``, ``_2`` and so on follow where the name
            is taken.
        prompt: The prompt.

    Raises:
        OSError: The folder cannot be made.
    """
    path = Path(wanted).expanduser()
    if path.suffix.lower() == ".mp4":
        name = _clean(path.stem)
        if name != path.stem:
            logger.warning("the name %r has invalid characters; it becomes %r", path.stem, name)
        folder, suffix = path.parent, path.suffix
    else:
        folder, name, suffix = path, _clean(prompt[:_LONGEST]), ".mp4"
    folder.mkdir(parents=True, exist_ok=True)
    found, number = folder / f"{name}{suffix}", 0
    while found.exists():
        number += 1
        found = folder / f"{name}_{number}{suffix}"
    return found


def check_output_path(name: str, wanted: str) -> None:
    """Refuses a file of another kind, which would become a folder of that name.

    Args:
        name: What it is called, for the message.
        wanted: What :func:`output_path` is to be given.

    Raises:
        ConfigError: It ends like a video that is not an mp4, and no such folder is there.
    """
    path = Path(wanted).expanduser()
    if path.suffix.lower() in _OTHER_KINDS and not path.is_dir():
        fail(name, f"expected a folder, or a file that ends in .mp4, got {wanted!r}")


def _clean(text: str) -> str:
    """Returns a name that every file system takes."""
    name = re.sub(r"\s+", " ", _INVALID.sub("", text)).strip(" .")
    short = name.encode()[:_LONGEST_BYTES].decode(errors="ignore").strip(" .")
    return short or _NAMELESS
