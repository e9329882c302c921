"""Numbers about videos."""

from __future__ import annotations

import pytest
import torch

from fastvideo.pipelines.video_metrics import (
    METRICS,
    motion_smoothness,
    sharpness,
    temporal_flicker,
)


def grey(levels: list[float]) -> torch.Tensor:
    """Returns plain grey frames of these levels, [1, 3, T, 16, 16]."""
    return torch.tensor(levels)[None, None, :, None, None].expand(1, 3, -1, 16, 16)


def test_blur_is_less_sharp_than_edges_and_plain_is_not_sharp() -> None:
    """The order is that of the eye."""
    board = (torch.arange(16)[:, None] + torch.arange(16)) // 4 % 2
    edges = board.float().expand(1, 3, 2, 16, 16)
    blurred = torch.nn.functional.avg_pool2d(edges[0], 3, stride=1, padding=1)[None]
    assert sharpness(grey([0.5, 0.5])).item() == pytest.approx(0, abs=1e-9)
    assert 0 < sharpness(blurred).item() < sharpness(edges).item()


def test_constant_motion_is_smooth_and_back_and_forth_is_not() -> None:
    """1 for a steady change and for none, 0 for one that turns every time."""
    assert motion_smoothness(grey([0.1, 0.2, 0.3, 0.4])).item() == pytest.approx(1, abs=1e-5)
    assert motion_smoothness(grey([0.5, 0.5, 0.5])).item() == 1
    assert motion_smoothness(grey([0.1, 0.9, 0.1, 0.9])).item() == pytest.approx(0, abs=1e-6)
    assert motion_smoothness(grey([0.1, 0.9])).item() == 1


def test_flicker_is_the_height_of_what_alternates() -> None:
    """A steady change has none; plain frames of 0.2 and 0.6 have 0.4 x 2 / 2."""
    assert temporal_flicker(grey([0.2, 0.6, 0.2, 0.6])).item() == pytest.approx(0.4, abs=1e-5)
    assert temporal_flicker(grey([0.1, 0.2, 0.3])).item() == pytest.approx(0, abs=1e-6)
    assert temporal_flicker(grey([0.1])).item() == 0


@pytest.mark.parametrize("name", METRICS)
def test_each_video_has_a_number_of_its_own(name: str) -> None:
    """A batch gives what its videos give alone."""
    videos = torch.rand((3, 3, 4, 16, 24), generator=torch.Generator().manual_seed(0))
    together = METRICS[name](videos)
    alone = torch.cat([METRICS[name](video[None]) for video in videos])
    assert together.shape == (3,)
    assert torch.allclose(together, alone)
