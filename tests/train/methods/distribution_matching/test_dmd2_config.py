"""The checked `method:` section of DMD2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.errors import ConfigError
from fastvideo.train.methods.distribution_matching.dmd2_config import DMD2Config
from fastvideo.train.models.flow import FlowMatchScheduler

if TYPE_CHECKING:
    from types import ModuleType


def _parse(toys: ModuleType, **changes: Any) -> DMD2Config:
    return DMD2Config.from_mapping(toys.dmd2_section(**changes), num_train_timesteps=1000)


def test_values_and_defaults(toys: ModuleType) -> None:
    """What is not given has the documented default; texts become numbers."""
    config = _parse(toys, real_score_guidance_scale=None, fake_score_betas="0.0,0.999")
    assert config.rollout_mode == "simulate"
    assert config.dmd_denoising_steps == (1000.0, 750.0, 500.0, 250.0)
    assert config.real_score_guidance_scale == 1.0
    assert not config.uses_guidance
    assert config.fake_score_betas == (0.0, 0.999)
    assert (config.min_timestep_ratio, config.max_timestep_ratio) == (0.0, 1.0)
    assert not config.warp_denoising_step
    assert not config.sync_rollout_target
    assert not config.reuse_generator_rollout


@pytest.mark.parametrize(
    ("written", "mode"),
    [("sim", "simulate"), ("Simulate", "simulate"), ("data", "data_latent"),
     ("vae_latent", "data_latent"), ("data_latent", "data_latent")],
)  # fmt: skip
def test_rollout_modes_have_several_spellings(toys: ModuleType, written: str, mode: str) -> None:
    """All of FastVideo's spellings are understood."""
    assert _parse(toys, rollout_mode=written).rollout_mode == mode


@pytest.mark.parametrize(("written", "interval"), [(None, 1), (0, 1), (-3, 1), (5, 5), ("4", 4)])
def test_the_interval_is_every_step_unless_it_is_set(
    toys: ModuleType, written: object, interval: int
) -> None:
    """A number of steps, perhaps as text; FastVideo takes 0 and less for every step."""
    config = _parse(toys, generator_update_interval=written)
    assert config.generator_update_interval == interval


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rollout_mode", None, r"method\.rollout_mode"),
        ("rollout_mode", "dream", r"method\.rollout_mode"),
        ("generator_update_interval", "often", r"method\.generator_update_interval"),
        ("fake_score_learning_rate", 1e300, "above 0 and at most"),
        ("dmd_denoising_steps", None, r"method\.dmd_denoising_steps"),
        ("dmd_denoising_steps", [], r"method\.dmd_denoising_steps"),
        ("dmd_denoising_steps", [500, 1000], "descending"),
        ("dmd_denoising_steps", [1001, 500], r"\(0, 1000\]"),
        ("dmd_denoising_steps", [500, 0], r"\(0, 1000\]"),
        ("dmd_denoising_steps", ["a"], r"method\.dmd_denoising_steps"),
        ("fake_score_learning_rate", None, r"method\.fake_score_learning_rate"),
        ("fake_score_learning_rate", 0, "above 0"),
        ("fake_score_betas", None, r"method\.fake_score_betas"),
        ("fake_score_lr_scheduler", None, r"method\.fake_score_lr_scheduler"),
        ("min_timestep_ratio", -0.1, "0 <= min <= max <= 1"),
        ("max_timestep_ratio", 1.1, "0 <= min <= max <= 1"),
        ("cfg_uncond", {"text": "nothing"}, r"method\.cfg_uncond\.text"),
        ("warp_denoising_step", "perhaps", r"method\.warp_denoising_step"),
    ],
)
def test_wrong_values_are_named(toys: ModuleType, key: str, value: object, message: str) -> None:
    """Each message names the key and what it should be."""
    with pytest.raises(ConfigError, match=message):
        _parse(toys, **{key: value})


def test_crossed_timestep_bounds_are_refused(toys: ModuleType) -> None:
    """The lower bound must not exceed the upper."""
    with pytest.raises(ConfigError, match="0 <= min <= max <= 1"):
        _parse(toys, min_timestep_ratio=0.6, max_timestep_ratio=0.5)


def test_warped_steps_are_positions_in_the_shifted_grid(toys: ModuleType) -> None:
    """Step d stands for N·s·u / (1 + (s - 1)·u) with u = d / N."""
    scheduler = FlowMatchScheduler.create(shift=8.0)
    plain = _parse(toys).sampling_timesteps(scheduler)
    warped = _parse(toys, warp_denoising_step=True).sampling_timesteps(scheduler)
    u = torch.tensor(plain) / 1000
    torch.testing.assert_close(torch.tensor(warped), 8000 * u / (1 + 7 * u))


@pytest.mark.parametrize(
    ("scale", "policy", "needed"),
    [(4.5, None, True), (1.0, None, False), (4.5, {"text": "zero"}, False),
     (4.5, {"text": "keep"}, False), (4.5, {"text": "negative_prompt"}, True)],
)  # fmt: skip
def test_the_negative_prompt_is_asked_for_only_where_it_is_used(
    toys: ModuleType, scale: float, policy: dict[str, str] | None, *, needed: bool
) -> None:
    """Encoding it is slow, so guidance of 1 and other policies go without."""
    config = _parse(toys, real_score_guidance_scale=scale, cfg_uncond=policy)
    assert config.needs_negative_prompt is needed
