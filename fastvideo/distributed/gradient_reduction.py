"""Reducing gradients once in a step that is made of several backwards.

Sums over rounds and over ranks may be taken in either order, so the rounds before the last one
need no communication. What they need instead is memory: each rank keeps whole gradients until the
last round. Where that is too much, shards can be reduced in every round; replicas of the shards
still exchange their sums once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.fsdp import FSDPModule

if TYPE_CHECKING:
    from torch import nn


class GradientReduction:
    """Decides which backwards of a model reduce gradients over the ranks.

    Every unit that is used in a step must take part in its last backward: what a unit has gathered
    is reduced there. A model that is not sharded over ranks is left alone.

    Args:
        model: What is trained; frozen units in it do not matter.
        every_round: Reduce over the shards in every backward, and only over the replicas in the
            last; for less memory.
    """

    def __init__(self, model: nn.Module, *, every_round: bool = False) -> None:
        self._units = [
            unit
            for unit in model.modules()
            if isinstance(unit, FSDPModule) and any(p.requires_grad for p in unit.parameters())
        ]
        self._every_round = every_round
        self._reduces = True

    def before_backward(self, *, last: bool) -> None:
        """Says which backward comes next; call it before the forward, too.

        Args:
            last: Whether it is the last one before the optimizer's step.
        """
        if last == self._reduces:
            return
        self._reduces = last
        for unit in self._units:
            if self._every_round:
                unit.set_requires_all_reduce(last, recurse=False)
            else:
                unit.set_requires_gradient_sync(last, recurse=False)
