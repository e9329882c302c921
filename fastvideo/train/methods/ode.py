"""Sampling along the flow's own path: the grid of noise levels, and Euler's step on it.

x' = x + (sigma' - sigma)·v̂. The same step is often written with predictions of both ends of the
path, x̂₀ = x - sigma·v̂ and ε̂ = (x - (1 - sigma)·x̂₀) / sigma, as x' = (1 - sigma')·x̂₀ + sigma'·ε̂;
this form needs no division.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from fastvideo.train.models.flow import shift_sigma

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import Tensor


def sigma_grid(num_steps: int, shift: float) -> tuple[float, ...]:
    """Returns the noise levels of a sampler: evenly spaced from 1 to 0, then shifted.

    Args:
        num_steps: S, the number of steps.
        shift: The shift s > 0.

    Returns:
        S + 1 levels, descending from 1 to 0.
    """
    return tuple(shift_sigma(1 - step / num_steps, shift) for step in range(num_steps + 1))


@torch.no_grad()
def follow_flow(
    velocity: Callable[[Tensor, float], Tensor],
    noise: Tensor,
    sigmas: Sequence[float],
    *,
    keep: Collection[int] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Goes from noise to a sample, without gradients.

    Args:
        velocity: Predicts v̂ at latents x_sigma and their noise level.
        noise: Where the path starts, float32, of any shape.
        sigmas: Noise levels, descending.
        keep: Steps whose states are returned; step i has the noise level ``sigmas[i]``.

    Returns:
        The latents at the last noise level, and the states of ``keep``, in their order.
    """
    noisy = noise
    states = []
    for step, (sigma, following) in enumerate(pairwise(sigmas)):
        if step in keep:
            states.append(noisy)
        noisy = noisy + (following - sigma) * velocity(noisy, sigma)
    return noisy, states
