"""Rewards: what scores decoded videos."""

from __future__ import annotations

from fastvideo.train.methods.rl.rewards.clip_score import CLIPScoreReward
from fastvideo.train.methods.rl.rewards.frames import (
    MotionSmoothnessReward,
    SharpnessReward,
    TemporalFlickerReward,
)
from fastvideo.train.methods.rl.rewards.reward import Reward
from fastvideo.train.methods.rl.rewards.weighted import WeightedRewards

__all__ = [
    "CLIPScoreReward",
    "MotionSmoothnessReward",
    "Reward",
    "SharpnessReward",
    "TemporalFlickerReward",
    "WeightedRewards",
]
