"""The names of trackers, apart from the trackers themselves so that checking them is cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

SUPPORTED_TRACKERS: Final = ("jsonl", "none", "swanlab", "tensorboard", "wandb")


def checked_tracker_names(names: Sequence[str]) -> list[str]:
    """Returns the names in lower case, each once, without ``none``.

    Args:
        names: The value of ``training.tracker.trackers``.

    Raises:
        ConfigError: A name is not supported.
    """
    chosen: list[str] = []
    for given in names:
        name = str(given).strip().lower()
        if name not in SUPPORTED_TRACKERS:
            message = (
                f"training.tracker.trackers: {given!r} is not supported; choose from "
                f"{', '.join(SUPPORTED_TRACKERS)}.{did_you_mean(name, SUPPORTED_TRACKERS)}"
            )
            raise ConfigError(message)
        if name not in chosen and name != "none":
            chosen.append(name)
    return chosen
