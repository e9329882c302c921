"""The sizes that a run file states: whether they can be, and are those of the data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from fastvideo.train.config import DataConfig

_SIDE: Final = 16
"""Pixels of the patch that a Wan transformer takes as one token: 8 by the VAE, 2 by the patch."""
_FRAMES: Final = 4
"""Frames per latent frame, after the first."""


@dataclass(frozen=True, slots=True)
class LatentSize:
    """The size of a sample.

    Attributes:
        frames: Latent frames.
        height: Latent pixels.
        width: Latent pixels.
        temporal: Video frames per latent frame, after the first.
        spatial: Video pixels per latent pixel and side.
    """

    frames: int
    height: int
    width: int
    temporal: int
    spatial: int


def size_contradictions(data: DataConfig, latents: LatentSize) -> list[str]:
    """Returns what ``training.data`` states otherwise than the data set, with both values.

    Fewer frames than there are is no contradiction, because ``num_latent_t`` crops. Sizes of 0 are
    not stated.

    Args:
        data: The section.
        latents: The size of a sample in the data set.

    Returns:
        Such as ``"num_height 480 (the data has 64)"``, one for each key.
    """
    video_frames = (latents.frames - 1) * latents.temporal + 1
    found: list[tuple[str, int]] = []
    if data.num_height and data.num_height // latents.spatial != latents.height:
        found.append(("num_height", latents.height * latents.spatial))
    if data.num_width and data.num_width // latents.spatial != latents.width:
        found.append(("num_width", latents.width * latents.spatial))
    if data.num_frames > video_frames + latents.temporal - 1:
        found.append(("num_frames", video_frames))
    if data.num_latent_t > latents.frames:
        found.append(("num_latent_t", latents.frames))
    return [f"{key} {getattr(data, key)} (the data has {actual})" for key, actual in found]


def check_video_size(data: DataConfig) -> None:
    """Refuses sizes of videos that no latents have.

    Args:
        data: The ``training.data`` section; sizes of 0 are not stated.

    Raises:
        ConfigError: Height or width is no multiple of 16, or the frames are not 4k + 1.
    """
    for key in ("num_height", "num_width"):
        pixels = getattr(data, key)
        if pixels % _SIDE:
            near = max(1, round(pixels / _SIDE)) * _SIDE
            message = (
                f"training.data.{key}: expected a multiple of {_SIDE} such as {near}, got {pixels}"
            )
            raise ConfigError(message)
    check_frame_count(data.num_frames or 1, key="training.data.num_frames")


def check_frame_count(frames: int, *, key: str) -> None:
    """Refuses a length of videos that no latents have.

    Args:
        frames: Their frames.
        key: Where that is said.

    Raises:
        ConfigError: It is not 4k + 1.
    """
    if (frames - 1) % _FRAMES:
        near = round((frames - 1) / _FRAMES) * _FRAMES + 1
        message = f"{key}: expected 4k + 1 frames (1, 5, 9, ...) such as {near}, got {frames}"
        raise ConfigError(message)


def check_made_size(data: DataConfig) -> None:
    """Refuses sizes that are not stated, where a method makes latents of that size.

    Args:
        data: The ``training.data`` section.

    Raises:
        ConfigError: A size is 0; the message names all that are.
    """
    sizes = ("num_latent_t", "num_height", "num_width")
    unset = [f"training.data.{name}" for name in sizes if getattr(data, name) < 1]
    if unset:
        message = f"{', '.join(unset)} must be set: the method makes latents of that size"
        raise ConfigError(message)
