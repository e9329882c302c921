"""Learning-rate schedules by name: factors on the peak rate, one per optimizer step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import LambdaLR

from fastvideo.errors import ConfigError, did_you_mean
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

logger = init_logger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What a schedule is made of.

    Attributes:
        name: One of :data:`SCHEDULES`.
        num_steps: Optimizer steps the schedule spans, warm-up included.
        warmup_steps: Steps of linear warm-up from 0.
        num_cycles: Restarts of `cosine_with_restarts`; less than 1 means 1.
        power: Power of `polynomial`.
        min_ratio: Lowest factor of `cosine_with_min_lr`.
        step_rules: Rules of `piecewise_constant`: `"1:1000,0.5:2000,0.1"` keeps the peak rate
            for steps below 1000, half of it below 2000, and a tenth from then on.
    """

    name: str
    num_steps: int = 0
    warmup_steps: int = 0
    num_cycles: int = 1
    power: float = 1.0
    min_ratio: float = 0.0
    step_rules: str | None = None

    def progress(self, step: int) -> float:
        """Returns the share in [0, 1] of the schedule after the warm-up that is over."""
        span = max(1, self.num_steps - self.warmup_steps)
        return min(1.0, max(0, step - self.warmup_steps) / span)


def build_lr_scheduler(optimizer: Optimizer, plan: SchedulePlan, *, where: str) -> LambdaLR:
    """Returns the scheduler of ``plan`` over ``optimizer``.

    Args:
        optimizer: Its current rates are the peak rates.
        plan: Name and numbers.
        where: Setting the name comes from, for messages.

    Raises:
        ConfigError: The name is unknown, or `piecewise_constant` has no valid rules.
    """
    check_plan(plan, where=where)
    decay = _SCHEDULES[plan.name]
    if plan.name == "polynomial" and plan.power == 0:
        logger.warning("%s is polynomial with lr_power 0, so the rate never falls", where)
    if plan.name == "piecewise_constant":
        return LambdaLR(optimizer, _piecewise(plan, where))
    warmup = 0 if plan.name == "constant" else plan.warmup_steps

    def factor(step: int) -> float:
        return step / warmup if step < warmup else decay(plan, step)

    return LambdaLR(optimizer, factor)


def check_plan(plan: SchedulePlan, *, where: str) -> None:
    """Refuses a schedule that cannot be built.

    Args:
        plan: Name and numbers.
        where: Setting the name comes from, for messages.

    Raises:
        ConfigError: The name is unknown, or `piecewise_constant` has no valid rules.
    """
    if plan.name not in _SCHEDULES:
        message = (
            f"{where} is {plan.name!r}; expected one of {', '.join(_SCHEDULES)}."
            f"{did_you_mean(plan.name, _SCHEDULES)}"
        )
        raise ConfigError(message)
    if plan.name == "piecewise_constant":
        _piecewise(plan, where)


def _constant(plan: SchedulePlan, step: int) -> float:
    del plan, step
    return 1.0


def _linear(plan: SchedulePlan, step: int) -> float:
    return 1.0 - plan.progress(step)


def _cosine(plan: SchedulePlan, step: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * plan.progress(step)))


def _cosine_with_restarts(plan: SchedulePlan, step: int) -> float:
    progress = plan.progress(step)
    if progress >= 1.0:
        return 0.0
    return 0.5 * (1.0 + math.cos(math.pi * ((max(1, plan.num_cycles) * progress) % 1.0)))


def _cosine_with_min_lr(plan: SchedulePlan, step: int) -> float:
    return plan.min_ratio + (1.0 - plan.min_ratio) * _cosine(plan, step)


def _polynomial(plan: SchedulePlan, step: int) -> float:
    return float((1.0 - plan.progress(step)) ** plan.power)


_SCHEDULES: dict[str, Callable[[SchedulePlan, int], float]] = {
    "constant": _constant,
    "constant_with_warmup": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "cosine_with_min_lr": _cosine_with_min_lr,
    "polynomial": _polynomial,
    "piecewise_constant": _constant,
}

SCHEDULES = tuple(_SCHEDULES)
"""The names that a run file may use."""


def _piecewise(plan: SchedulePlan, where: str) -> Callable[[int], float]:
    *bounded, last = (plan.step_rules or "").split(",")
    try:
        rules = [(int(rule.split(":")[1]), float(rule.split(":")[0])) for rule in bounded]
        final = float(last)
    except (IndexError, ValueError) as error:
        message = (
            f"{where} is piecewise_constant, which needs method.lr_step_rules such as "
            f"'1:1000,0.5:2000,0.1' (factor:until step, …, last factor); got {plan.step_rules!r}"
        )
        raise ConfigError(message) from error

    def factor(step: int) -> float:
        return next((value for until, value in rules if step < until), final)

    return factor
