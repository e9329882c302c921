"""The `method:` section of DiffusionNFT, checked."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError
from fastvideo.train.models.conditioning import parse_unconditional_policy
from fastvideo.train.options import (
    require_non_negative_float,
    require_positive_int,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHERE: Final = "method"
_SMALLEST_GROUP: Final = 2


@dataclass(frozen=True, slots=True)
class NFTConfig:
    """What DiffusionNFT is told. Attribute names are the YAML keys, see `NFT_KEYS`.

    Attributes:
        sampling_steps: Steps of the sampler that makes the videos to score.
        guidance_scale: Guidance scale of that sampler; 1 is no guidance.
        num_batches_per_epoch: Prompt batches per step and rank.
        samples_per_prompt: Videos of each prompt, which are compared with each other.
        timestep_fraction: Part of the sampler's timesteps that each video is trained at.
        num_inner_epochs: Optimizer steps on the videos of one step.
        beta: How far positive and negative velocities are from the old one.
        adv_clip_max: Bound c of advantages, which are clipped to [-c, c].
        kl_beta: Weight of the distance to the reference.
        max_grad_norm: Largest norm of the gradients; 0 does not clip.
        old_decay_rate: The old policy keeps rate x step of itself after a step, up to
            `old_decay_max`.
        old_decay_max: Largest part of itself that the old policy keeps after a step.
        ema_decay: Decay of the moving average of the student; 0 keeps none.
        decode_batch_size: Videos that are decoded and scored at once.
        cfg_uncond: What stands for "no prompt" in guidance, by input.
        needs_negative_prompt: Whether guidance needs the embedding of a negative prompt.
        lr_step_rules: Rules of a `piecewise_constant` schedule: factors of the peak rate, each up
            to a step, and the last one, such as `"1:1000,0.5:2000,0.1"`.
    """

    sampling_steps: int = field(metadata={"allowed": "at least 1", "unit": "steps"})
    guidance_scale: float = field(metadata={"allowed": "at least 0"})
    num_batches_per_epoch: int = field(metadata={"allowed": "at least 1", "unit": "batches"})
    samples_per_prompt: int = field(metadata={"allowed": "at least 2", "unit": "videos"})
    timestep_fraction: float = field(metadata={"allowed": "above 0, at most 1"})
    num_inner_epochs: int = field(metadata={"allowed": "at least 1", "unit": "steps"})
    beta: float = field(metadata={"allowed": "above 0"})
    adv_clip_max: float = field(metadata={"allowed": "above 0"})
    kl_beta: float = field(metadata={"allowed": "at least 0"})
    max_grad_norm: float = field(metadata={"allowed": "at least 0"})
    old_decay_rate: float = field(metadata={"allowed": "at least 0"})
    old_decay_max: float = field(metadata={"allowed": "from 0 to below 1"})
    ema_decay: float = field(metadata={"allowed": "from 0 to below 1"})
    decode_batch_size: int = field(metadata={"allowed": "at least 1", "unit": "videos"})
    cfg_uncond: Mapping[str, Any] | None
    needs_negative_prompt: bool
    lr_step_rules: str | None

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any]) -> NFTConfig:
        """Checks the section.

        Raises:
            ConfigError: A value cannot be used; the message names its key.
        """
        guidance = _at_least_zero(method, "guidance_scale", 1.0)
        policy = parse_unconditional_policy(method.get("cfg_uncond"))
        config = cls(
            sampling_steps=_count(method, "sampling_steps", 10),
            guidance_scale=guidance,
            num_batches_per_epoch=_count(method, "num_batches_per_epoch", 1),
            samples_per_prompt=_count(method, "samples_per_prompt", 4),
            timestep_fraction=_at_least_zero(method, "timestep_fraction", 1.0),
            num_inner_epochs=_count(method, "num_inner_epochs", 1),
            beta=_at_least_zero(method, "beta", 1.0),
            adv_clip_max=_at_least_zero(method, "adv_clip_max", 5.0),
            kl_beta=_at_least_zero(method, "kl_beta", 1e-4),
            max_grad_norm=_at_least_zero(method, "max_grad_norm", 1.0),
            old_decay_rate=_at_least_zero(method, "old_decay_rate", 0.001),
            old_decay_max=_at_least_zero(method, "old_decay_max", 0.5),
            ema_decay=_at_least_zero(method, "ema_decay", 0.0),
            decode_batch_size=_count(method, "decode_batch_size", 1),
            cfg_uncond=method.get("cfg_uncond"),
            needs_negative_prompt=guidance != 1.0 and policy.needs_negative_prompt,
            lr_step_rules=method.get("lr_step_rules"),
        )
        _check_ranges(config)
        return config

    @property
    def uses_guidance(self) -> bool:
        """Whether the sampler's unconditional prediction has any weight."""
        return self.guidance_scale != 1.0

    @property
    def num_train_timesteps(self) -> int:
        """Timesteps that each video is trained at in an inner epoch."""
        return max(1, int(self.sampling_steps * self.timestep_fraction))

    def old_decay(self, iteration: int) -> float:
        """Returns the part of itself that the old policy keeps after a step."""
        return min(self.old_decay_max, self.old_decay_rate * iteration)


NFT_KEYS: Final = (frozenset(f.name for f in fields(NFTConfig)) | {"rewards"}) - {
    "needs_negative_prompt"
}
"""The keys that the section may have; the one left out follows from others."""


def _count(method: Mapping[str, Any], key: str, default: int) -> int:
    return require_positive_int(method, key, default=default, where=_WHERE)


def _at_least_zero(method: Mapping[str, Any], key: str, default: float) -> float:
    return require_non_negative_float(method, key, default=default, where=_WHERE)


def _check_ranges(config: NFTConfig) -> None:
    problems = {
        "samples_per_prompt": (
            config.samples_per_prompt < _SMALLEST_GROUP,
            "must be at least 2: videos of one prompt are compared with each other",
        ),
        "timestep_fraction": (
            not 0 < config.timestep_fraction <= 1,
            "must be above 0 and at most 1",
        ),
        "beta": (config.beta == 0, "must be above 0"),
        "adv_clip_max": (config.adv_clip_max == 0, "must be above 0"),
        "old_decay_max": (config.old_decay_max >= 1, "must be below 1: the old policy must follow"),
        "ema_decay": (config.ema_decay >= 1, "must be below 1"),
    }
    for key, (is_wrong, problem) in problems.items():
        if is_wrong:
            message = f"{_WHERE}.{key} is {getattr(config, key)!r}; it {problem}"
            raise ConfigError(message)
