"""The optimizer and schedule of one role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import AdamW

from fastvideo.errors import ConfigError
from fastvideo.train.methods.lr_schedulers import (
    SchedulePlan,
    build_lr_scheduler,
    check_plan,
)

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from fastvideo.train.config import OptimizerConfig
    from fastvideo.train.models.base import ModelBase


def build_role_optimizer(
    model: ModelBase,
    *,
    learning_rate: float,
    betas: tuple[float, float],
    weight_decay: float,
    plan: SchedulePlan,
    where: str,
) -> tuple[AdamW, LRScheduler]:
    """Returns AdamW over a role's trainable parameters, and its schedule.

    Args:
        model: The role.
        learning_rate: Peak rate, above 0.
        betas: AdamW betas.
        weight_decay: Decoupled weight decay.
        plan: The schedule.
        where: Setting the rate comes from, such as ``training.optimizer.learning_rate``.

    Raises:
        ConfigError: The rate is not above 0, nothing is trainable, or the schedule is unknown.
    """
    check_optimizer(learning_rate, plan, where=where)
    parameters = [p for p in model.transformer.parameters() if p.requires_grad]
    if not parameters:
        message = f"{where} is set, but its model has no trainable parameter; check its `trainable`"
        raise ConfigError(message)
    optimizer = AdamW(parameters, lr=learning_rate, betas=betas, weight_decay=weight_decay)
    return optimizer, build_lr_scheduler(optimizer, plan, where=_schedule_of(where))


def check_optimizer(learning_rate: float, plan: SchedulePlan, *, where: str) -> None:
    """Refuses what :func:`build_role_optimizer` refuses of settings, without a model.

    Args:
        learning_rate: Peak rate.
        plan: The schedule.
        where: Setting the rate comes from, such as ``training.optimizer.learning_rate``.

    Raises:
        ConfigError: The rate is not above 0, or the schedule is unknown or lacks its rules.
    """
    if not learning_rate > 0:
        message = f"{where} is {learning_rate!r}; training needs a learning rate above 0"
        raise ConfigError(message)
    check_plan(plan, where=_schedule_of(where))


def _schedule_of(where: str) -> str:
    return f"{where.rpartition('.')[0]}: lr_scheduler"


def schedule_plan(
    config: OptimizerConfig, *, name: str | None = None, num_steps: int, step_rules: str | None
) -> SchedulePlan:
    """Returns the plan of ``training.optimizer`` over ``num_steps`` optimizer steps.

    Args:
        config: Warm-up, cycles, power and lowest ratio.
        name: Schedule, if not that of ``config``.
        num_steps: Optimizer steps the schedule spans.
        step_rules: Rules of `piecewise_constant`.
    """
    return SchedulePlan(
        name=config.lr_scheduler if name is None else name,
        num_steps=num_steps,
        warmup_steps=config.lr_warmup_steps,
        num_cycles=config.lr_num_cycles,
        power=config.lr_power,
        min_ratio=config.min_lr_ratio,
        step_rules=step_rules,
    )
