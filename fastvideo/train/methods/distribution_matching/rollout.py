"""Where a few-step rollout ends, and its random numbers.

Every rank draws its own end k, yet all ranks must call a sharded student equally often: each
forward gathers weights from all of them. So the ranks agree on the longest rollout, and those with
a shorter one run the rest for company and return what they had at step k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fastvideo.distributed.collective_wait import timed_collective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fastvideo.distributed import RankGroup


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The random part of one simulated rollout.

    Attributes:
        target: Step k whose prediction is this rank's output, from 0.
        num_prefix: Predictions without gradient before it: k on one rank, the largest k of all
            ranks on several.
        latents: Initial noise ε₀, [B, T, C, H, W].
        noises: Noise ε₁ … ε_{K-1} of the later steps.
    """

    target: int
    num_prefix: int
    latents: Tensor
    noises: Sequence[Tensor]


def draw_rollout(
    shape: torch.Size,
    num_steps: int,
    *,
    generator: torch.Generator,
    group: RankGroup,
    sync_target: bool = False,
) -> RolloutPlan:
    """Draws a rollout of up to ``num_steps`` steps.

    The draws are, in this order: the target, the initial latents, and the noise of all later
    steps, needed or not. The generator so ends in the same state whatever the target is, and
    whatever the other ranks drew.

    Args:
        shape: Shape of the latents, [B, T, C, H, W].
        num_steps: K, the number of denoising steps.
        generator: Random numbers of this rank.
        group: Ranks that must call the student equally often.
        sync_target: Take the target of the group's first rank everywhere.
    """
    device = generator.device
    drawn = torch.randint(num_steps, (1,), generator=generator, device=device)
    tensors = [torch.randn(shape, generator=generator, device=device) for _ in range(num_steps)]
    # The first thing in a step that ranks wait for each other in: a rank that is late with its data
    # shows here. Ranks of a machine alone have nobody to wait for, and time nothing to speak of.
    with timed_collective("rollout", device):
        if sync_target:
            group.broadcast(drawn)
        longest = drawn if sync_target else group.all_reduce_max(drawn.clone())
    target, num_prefix = torch.cat([drawn, longest]).tolist()
    return RolloutPlan(target, num_prefix, tensors[0], tensors[1:])
