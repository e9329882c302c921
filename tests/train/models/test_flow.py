"""The algebra of rectified flow, and the densities of timesteps."""

from __future__ import annotations

import math

import pytest
import torch

from fastvideo.errors import ConfigError
from fastvideo.train.models.flow import (
    FlowMatchScheduler,
    TimestepWeighting,
    clean_from_velocity,
    expand_timestep,
    interpolate,
    sample_timesteps,
    shift_sigma,
    sigma_of,
    unshift_sigma,
)


def test_shifting_follows_its_formula_and_is_inverted() -> None:
    """The ends stay where they are, and shift 1 changes nothing."""
    assert shift_sigma(0.5, 3.0) == 1.5 / 2.0
    assert (shift_sigma(0.0, 8.0), shift_sigma(1.0, 8.0)) == (0.0, 1.0)
    assert shift_sigma(0.3, 1.0) == 0.3
    levels = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(unshift_sigma(shift_sigma(levels, 8.0), 8.0), levels)


def test_the_grid_descends_from_pure_noise() -> None:
    """N points, timesteps are N·sigma, and the last is the shifted 1/N."""
    scheduler = FlowMatchScheduler.create(shift=3.0)
    assert scheduler.num_train_timesteps == len(scheduler.timesteps) == 1000
    assert scheduler.timesteps[0].item() == 1000
    assert (scheduler.timesteps.diff() < 0).all()
    torch.testing.assert_close(scheduler.sigmas * 1000, scheduler.timesteps)
    assert scheduler.sigmas[-1].item() == pytest.approx(0.003 / 1.002)
    assert scheduler.sigmas[500].item() == pytest.approx(0.75)


@pytest.mark.parametrize("shift", [0.0, -1.0, math.nan, math.inf])
def test_a_shift_that_is_no_positive_number_is_an_error(shift: float) -> None:
    """The message names the key."""
    with pytest.raises(ConfigError, match="flow_shift must be a positive number"):
        FlowMatchScheduler.create(shift=shift)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.tensor(5.0), [[5, 5, 5], [5, 5, 5]]),
        (torch.tensor([5.0]), [[5, 5, 5], [5, 5, 5]]),
        (torch.tensor([1.0, 2.0]), [[1, 1, 1], [2, 2, 2]]),
        (torch.tensor([[1.0, 2, 3], [4, 5, 6]]), [[1, 2, 3], [4, 5, 6]]),
        (torch.tensor([1.0, 2, 3, 4, 5, 6]), [[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_the_four_shapes_of_a_timestep(given: torch.Tensor, expected: list[list[float]]) -> None:
    """One for all, per sample, per sample and frame, and that flattened."""
    assert expand_timestep(given, (2, 3)).tolist() == expected


@pytest.mark.parametrize("shape", [(3,), (4,), (3, 2), (2, 1), (2, 3, 1)])
def test_any_other_shape_is_an_error(shape: tuple[int, ...]) -> None:
    """In particular one timestep per frame without a sample is refused, not guessed at."""
    with pytest.raises(ValueError, match=r"\[1\], \[2\], \[2, 3\] or \[6\]"):
        expand_timestep(torch.ones(shape), (2, 3))


def test_sigma_is_exactly_t_over_n() -> None:
    """No table stands between a timestep and its noise level."""
    latents = torch.zeros(2, 3, 1, 1, 1)
    sigma = sigma_of(torch.tensor([1.0, 757.0]), latents, 1000)
    assert sigma.dtype == torch.float64
    assert sigma[:, 0].flatten().tolist() == [0.001, 0.757]
    with pytest.raises(ValueError, match=r"\[B, T, C, H, W\]"):
        sigma_of(torch.tensor([1.0]), torch.zeros(2, 3), 1000)


def test_noising_and_the_clean_prediction_are_inverse() -> None:
    """With v = ε - x₀ the clean latents come back, per sample and frame, in float32."""
    clean, noise = torch.randn(2, 2, 3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    sigma = sigma_of(torch.tensor([[10.0, 900.0, 1000.0], [1.0, 500.0, 250.0]]), clean, 1000)
    noisy = interpolate(clean, noise, sigma)
    torch.testing.assert_close(noisy[0, 2], noise[0, 2])
    torch.testing.assert_close(noisy[1, 1], (clean[1, 1] + noise[1, 1]) / 2)
    torch.testing.assert_close(clean_from_velocity(noisy, noise - clean, sigma), clean)


def test_half_precision_is_widened_inside() -> None:
    """Results have the dtype of the input, but the arithmetic does not."""
    clean = torch.full((1, 1, 1, 1, 1), 1.0, dtype=torch.bfloat16)
    noise = torch.full_like(clean, 1.0)
    sigma = sigma_of(torch.tensor([1.0]), clean, 1000)
    assert interpolate(clean, noise, sigma).dtype == torch.bfloat16
    assert interpolate(clean, noise, sigma).item() == 1.0
    velocity = torch.full((1, 1, 1, 1, 1), 1.0, dtype=torch.bfloat16)
    assert clean_from_velocity(clean.float(), velocity, sigma).dtype == torch.bfloat16


def test_uniform_timesteps_cover_the_grid_evenly() -> None:
    """They are grid points, and their positions have the mean and spread of a uniform law."""
    scheduler = FlowMatchScheduler.create(shift=3.0)
    generator = torch.Generator().manual_seed(0)
    drawn = sample_timesteps(scheduler, TimestepWeighting(), 4000, generator=generator)
    assert torch.isin(drawn, scheduler.timesteps).all()
    u = unshift_sigma(drawn / 1000, 3.0)
    assert u.mean().item() == pytest.approx(0.5, abs=0.02)
    assert u.std().item() == pytest.approx(1 / math.sqrt(12), abs=0.02)


def test_logit_normal_follows_its_mean_and_standard_deviation() -> None:
    """The logit of u is normal."""
    weighting = TimestepWeighting("logit_normal", logit_mean=0.5, logit_std=0.7)
    u = weighting.sample(4000, generator=torch.Generator().manual_seed(0))
    logit = torch.logit(u)
    assert logit.mean().item() == pytest.approx(0.5, abs=0.05)
    assert logit.std().item() == pytest.approx(0.7, abs=0.05)


def test_mode_follows_its_formula() -> None:
    """Drawn from one uniform number: 1 - u - s·(cos²(πu/2) - 1 + u)."""
    drawn = TimestepWeighting("mode", mode_scale=1.29).sample(
        50, generator=torch.Generator().manual_seed(0)
    )
    u = torch.rand(50, generator=torch.Generator().manual_seed(0))
    expected = 1 - u - 1.29 * (torch.cos(math.pi * u / 2) ** 2 - 1 + u)
    torch.testing.assert_close(drawn, expected)
    assert drawn.min() >= 0
    assert drawn.max() <= 1


def test_the_largest_position_stays_inside_the_grid() -> None:
    """A logit-normal u may round to 1, which is no index."""
    weighting = TimestepWeighting("logit_normal", logit_mean=100.0)
    scheduler = FlowMatchScheduler.create(shift=1.0)
    drawn = sample_timesteps(scheduler, weighting, 3, generator=torch.Generator().manual_seed(0))
    assert drawn.tolist() == [1.0, 1.0, 1.0]


def test_an_unknown_density_is_an_error() -> None:
    """The message names the key and the nearest value."""
    with pytest.raises(ConfigError, match=r"weighting_scheme is 'logit_norm'.*Did you mean"):
        TimestepWeighting("logit_norm")
