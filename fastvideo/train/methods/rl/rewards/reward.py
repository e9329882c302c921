"""What a reward is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Reward(Protocol):
    """Anything that can score videos; the higher the better.

    A reward of a run is named in ``method.rewards`` by its ``_target_``; its other keys are
    arguments of the constructor.
    """

    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        """Scores each video.

        Args:
            videos: Frames [B, 3, T, H, W] in [0, 1], float32, on the student's device.
            prompts: The text that each video was made from.

        Returns:
            Finite scores [B].
        """
        ...
