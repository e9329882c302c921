"""The packages that trackers need."""

from __future__ import annotations

import importlib
from typing import Any

from fastvideo.errors import MissingExtraError

_EXTRAS = {"tensorboard": "train", "wandb": "train"}
_SERVICES = (*_EXTRAS, "swanlab")


def import_tracker_package(name: str) -> Any:  # noqa: ANN401 - a module, which may be untyped
    """Imports what a tracker needs.

    Args:
        name: Name of the tracker.

    Returns:
        The package of the same name; None for a tracker that needs none.

    Raises:
        MissingExtraError: The package is not installed, or cannot be imported; the message says
            what to install, or why.
    """
    if name not in _SERVICES:
        return None
    advice = "choose another one with --training.tracker.trackers '[jsonl]'"
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            extra = _EXTRAS.get(name)
            install = (
                f"pip install '.[{extra}]'  in fastvideo's source tree,"
                if extra
                else f"pip install {name} "
            )
            message = (
                f"the tracker {name!r} needs the package {name!r}, which is not installed: "
                f"run  {install} or {advice}"
            )
        else:
            message = (
                f"the tracker {name!r} cannot be used, as its package cannot be imported: "
                f"{type(error).__name__}: {error}. Mend the package, or {advice}"
            )
        raise MissingExtraError(message, name=name) from error
