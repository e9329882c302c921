"""Sizes in the run file against those of the data."""

from __future__ import annotations

import pytest

from fastvideo.train.config import DataConfig
from fastvideo.train.models.latent_size import LatentSize, size_contradictions

DATA = LatentSize(frames=3, height=8, width=16, temporal=4, spatial=8)


@pytest.mark.parametrize(
    "stated",
    [
        {},
        {"num_height": 64, "num_width": 128, "num_frames": 9, "num_latent_t": 3},
        {"num_latent_t": 2, "num_frames": 5},
        {"num_frames": 12},
        {"num_height": 68},
    ],
)
def test_what_fits_or_crops_is_no_contradiction(stated: dict[str, int]) -> None:
    """Unset sizes, equal ones, fewer frames, and remainders that the VAE drops are fine."""
    assert size_contradictions(DataConfig(**stated), DATA) == []


def test_every_contradiction_names_both_sizes() -> None:
    """Height and width are in pixels, frames in what their key counts."""
    data = DataConfig(num_height=480, num_width=832, num_frames=13, num_latent_t=4)
    assert size_contradictions(data, DATA) == [
        "num_height 480 (the data has 64)",
        "num_width 832 (the data has 128)",
        "num_frames 13 (the data has 9)",
        "num_latent_t 4 (the data has 3)",
    ]
