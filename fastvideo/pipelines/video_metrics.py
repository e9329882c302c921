"""Numbers about videos that need no model: cheap, and good enough to see a run go wrong.

They say nothing about the prompt. Each takes videos [B, 3, T, H, W] in [0, 1] (B videos, T frames,
H/W height and width) and returns one number per video, [B], float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch.nn.functional import adaptive_avg_pool2d, conv2d

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_LUMA: Final = (0.299, 0.587, 0.114)  # ITU-R BT.601
_LAPLACIAN: Final = ((0.0, 1.0, 0.0), (1.0, -4.0, 1.0), (0.0, 1.0, 0.0))
_BLOCKS: Final = 8
_STILL: Final = 1e-6


def sharpness(video_BCTHW: Tensor) -> Tensor:
    """Returns the variance of the Laplacian of the luma, averaged over frames.

    0 for a plain picture; falls as a student blurs, rises with noise.
    """
    luma = _luma(video_BCTHW)
    batch, frames, height, width = luma.shape
    kernel = luma.new_tensor(_LAPLACIAN)[None, None]
    edges = conv2d(luma.reshape(batch * frames, 1, height, width), kernel)
    return edges.flatten(1).var(dim=1, unbiased=False).reshape(batch, frames).mean(dim=1)


def motion_smoothness(video_BCTHW: Tensor) -> Tensor:
    """Returns how evenly pixels change, from 0 (back and forth) to 1 (at a constant rate, or not).

    With d_t the change from frame t to the next one: 1 - sum|d_t+1 - d_t| / sum(|d_t+1| + |d_t|).
    Videos of fewer than three frames have 1.
    """
    luma = _luma(video_BCTHW)
    if luma.shape[1] < 3:  # noqa: PLR2004 - a change of changes needs three
        return luma.new_ones(luma.shape[0])
    change = luma.diff(dim=1)
    uneven = change.diff(dim=1).abs().flatten(1).sum(dim=1)
    total = (change[:, 1:].abs() + change[:, :-1].abs()).flatten(1).sum(dim=1)
    return torch.where(total > _STILL, 1 - uneven / total.clamp(min=_STILL), 1.0)


def temporal_flicker(video_BCTHW: Tensor) -> Tensor:
    """Returns how much the brightness of regions goes up and down between frames; 0 is none.

    Luma is averaged over 8 x 8 regions, so that moving edges count little; of each region the
    half of the mean absolute second difference in time is taken: the height of the flicker of a
    region that alternates between two levels. Videos of fewer than three frames have 0.
    """
    luma = _luma(video_BCTHW)
    if luma.shape[1] < 3:  # noqa: PLR2004 - as above
        return luma.new_zeros(luma.shape[0])
    blocks = adaptive_avg_pool2d(luma, _BLOCKS)
    return blocks.diff(n=2, dim=1).abs().flatten(1).mean(dim=1) / 2


METRICS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "sharpness": sharpness,
    "motion_smoothness": motion_smoothness,
    "temporal_flicker": temporal_flicker,
}
"""By the names that run files have for them."""


def _luma(video_BCTHW: Tensor) -> Tensor:
    """Returns the brightness, [B, T, H, W]."""
    weights = torch.tensor(_LUMA, device=video_BCTHW.device)[None, :, None, None, None]
    return (video_BCTHW.float() * weights).sum(dim=1)
