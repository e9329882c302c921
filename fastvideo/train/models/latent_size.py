"""Comparing the sizes that a run file states with those of the latents in the data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastvideo.train.config import DataConfig


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
