"""What DiffusionNFT learns from a scored sample, and how its old policy follows.

Zheng et al. 2025, "DiffusionNFT: Online Diffusion Reinforcement with Forward Process"
(arXiv:2509.16117).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch.distributed.tensor import DTensor

from fastvideo.errors import ConfigError, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

_STD_FLOOR: Final = 1e-4
_SCALE_FLOOR: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Velocities:
    """Predictions at the same noised latents, [B, T, C, H, W] each.

    Attributes:
        student: v_s of the student, with its graph.
        old: v_old of the policy that made the samples.
    """

    student: Tensor
    old: Tensor


def prompt_advantages(rewards: Tensor, prompts: Sequence[str]) -> Tensor:
    """Returns (r - mean) / (std + 1e-4) with mean and deviation of the same prompt's videos.

    Args:
        rewards: Scores [M] of all videos of all ranks.
        prompts: Their prompts.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        members[prompt].append(index)
    advantages = torch.zeros_like(rewards)
    for indices in members.values():
        group = rewards[indices]
        advantages[indices] = (group - group.mean()) / (group.std(unbiased=False) + _STD_FLOOR)
    return advantages


def optimality(advantages: Tensor, clip: float) -> Tensor:
    """Returns r = clamp(clamp(A, ±c) / (2c) + ½, 0, 1), the weight of a sample as a good one.

    Args:
        advantages: A, of any shape.
        clip: c.
    """
    return (advantages.clamp(-clip, clip) / (2 * clip) + 0.5).clamp(0.0, 1.0)


def policy_loss(
    velocities: Velocities,
    noisy: Tensor,
    clean: Tensor,
    sigma: Tensor,
    good: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Returns the loss [B] of the implicit positive and negative policies, in float32.

    The positive velocity is β·v_s + (1 - β)·v_old and the negative one (1 + β)·v_old - β·v_s; each
    one's x̂₀ = x - sigma·v is compared with the sample it was noised from, as
    mean (x̂₀ - x₀)² / mean |x̂₀ - x₀|, the denominator without gradient. The loss is
    r·L⁺/β + (1 - r)·L⁻/β.

    Args:
        velocities: Predictions at ``noisy``.
        noisy: The noised sample.
        clean: The sample x₀.
        sigma: Its noise level, [B, 1, 1, 1, 1].
        good: r, [B].
        beta: β > 0.
    """
    student, old = velocities.student.float(), velocities.old.float()
    positive = _clean_loss(noisy - sigma * (beta * student + (1 - beta) * old), clean)
    negative = _clean_loss(noisy - sigma * ((1 + beta) * old - beta * student), clean)
    return (good * positive + (1 - good) * negative) / beta


def _clean_loss(predicted: Tensor, clean: Tensor) -> Tensor:
    error = predicted - clean
    scale = error.detach().abs().flatten(1).mean(dim=1).clamp(min=_SCALE_FLOOR)
    return error.square().flatten(1).mean(dim=1) / scale


def copy_weights(target: nn.Module, source: nn.Module, *, names: tuple[str, str]) -> None:
    """Gives a module the weights of another one of the same architecture and sharding.

    Args:
        target: The module that is changed.
        source: The other one.
        names: What the two are called, for the message.

    Raises:
        ConfigError: They differ in names or shapes.
    """
    mine = {name: p.shape for name, p in target.named_parameters()}
    theirs = {name: p.shape for name, p in source.named_parameters()}
    if mine != theirs:
        differing = sorted(n for n in mine.keys() | theirs.keys() if mine.get(n) != theirs.get(n))
        message = (
            f"{names[0]} and {names[1]} must be the same architecture; they differ in "
            f"{counted(len(differing), 'parameter')}, such as {differing[0]!r}"
        )
        raise ConfigError(message)
    blend_weights(target, source, decay=0.0)


@torch.no_grad()
def blend_weights(target: nn.Module, source: nn.Module, *, decay: float) -> None:
    """Moves a module towards another one: ``decay * target + (1 - decay) * source``.

    Args:
        target: The module that is changed, shard by shard.
        source: The other one, of the same architecture and sharding.
        decay: The part of itself that ``target`` keeps.
    """
    mine = [_local(p) for p in target.parameters()]
    theirs = [
        _local(p).to(m.device, m.dtype) for p, m in zip(source.parameters(), mine, strict=True)
    ]
    if decay == 0.0:
        torch._foreach_copy_(mine, theirs)  # exact, unlike an interpolation
    else:
        torch._foreach_lerp_(mine, theirs, 1.0 - decay)


def _local(parameter: Tensor) -> Tensor:
    detached = parameter.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached
