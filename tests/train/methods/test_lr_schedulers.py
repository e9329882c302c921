"""Learning-rate schedules."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from fastvideo.errors import ConfigError
from fastvideo.train.config import LR_SCHEDULERS
from fastvideo.train.methods.lr_schedulers import SCHEDULES, SchedulePlan, build_lr_scheduler


def _factors(plan: SchedulePlan, steps: list[int]) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = build_lr_scheduler(optimizer, plan, where="test")
    rates = []
    for _ in range(max(steps) + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return [rates[step] for step in steps]


def test_every_name_of_the_config_has_a_schedule() -> None:
    """What a run file may name is what can be built."""
    assert set(SCHEDULES) == set(LR_SCHEDULERS)


@pytest.mark.parametrize(
    ("plan", "steps", "expected"),
    [
        (SchedulePlan("constant", 10, 4), [0, 3, 20], [1.0, 1.0, 1.0]),
        (SchedulePlan("constant_with_warmup", 10, 4), [0, 1, 4, 20], [0.0, 0.25, 1.0, 1.0]),
        (SchedulePlan("linear", 10, 2), [0, 1, 2, 6, 10, 15], [0.0, 0.5, 1.0, 0.5, 0.0, 0.0]),
        (SchedulePlan("cosine", 10), [0, 5, 10, 12], [1.0, 0.5, 0.0, 0.0]),
        (SchedulePlan("cosine", 8, 4), [2, 4, 6, 8], [0.5, 1.0, 0.5, 0.0]),
        (
            SchedulePlan("cosine_with_restarts", 8, num_cycles=2),
            [0, 2, 4, 6, 8],
            [1.0, 0.5, 1.0, 0.5, 0.0],
        ),
        (SchedulePlan("cosine_with_restarts", 8, num_cycles=0), [0, 4, 8], [1.0, 0.5, 0.0]),
        (SchedulePlan("cosine_with_min_lr", 10, min_ratio=0.2), [0, 5, 10], [1.0, 0.6, 0.2]),
        (SchedulePlan("cosine_with_min_lr", 10, min_ratio=0.0), [10], [0.0]),
        (SchedulePlan("polynomial", 10, power=2.0), [0, 5, 10], [1.0, 0.25, 0.0]),
        (
            SchedulePlan("piecewise_constant", 10, step_rules="1:2,0.5:4,0.1"),
            [0, 1, 2, 3, 4, 9],
            [1.0, 1.0, 0.5, 0.5, 0.1, 0.1],
        ),
    ],
)
def test_factors(plan: SchedulePlan, steps: list[int], expected: list[float]) -> None:
    """Each schedule has its written-out values, warm-up included."""
    assert _factors(plan, steps) == pytest.approx(expected, abs=1e-12)


def test_a_cosine_is_a_cosine() -> None:
    """Halfway values are not enough: a quarter of the way is (1 + cos(π/4)) / 2."""
    assert _factors(SchedulePlan("cosine", 8), [2]) == pytest.approx([(1 + math.sqrt(0.5)) / 2])


def test_an_unknown_name_is_an_error_with_the_nearest() -> None:
    """The message names the setting and suggests a name."""
    with pytest.raises(ConfigError, match=r"test is 'cosin'.*Did you mean 'cosine'\?"):
        _factors(SchedulePlan("cosin"), [0])


@pytest.mark.parametrize("rules", [None, "", "1:2,half", "1,0.5"])
def test_piecewise_constant_needs_rules(rules: str | None) -> None:
    """Missing and malformed rules name the key that holds them."""
    with pytest.raises(ConfigError, match=r"lr_step_rules"):
        _factors(SchedulePlan("piecewise_constant", step_rules=rules), [0])


def test_a_polynomial_of_power_zero_is_said_to_be_constant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The default lr_power is 0, so the rate would silently never fall."""
    with caplog.at_level(logging.WARNING):
        assert _factors(SchedulePlan("polynomial", 10, power=0.0), [0, 5]) == [1.0, 1.0]
    assert "lr_power 0" in caplog.text
