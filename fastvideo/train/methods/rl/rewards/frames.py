"""Rewards that look at the frames alone and need no model.

They measure one property each, and each of them is easy to please in a way nobody wants: a still
video is the smoothest one. Use them together, or beside a learned one.

Shapes: videos are [B, 3, T, H, W] in [0, 1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, final

from fastvideo.pipelines.video_metrics import sharpness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_NEIGHBOURS: Final = 2


@final
class SharpnessReward:
    """Scores detail: v / (v + half) in [0, 1), v being the variance of the Laplacian of the luma.

    The variance is that of each frame, averaged over the frames.

    Args:
        half: Variance that scores ½; photographs of ordinary sharpness have about 0.01.

    Raises:
        ValueError: ``half`` is not above 0.
    """

    def __init__(self, half: Annotated[float, {"allowed": "above 0"}] = 0.01) -> None:
        if not half > 0:
            message = f"method.rewards: half of SharpnessReward must be above 0, got {half!r}"
            raise ValueError(message)
        self.half = float(half)

    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        """Scores each video; see :class:`~fastvideo.train.methods.rl.rewards.reward.Reward`."""
        del prompts
        variance = sharpness(videos)
        return variance / (variance + self.half)


@final
class MotionSmoothnessReward:
    """Scores motion that goes on evenly, in [0, 1].

    1 - mean |f_t - ½·(f_{t-1} + f_{t+1})|, the distance of each frame from the middle of its
    neighbours. A video of fewer than three frames scores 1.
    """

    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        """Scores each video; see :class:`~fastvideo.train.methods.rl.rewards.reward.Reward`."""
        del prompts
        frames = videos.float()
        if frames.shape[2] <= _NEIGHBOURS:
            return frames.new_ones(frames.shape[0])
        middle = (frames[:, :, :-2] + frames[:, :, 2:]) / _NEIGHBOURS
        return 1 - (frames[:, :, 1:-1] - middle).abs().flatten(1).mean(dim=1)


@final
class TemporalFlickerReward:
    """Scores videos whose frames resemble the one before, in [0, 1]: 1 - mean |f_t - f_{t-1}|.

    A single frame scores 1.
    """

    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        """Scores each video; see :class:`~fastvideo.train.methods.rl.rewards.reward.Reward`."""
        del prompts
        frames = videos.float()
        if frames.shape[2] == 1:
            return frames.new_ones(frames.shape[0])
        return 1 - frames.diff(dim=2).abs().flatten(1).mean(dim=1)
