"""The optimizer of one role."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.config import OptimizerConfig
from fastvideo.train.methods.lr_schedulers import SchedulePlan
from fastvideo.train.methods.optimizers import build_role_optimizer, schedule_plan

if TYPE_CHECKING:
    from types import ModuleType


def test_only_trainable_parameters_are_optimised(toys: ModuleType) -> None:
    """Frozen parameters of a trainable role stay out; settings reach AdamW."""
    model = toys.ToyModel(toys.LinearNet(0.0, 0.0, 0.0))
    model.transformer.bias.requires_grad_(False)
    optimizer, scheduler = build_role_optimizer(
        model,
        learning_rate=0.5,
        betas=(0.0, 0.9),
        weight_decay=0.25,
        plan=SchedulePlan("constant_with_warmup", warmup_steps=2),
        where="training.optimizer.learning_rate",
    )
    group = optimizer.param_groups[0]
    assert group["params"] == [model.transformer.weight, model.transformer.prompt]
    assert group["betas"] == (0.0, 0.9)
    assert group["weight_decay"] == 0.25
    assert scheduler.get_last_lr() == [0.0]
    assert group["initial_lr"] == 0.5


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_trains_nothing_is_an_error(toys: ModuleType, rate: float) -> None:
    """The message names the setting."""
    with pytest.raises(ConfigError, match=r"training\.optimizer\.learning_rate"):
        build_role_optimizer(
            toys.ToyModel(toys.LinearNet(0.0, 0.0, 0.0)),
            learning_rate=rate,
            betas=(0.9, 0.999),
            weight_decay=0.0,
            plan=SchedulePlan("constant"),
            where="training.optimizer.learning_rate",
        )


def test_a_role_without_trainable_parameters_is_an_error(toys: ModuleType) -> None:
    """AdamW's own message would not say which role."""
    with pytest.raises(ConfigError, match="no trainable parameter"):
        build_role_optimizer(
            toys.ToyModel(toys.LinearNet(0.0, 0.0, 0.0), trainable=False),
            learning_rate=1.0,
            betas=(0.9, 0.999),
            weight_decay=0.0,
            plan=SchedulePlan("constant"),
            where="x",
        )


def test_a_plan_takes_its_numbers_from_the_config() -> None:
    """An explicit min_lr_ratio of 0 stays 0, and another name replaces the config's."""
    config = OptimizerConfig(
        lr_scheduler="linear", lr_warmup_steps=3, lr_num_cycles=2, lr_power=0.5, min_lr_ratio=0.0
    )
    plan = schedule_plan(config, num_steps=9, step_rules="1")
    assert plan == SchedulePlan("linear", 9, 3, 2, 0.5, 0.0, "1")
    assert schedule_plan(config, name="cosine", num_steps=9, step_rules=None).name == "cosine"
