"""Several rewards as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import torch

from fastvideo.errors import ConfigError
from fastvideo.train.instantiate import TARGET, instantiate
from fastvideo.train.options import as_mapping, require_non_negative_float

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fastvideo.train.methods.rl.rewards.reward import Reward

AVERAGE: Final = "avg"
"""Name of the weighted mean of all rewards, which is what is learned from."""

_WEIGHT: Final = "weight"


@final
class WeightedRewards:
    """Scores with several rewards, and with their weighted mean.

    Args:
        rewards: The rewards by name.
        weights: Share in the weighted mean that is learned from, by name; not all 0. A reward with
            0 is scored for the metrics alone.
    """

    def __init__(self, rewards: Mapping[str, Reward], weights: Mapping[str, float]) -> None:
        self.rewards = dict(rewards)
        self.weights = dict(weights)

    @classmethod
    def from_mapping(cls, section: object, *, where: str = "method.rewards") -> WeightedRewards:
        """Builds the rewards of a run.

        Args:
            section: Name → ``_target_``, ``weight`` (1) and the arguments of the target; or null to
                leave one out. A weight of 0 scores for the metrics alone.
            where: YAML path of the section, for messages.

        Raises:
            ConfigError: There is no reward, one has no ``_target_`` or no ``score``, a name is
                taken, or the weights are all 0.
        """
        specs, weights = check_rewards(section, where=where)
        rewards = {name: _build(spec, f"{where}.{name}") for name, spec in specs.items()}
        return cls(rewards, weights)

    @torch.no_grad()
    def score(self, videos: Tensor, prompts: Sequence[str]) -> dict[str, Tensor]:
        """Scores each video.

        Args:
            videos: Frames [B, 3, T, H, W] in [0, 1].
            prompts: The text that each video was made from.

        Returns:
            Scores [B] in float64 on the CPU, by name, and their weighted mean ``avg``.

        Raises:
            ValueError: A reward returned something else than a score per video.
        """
        scores: dict[str, Tensor] = {}
        for name, reward in self.rewards.items():
            score = torch.as_tensor(reward.score(videos, prompts))
            if score.shape != videos.shape[:1]:
                message = (
                    f"method.rewards.{name} returned scores of shape {list(score.shape)} for "
                    f"{videos.shape[0]} videos; expected [{videos.shape[0]}]"
                )
                raise ValueError(message)
            scores[name] = score.detach().double().cpu()
        total = sum(self.weights.values())
        weighted = [self.weights[name] * score for name, score in scores.items()]
        scores[AVERAGE] = torch.stack(weighted).sum(dim=0) / total
        return scores


def check_rewards(
    section: object, *, where: str = "method.rewards"
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """Checks the section without building a reward.

    Args:
        section: As for :meth:`WeightedRewards.from_mapping`.
        where: YAML path of the section, for messages.

    Returns:
        What each reward is built from, and the weights, by name.

    Raises:
        ConfigError: There is no reward, one has no ``_target_``, a name is taken, or the weights
            are all 0.
    """
    given = {} if section is None else as_mapping(section, where=where)
    specs: dict[str, dict[str, Any]] = {}
    weights: dict[str, float] = {}
    for name, value in given.items():
        if value is None:
            continue
        path = f"{where}.{name}"
        spec = as_mapping(value, where=path)
        weights[name] = require_non_negative_float(spec, _WEIGHT, default=1.0, where=path)
        spec.pop(_WEIGHT, None)
        if name == AVERAGE or TARGET not in spec:
            problem = (
                f"the name {AVERAGE!r} is taken by the weighted mean"
                if name == AVERAGE
                else f"{TARGET} is missing"
            )
            message = f"{path}: {problem}"
            raise ConfigError(message)
        specs[name] = spec
    if not specs or not sum(weights.values()) > 0:
        message = (
            f"{where} must name at least one reward with a weight above 0, such as "
            f"{{sharpness: {{{TARGET}: fastvideo.train.methods.rl.rewards.SharpnessReward}}}}; "
            f"got {section!r}"
        )
        raise ConfigError(message)
    return specs, weights


def _build(spec: dict[str, Any], path: str) -> Reward:
    reward: Reward = instantiate(spec)
    if not callable(getattr(reward, "score", None)):
        message = f"{path}: {spec[TARGET]} makes a {type(reward).__name__}, which has no score()"
        raise ConfigError(message)
    return reward
