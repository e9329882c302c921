"""What happens when a loss is NaN or infinite, decided alike on every rank.

A decision that one rank takes alone would leave the others waiting in the next collective, or
with other weights. The ranks of a run see different losses, so agreeing needs communication:

* one rank, or ``warn`` (where nothing has to be agreed): none;
* ``raise`` and ``skip`` on several ranks: the sum of this rank's losses is summed over the ranks,
  one number. A sum is not finite if any of its terms is not, so the result tells all ranks the
  same. On a GPU it is started once the last backward is queued, travels while the optimizer works,
  and is read in the transfer that the step's metrics need anyway: no further host synchronisation.
  On a CPU it is sent when it is read, because the threads that send it would take the core from
  the optimizer. The gradient reductions of the same step have tied the ranks together already.

Looking at the reduced gradients instead would need no message, but an overflow in a loss often
leaves the gradients finite, and losses that are only reported have none.

With ``raise`` the check comes after the optimizer step, where the losses are read: the weights in
memory may be spoilt by then, and the run ends. ``skip`` has to know earlier: it reads the losses
before the optimizer step and the rest after it, one more synchronisation. A managed method steps
by itself, so nothing can be skipped there and ``skip`` means ``warn``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist

from fastvideo.errors import ConfigError, FastVideoError
from fastvideo.logger import init_logger
from fastvideo.train.metrics import Deferred

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

logger = init_logger(__name__)

POLICIES: Final = ("raise", "skip", "warn")


class NonFiniteLossError(FastVideoError, FloatingPointError):
    """A loss was NaN or infinite and ``training.nonfinite_loss`` is ``raise``."""


class NonFiniteGuard:
    """Applies ``training.nonfinite_loss`` to the losses of each step.

    Args:
        policy: ``raise``, ``skip`` or ``warn``.
        rank: Global rank of this process.
        world_size: Number of ranks, which must have joined a process group if more than 1.
        device: Device that collectives work on.

    Raises:
        ConfigError: The policy is unknown.
    """

    def __init__(self, policy: str, *, rank: int, world_size: int, device: torch.device) -> None:
        if policy not in POLICIES:
            message = (
                f"training.nonfinite_loss is {policy!r}; expected one of {', '.join(POLICIES)}"
            )
            raise ConfigError(message)
        self.policy = policy
        self._rank = rank
        self._world_size = world_size
        self._device = device
        self._agrees = world_size > 1 and policy != "warn" and dist.is_initialized()
        self._work: dist.Work | None = None
        self._total: Tensor | None = None
        self._seen = 0

    def begin_agreement(self, losses: Iterable[Sequence[Tensor | float]]) -> None:
        """Adds up this rank's losses, and starts to tell the other ranks; does not wait.

        Args:
            losses: The losses of the step, all rounds.
        """
        if not self._agrees:
            return
        own = [
            torch.as_tensor(value, dtype=torch.float32, device=self._device).reshape(())
            for rounds in losses
            for value in rounds
        ]
        self._total = torch.stack(own).sum() if own else torch.zeros((), device=self._device)
        if self._device.type != "cpu":
            self._work = dist.all_reduce(self._total, async_op=True)

    def agreement(self) -> list[Deferred]:
        """Returns what to read together with the losses: the ranks' sum, if there is one."""
        if self._total is None:
            return []
        if self._work is None:
            dist.all_reduce(self._total)
        else:
            self._work.wait()
        total, self._work, self._total = self._total, None, None
        return [Deferred(AGREEMENT, total)]

    def judge(
        self, losses: Mapping[str, Sequence[Tensor | float]], total: float, step: int
    ) -> bool:
        """Looks at the losses and acts.

        Args:
            losses: Values of every loss in every round, on the host.
            total: The ranks' sum; 0 if there is none.
            step: The step.

        Returns:
            Whether a loss of this rank, or of any rank if they agree, is not finite.

        Raises:
            NonFiniteLossError: One is not finite, and the policy is ``raise``.
        """
        bad = {
            name: next(float(value) for value in values if not math.isfinite(value))
            for name, values in losses.items()
            if not all(map(math.isfinite, values))
        }
        if not bad and math.isfinite(total):
            return False
        self._seen += 1
        message = self._message(bad, step)
        if self.policy == "raise":
            raise NonFiniteLossError(message)
        if self._seen & (self._seen - 1) == 0:  # 1, 2, 4, 8, …: a broken run must not flood the log
            logger.warning("%s (%d such steps so far)", message, self._seen)
        return True

    def _message(self, bad: Mapping[str, float], step: int) -> str:
        if bad:
            what = ", ".join(f"{name} = {value}" for name, value in bad.items())
            where = f" on rank {self._rank}" if self._world_size > 1 else ""
        else:
            what, where = "a loss", " on another rank, which names it"
        advice = {
            "raise": "; the run ends. Look at the data and the learning rate, or set "
            "training.nonfinite_loss to 'skip' or 'warn'",
            "skip": "; the optimizer step is left out",
            "warn": "; the step is done all the same",
        }[self.policy]
        return f"step {step}: not finite: {what}{where}{advice}"


AGREEMENT: Final = "nonfinite/agreement"
"""Name under which the ranks' sum is read; it is not logged."""
