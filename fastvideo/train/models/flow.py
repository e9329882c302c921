"""Rectified flow: the straight path between data and noise, and the schedules along it.

x_sigma = (1 - sigma)·x₀ + sigma·ε with velocity v = ε - x₀ (Lipman et al. 2023, "Flow Matching for
Generative Modeling"; Liu et al. 2023, "Flow Straight and Fast"). A timestep t in (0, N] stands for
sigma = t / N exactly: no table is searched, so no rounding depends on the schedule that drew it.
Shifting a schedule by s moves it towards noise, sigma' = s·sigma / (1 + (s - 1)·sigma) (Esser et
al. 2024, "Scaling Rectified Flow Transformers", section 5.3.2).

Shapes in names: B samples, T latent frames, C channels, HxW latent pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import torch

from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

NUM_TRAIN_TIMESTEPS = 1000
WeightingScheme = Literal["uniform", "logit_normal", "mode"]
_SCHEMES = ("uniform", "logit_normal", "mode")
_VIDEO_DIMS = 5
_Real = TypeVar("_Real", float, "Tensor")


def shift_sigma(sigma: _Real, shift: float) -> _Real:
    """Returns s·sigma / (1 + (s - 1)·sigma), which keeps 0 and 1 where they are.

    Args:
        sigma: Noise levels in [0, 1].
        shift: The shift s > 0; 1 changes nothing.
    """
    return shift * sigma / (1 + (shift - 1) * sigma)


def unshift_sigma(sigma: _Real, shift: float) -> _Real:
    """Inverts :func:`shift_sigma` with the same ``shift``."""
    return shift_sigma(sigma, 1 / shift)


@dataclass(frozen=True, slots=True)
class FlowMatchScheduler:
    """The shifted grid of noise levels, from pure noise downwards.

    Attributes:
        shift: The shift that made the grid.
        num_train_timesteps: N, the number of grid points and the timestep of pure noise.
        sigmas: Noise levels [N], float32, descending from 1.
        timesteps: N·sigmas, [N], float32.
    """

    shift: float
    num_train_timesteps: int
    sigmas: Tensor
    timesteps: Tensor

    @classmethod
    def create(
        cls,
        *,
        shift: float,
        num_train_timesteps: int = NUM_TRAIN_TIMESTEPS,
        device: torch.device | None = None,
    ) -> FlowMatchScheduler:
        """Makes the grid N, N-1, …, 1 and shifts it.

        Args:
            shift: Shift s of the grid.
            num_train_timesteps: N.
            device: Where the grid lives.

        Raises:
            ConfigError: ``shift`` is not a positive number.
        """
        if not (math.isfinite(shift) and shift > 0):
            message = f"flow_shift must be a positive number, got {shift!r}"
            raise ConfigError(message)
        steps = torch.arange(num_train_timesteps, 0, -1, dtype=torch.float64)
        sigmas = shift_sigma(steps / num_train_timesteps, shift)
        return cls(
            shift=shift,
            num_train_timesteps=num_train_timesteps,
            sigmas=sigmas.float().to(device),
            timesteps=(sigmas * num_train_timesteps).float().to(device),
        )


def expand_timestep(timestep: Tensor, shape_BT: tuple[int, int]) -> Tensor:
    """Returns one timestep per sample and frame, [B, T], whatever of the four shapes came in.

    Args:
        timestep: [1] or no dimension (all samples), [B] (per sample), [B, T], or [B·T].
        shape_BT: B and T of the latents.

    Raises:
        ValueError: The shape is none of these.
    """
    batch, frames = shape_BT
    if timestep.numel() == 1:
        return timestep.reshape(1, 1).expand(batch, frames)
    if timestep.shape in {(batch, frames), (batch * frames,)}:
        return timestep.reshape(batch, frames)
    if timestep.shape == (batch,):
        return timestep[:, None].expand(batch, frames)
    message = (
        f"timestep has shape {list(timestep.shape)}; for latents with B={batch} and T={frames} "
        f"it must be [1], [{batch}], [{batch}, {frames}] or [{batch * frames}]"
    )
    raise ValueError(message)


def sigma_of(timestep: Tensor, like_BTCHW: Tensor, num_train_timesteps: int) -> Tensor:
    """Returns sigma = t / N in float64, broadcastable to ``like_BTCHW``: [B, T, 1, 1, 1].

    Raises:
        ValueError: ``like_BTCHW`` has not five dimensions, or ``timestep`` does not fit it.
    """
    if like_BTCHW.ndim != _VIDEO_DIMS:
        message = f"latents must be [B, T, C, H, W], got shape {list(like_BTCHW.shape)}"
        raise ValueError(message)
    batch, frames = like_BTCHW.shape[:2]
    expanded = expand_timestep(timestep.to(like_BTCHW.device), (batch, frames))
    return (expanded.double() / num_train_timesteps)[:, :, None, None, None]


def interpolate(clean_BTCHW: Tensor, noise_BTCHW: Tensor, sigma: Tensor) -> Tensor:
    """Returns (1 - sigma)·x₀ + sigma·ε in the dtype of x₀, computed in float32 or wider."""
    wide = torch.promote_types(clean_BTCHW.dtype, torch.float32)
    level = sigma.to(wide)
    mixed = (1 - level) * clean_BTCHW.to(wide) + level * noise_BTCHW.to(wide)
    return mixed.to(clean_BTCHW.dtype)


def clean_from_velocity(noisy_BTCHW: Tensor, velocity_BTCHW: Tensor, sigma: Tensor) -> Tensor:
    """Returns x̂₀ = x_sigma - sigma·v̂, computed in float64, in the dtype of the velocity."""
    clean = noisy_BTCHW.double() - sigma.double() * velocity_BTCHW.double()
    return clean.to(velocity_BTCHW.dtype)


@dataclass(frozen=True, slots=True)
class TimestepWeighting:
    """The density that training timesteps are drawn from (Esser et al. 2024, section 3.1).

    Attributes:
        scheme: ``uniform``; ``logit_normal``, u = sigmoid(N(mean, std)); or ``mode``,
            u ← 1 - u - s·(cos²(πu/2) - 1 + u).
        logit_mean: Mean of the normal density.
        logit_std: Standard deviation of the normal density.
        mode_scale: The scale s of ``mode``.
    """

    scheme: str = "uniform"
    logit_mean: float = 0.0
    logit_std: float = 1.0
    mode_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.scheme not in _SCHEMES:
            message = (
                f"training.model.weighting_scheme is {self.scheme!r}; expected one of "
                f"{', '.join(_SCHEMES)}.{did_you_mean(self.scheme, _SCHEMES)}"
            )
            raise ConfigError(message)

    def sample(self, count: int, *, generator: torch.Generator) -> Tensor:
        """Draws ``count`` numbers u in [0, 1], float32, on the generator's device."""
        device = generator.device
        if self.scheme == "logit_normal":
            normal = torch.randn(count, generator=generator, device=device)
            return torch.sigmoid(normal * self.logit_std + self.logit_mean)
        uniform = torch.rand(count, generator=generator, device=device)
        if self.scheme == "uniform":
            return uniform
        bend = torch.cos(math.pi * uniform / 2) ** 2 - 1 + uniform
        return (1 - uniform - self.mode_scale * bend).clamp(0.0, 1.0)


def sample_timesteps(
    scheduler: FlowMatchScheduler,
    weighting: TimestepWeighting,
    count: int,
    *,
    generator: torch.Generator,
) -> Tensor:
    """Draws grid points of ``scheduler``: u of ``weighting`` is the relative position in the grid.

    Returns:
        Timesteps [count] in (0, N], float32.
    """
    position = weighting.sample(count, generator=generator)
    index = (position * scheduler.num_train_timesteps).long()
    index = index.clamp(max=scheduler.num_train_timesteps - 1)
    return scheduler.timesteps.to(index.device)[index]
