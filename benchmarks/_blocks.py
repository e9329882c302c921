"""Blocks of steps that take turns in one process, and what is said of them with confidence.

A percentile near the top swings with everything else that a machine does, and slowly. Short blocks
of each case in random order share whatever happens; whole rounds are drawn again and again
(bootstrap) to say how far a ratio can be trusted.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import time
from typing import TYPE_CHECKING, Final, Self

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DRAWS: Final = 2000
_LOW: Final = 0.025
_HIGH: Final = 0.975


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A block of steps of one case.

    Attributes:
        wall_s: Seconds of each step.
        cpu_s: Seconds of each step in which the training thread computed.
        core_s: Seconds of each step in which it could have computed and had no core, which is
            what other programs of a busy machine cost it, and threads of its own that compute.
        voluntary: How often that thread let another one run, in all of the block.
        involuntary: How often another one was put in its place.
        others_s: CPU seconds of all other threads of the process, per step.
    """

    wall_s: list[float]
    cpu_s: list[float]
    core_s: list[float]
    voluntary: int
    involuntary: int
    others_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the 95 % interval that it lies in.

    Attributes:
        value: The figure.
        low: Where the interval begins.
        high: Where it ends.
        goal: What the figure should not exceed; None: nothing is claimed.
        floor: How far from 1 the ratio of two equal cases was in the same run.
    """

    value: float
    low: float
    high: float
    goal: float | None = None
    floor: float = 0.0

    @property
    def resolved(self) -> bool:
        """Whether the interval lies on one side of the goal, further away than equal cases do."""
        if self.goal is None:
            return False
        return not self.low - self.floor <= self.goal < self.high + self.floor

    @property
    def verdict(self) -> str:
        """``met`` or ``MISSED`` where all of the interval says so, else ``not resolved``."""
        if self.goal is None:
            return ""
        if not self.resolved:
            return "not resolved"
        return "met" if self.value <= self.goal else "MISSED"


def run_block(
    step: Callable[[int], None], first: int, *, steps: int, unmeasured: int, rest_s: float
) -> Block:
    """Runs one block on this thread.

    Args:
        step: Does the step of a number.
        first: Number of the first one.
        steps: How many are measured.
        unmeasured: How many come before those.
        rest_s: Seconds of rest afterwards, in which other threads finish what the block left
            them; their CPU seconds count.
    """
    all_before, own_before = time.process_time(), time.thread_time()
    for number in range(first, first + unmeasured):
        step(number)
    wall_s, cpu_s, core_s = [], [], []
    before = resource.getrusage(resource.RUSAGE_THREAD)
    with CoreWaits() as waits:
        for number in range(first + unmeasured, first + unmeasured + steps):
            # A thread is put aside when it leaves a system call, so the order counts: what it
            # waits there belongs to wall and core time alike, or to neither.
            own, begin = time.thread_time(), time.perf_counter()
            waited = waits.read_s()
            step(number)
            wall_s.append(time.perf_counter() - begin)
            core_s.append(waits.read_s() - waited)
            cpu_s.append(time.thread_time() - own)
    after = resource.getrusage(resource.RUSAGE_THREAD)
    time.sleep(rest_s)
    others_s = (time.process_time() - all_before) - (time.thread_time() - own_before)
    return Block(
        wall_s,
        cpu_s,
        core_s,
        after.ru_nvcsw - before.ru_nvcsw,
        after.ru_nivcsw - before.ru_nivcsw,
        others_s / (steps + unmeasured),
    )


class CoreWaits:
    """How long this thread has waited for a core, as Linux counts it; 0 where it does not."""

    def __enter__(self) -> Self:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def read_s(self) -> float:
        """Returns the seconds so far."""
        if self._file < 0:
            return 0.0
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9


def percentile_ratio(
    case: torch.Tensor, unit: torch.Tensor, share: float, goal: float | None = None
) -> Estimate:
    """Compares a percentile over all steps of two cases.

    Args:
        case: Seconds, [rounds, steps].
        unit: Seconds of what it is compared with, in the same rounds.
        share: Which percentile, 0 to 1.
        goal: What the ratio should not exceed.
    """
    rounds = _draws(len(case))
    ratios = torch.stack(
        [percentile(case[drawn], share) / percentile(unit[drawn], share) for drawn in rounds]
    )
    value = float(percentile(case, share) / percentile(unit, share))
    return Estimate(value, *_interval(ratios), goal)


def mean_ratio(case: torch.Tensor, unit: torch.Tensor, goal: float | None = None) -> Estimate:
    """Compares means of two cases, [rounds] or [rounds, steps]."""
    rounds = _draws(len(case))
    by_case, by_unit = _by_round(case), _by_round(unit)
    ratios = by_case[rounds].mean(1) / by_unit[rounds].mean(1)
    return Estimate(float(by_case.mean() / by_unit.mean()), *_interval(ratios), goal)


def mean_difference(case: torch.Tensor, unit: torch.Tensor) -> Estimate:
    """Subtracts means of two cases, [rounds] or [rounds, steps]."""
    difference = _by_round(case) - _by_round(unit)
    drawn = difference[_draws(len(case))].mean(1)
    return Estimate(float(difference.mean()), *_interval(drawn))


def percentile(values: torch.Tensor, share: float) -> torch.Tensor:
    """Returns a percentile of all elements."""
    flat = values.flatten()
    return flat.kthvalue(min(len(flat), int(len(flat) * share) + 1)).values


def stack(blocks: Sequence[Sequence[float]]) -> torch.Tensor:
    """Returns [rounds, steps]."""
    return torch.tensor(blocks, dtype=torch.float64)


def _by_round(values: torch.Tensor) -> torch.Tensor:
    return values.mean(1) if values.dim() > 1 else values


def _draws(rounds: int) -> torch.Tensor:
    """Returns the rounds of each draw, [draws, rounds]; the same ones for every comparison."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(rounds, (_DRAWS, rounds), generator=generator)


def _interval(values: torch.Tensor) -> tuple[float, float]:
    low, high = torch.quantile(values, torch.tensor([_LOW, _HIGH], dtype=values.dtype)).tolist()
    return low, high
