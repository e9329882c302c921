"""The `method:` section of DMD2, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError
from fastvideo.train.config import LARGEST_RATE, LR_SCHEDULERS
from fastvideo.train.models.conditioning import parse_unconditional_policy
from fastvideo.train.options import (
    get_optional_float,
    get_optional_int,
    parse_betas,
    require_bool,
    require_choice,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.train.models.flow import FlowMatchScheduler

_WHERE: Final = "method"
_ROLLOUT_MODES: Final = {
    "simulate": "simulate",
    "sim": "simulate",
    "data_latent": "data_latent",
    "data": "data_latent",
    "vae_latent": "data_latent",
}


@dataclass(frozen=True, slots=True)
class DMD2Config:
    """What DMD2 is told. Attribute names are the YAML keys below `method`, see `DMD2_KEYS`.

    Attributes:
        rollout_mode: `simulate` samples from noise with the student; `data_latent` noises data.
        dmd_denoising_steps: Timesteps of the student's sampler, such as `[1000, 750, 500, 250]`.
        generator_update_interval: Steps from one update of the student to the next, 0 and less
            being every step; the critic is updated in every step.
        real_score_guidance_scale: Guidance scale s of the teacher; 1 is no guidance.
        fake_score_learning_rate: Peak learning rate of the critic.
        fake_score_betas: AdamW betas of the critic.
        fake_score_lr_scheduler: Schedule of the critic.
        min_timestep_ratio: Lowest timestep at which scores are compared, as a fraction of N = 1000.
        max_timestep_ratio: Highest timestep at which scores are compared, likewise.
        warp_denoising_step: Read the denoising steps as positions in the student's shifted grid.
        cfg_uncond: What stands for "no prompt" in the teacher's guidance, by input.
        needs_negative_prompt: Whether guidance needs the embedding of a negative prompt.
        sync_rollout_target: All ranks end their rollout at the step that rank 0 drew.
        reuse_generator_rollout: On update steps the critic learns from the student's own rollout
            instead of a second one: faster, with other random numbers.
        batch_teacher_guidance: The teacher predicts with and without the prompt in one call of
            twice the batch: fewer, larger kernels for more memory.
        lr_step_rules: Rules of a `piecewise_constant` schedule of the student: factors of the peak
            rate, each up to a step, and the last one, such as `"1:1000,0.5:2000,0.1"`.
        fake_score_lr_step_rules: The same for the critic.
    """

    rollout_mode: str = field(metadata={"allowed": tuple(dict.fromkeys(_ROLLOUT_MODES.values()))})
    dmd_denoising_steps: tuple[float, ...] = field(
        metadata={"allowed": "descending, above 0, at most 1000"}
    )
    generator_update_interval: int = field(metadata={"unit": "steps"})
    real_score_guidance_scale: float
    fake_score_learning_rate: float = field(metadata={"allowed": "above 0"})
    fake_score_betas: tuple[float, float] = field(metadata={"allowed": "each from 0 to below 1"})
    fake_score_lr_scheduler: str = field(metadata={"allowed": LR_SCHEDULERS})
    min_timestep_ratio: float = field(metadata={"allowed": "0 to `max_timestep_ratio`"})
    max_timestep_ratio: float = field(metadata={"allowed": "`min_timestep_ratio` to 1"})
    warp_denoising_step: bool
    cfg_uncond: Mapping[str, Any] | None
    needs_negative_prompt: bool
    sync_rollout_target: bool
    reuse_generator_rollout: bool
    batch_teacher_guidance: bool
    lr_step_rules: str | None
    fake_score_lr_step_rules: str | None

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any], *, num_train_timesteps: int) -> DMD2Config:
        """Checks the section.

        Args:
            method: The run's `method:` mapping.
            num_train_timesteps: N.

        Raises:
            ConfigError: A key is missing or its value cannot be used; the message names it.
        """
        mode = require_choice(method, "rollout_mode", tuple(_ROLLOUT_MODES), where=_WHERE)
        scale = get_optional_float(method, "real_score_guidance_scale", default=1.0, where=_WHERE)
        low, high = _timestep_ratios(method)
        cfg_uncond = method.get("cfg_uncond")
        policy = parse_unconditional_policy(cfg_uncond)
        guidance = 1.0 if scale is None else scale
        return cls(
            rollout_mode=_ROLLOUT_MODES[mode],
            dmd_denoising_steps=_denoising_steps(method, num_train_timesteps),
            generator_update_interval=_interval(method),
            real_score_guidance_scale=guidance,
            fake_score_learning_rate=_fake_score_learning_rate(method),
            fake_score_betas=parse_betas(method, "fake_score_betas", where=_WHERE),
            fake_score_lr_scheduler=_text(method, "fake_score_lr_scheduler"),
            min_timestep_ratio=low,
            max_timestep_ratio=high,
            warp_denoising_step=_flag(method, "warp_denoising_step"),
            cfg_uncond=cfg_uncond,
            needs_negative_prompt=guidance != 1.0 and policy.needs_negative_prompt,
            sync_rollout_target=_flag(method, "sync_rollout_target"),
            reuse_generator_rollout=_flag(method, "reuse_generator_rollout"),
            batch_teacher_guidance=_flag(method, "batch_teacher_guidance"),
            lr_step_rules=method.get("lr_step_rules"),
            fake_score_lr_step_rules=method.get("fake_score_lr_step_rules"),
        )

    @property
    def uses_guidance(self) -> bool:
        """Whether the teacher's unconditional prediction has any weight."""
        return self.real_score_guidance_scale != 1.0

    def sampling_timesteps(self, scheduler: FlowMatchScheduler) -> tuple[float, ...]:
        """Returns the timesteps of the student's sampler.

        Args:
            scheduler: The student's grid, which warped steps are positions in: step d stands for
                the grid's entry N - d.
        """
        if not self.warp_denoising_step:
            return self.dmd_denoising_steps
        grid = scheduler.timesteps.tolist()
        return tuple(grid[len(grid) - max(1, round(step))] for step in self.dmd_denoising_steps)


DMD2_KEYS: Final = frozenset(f.name for f in fields(DMD2Config)) - {"needs_negative_prompt"}
"""The keys that the section may have; the one left out follows from others."""


def _flag(method: Mapping[str, Any], key: str) -> bool:
    return require_bool(method, key, default=False, where=_WHERE)


def _text(method: Mapping[str, Any], key: str) -> str:
    value = method.get(key)
    if not isinstance(value, str) or not value.strip():
        message = f"{_WHERE}.{key} is required for DMD2, got {value!r}"
        raise ConfigError(message)
    return value.strip().lower()


def _interval(method: Mapping[str, Any]) -> int:
    """Returns the interval; 0 and less mean every step, as in FastVideo."""
    given = get_optional_int(method, "generator_update_interval", default=1, where=_WHERE)
    return max(1, given or 1)


def _fake_score_learning_rate(method: Mapping[str, Any]) -> float:
    rate = get_optional_float(method, "fake_score_learning_rate", where=_WHERE)
    if rate is None or not 0 < rate <= LARGEST_RATE:
        message = (
            f"{_WHERE}.fake_score_learning_rate is {rate!r}; DMD2 trains the critic, which needs a "
            f"learning rate above 0 and at most {LARGEST_RATE:g}"
        )
        raise ConfigError(message)
    return rate


def _timestep_ratios(method: Mapping[str, Any]) -> tuple[float, float]:
    low = get_optional_float(method, "min_timestep_ratio", default=0.0, where=_WHERE)
    high = get_optional_float(method, "max_timestep_ratio", default=1.0, where=_WHERE)
    if low is None or high is None or not 0.0 <= low <= high <= 1.0:
        message = (
            f"{_WHERE}.min_timestep_ratio ({low}) and {_WHERE}.max_timestep_ratio ({high}) must "
            "satisfy 0 <= min <= max <= 1"
        )
        raise ConfigError(message)
    return low, high


def _denoising_steps(method: Mapping[str, Any], num_train_timesteps: int) -> tuple[float, ...]:
    given = method.get("dmd_denoising_steps")
    steps = given if isinstance(given, list | tuple) else ()
    numbers = [float(s) for s in steps if isinstance(s, int | float) and not isinstance(s, bool)]
    descending = all(a > b for a, b in pairwise(numbers))
    inside = all(math.isfinite(n) and 0 < n <= num_train_timesteps for n in numbers)
    if not numbers or len(numbers) != len(steps) or not descending or not inside:
        message = (
            f"{_WHERE}.dmd_denoising_steps must be a list of descending timesteps in "
            f"(0, {num_train_timesteps}], such as [1000, 750, 500, 250]; got {given!r}"
        )
        raise ConfigError(message)
    return tuple(numbers)
