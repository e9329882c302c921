"""Models small enough to work out by hand, behind the plugin interface.

Loaded by the ``toys`` fixture. Latents are [B, T, C, H, W]; raw batches hold ``vae_latent`` in the
loader's layout [B, C, T, H, W].
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fastvideo.train.config import TrainingConfig
from fastvideo.train.models.base import ModelBase
from fastvideo.train.models.batch import TrainingBatch
from fastvideo.train.models.flow import FlowMatchScheduler

if TYPE_CHECKING:
    from collections.abc import Mapping

N = 1000


class LinearNet(nn.Module):
    """v̂ = w·x + b, plus c where the prompt conditions."""

    def __init__(self, weight: float, bias: float, prompt: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.bias = nn.Parameter(torch.tensor(bias))
        self.prompt = nn.Parameter(torch.tensor(prompt))

    def forward(self, x: Tensor, sigma: Tensor, *, conditional: bool) -> Tensor:
        out: Tensor = self.weight * x + self.bias
        return out + self.prompt if conditional else out


class GaussianNet(nn.Module):
    """The exact velocity of data drawn from N(mean, std²), each element by itself.

    E[x₀ | x] = mean + a·std²·(x - a·mean) / (a²·std² + sigma²) with a = 1 - sigma.
    """

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean))
        self.log_std = nn.Parameter(torch.tensor(std).log())

    def forward(self, x: Tensor, sigma: Tensor, *, conditional: bool) -> Tensor:
        variance = (2 * self.log_std).exp()
        a = 1 - sigma
        gain = a * variance / (a**2 * variance + sigma**2)
        clean = self.mean + gain * (x - a * self.mean)
        return (x - clean) / sigma


class AffineSamplerNet(nn.Module):
    """A few-step student with x̂₀ = mean[k] + std[k]·x at the k-th of its timesteps."""

    def __init__(self, timesteps: list[float], mean: float, std: float) -> None:
        super().__init__()
        self.sigmas = torch.tensor(timesteps) / N
        self.mean = nn.Parameter(torch.full((len(timesteps),), mean))
        self.std = nn.Parameter(torch.full((len(timesteps),), std))

    def forward(self, x: Tensor, sigma: Tensor, *, conditional: bool) -> Tensor:
        step = int((self.sigmas - sigma.flatten()[0]).abs().argmin())
        clean = self.mean[step] + self.std[step] * x
        return (x - clean) / sigma


class ToyModel(ModelBase):
    """Any of the nets above as a role; counts what it is asked for."""

    def __init__(self, net: nn.Module, *, trainable: bool = True, shift: float = 1.0) -> None:
        self.transformer = net.requires_grad_(trainable)
        self.noise_scheduler = FlowMatchScheduler.create(shift=shift)
        self.device = torch.device("cpu")
        self.timestep_shift = shift
        self._trainable = trainable
        self.calls: list[str] = []
        self.needs_negative: bool | None = None

    def init_preprocessors(self, training_config: TrainingConfig) -> None:
        self.dataloader = object()

    def set_requires_negative_conditioning(self, required: bool) -> None:  # noqa: FBT001
        self.needs_negative = required

    def prepare_batch(
        self, raw: Mapping[str, Any], *, generator: torch.Generator, latents_source: str = "data"
    ) -> TrainingBatch:
        clean = raw["vae_latent"]
        clean = torch.zeros_like(clean) if latents_source == "zeros" else clean
        noise = torch.randn(clean.shape, generator=generator)
        timesteps = 1 + (N - 1) * torch.rand(clean.shape[0], generator=generator)
        sigmas = (timesteps / N).reshape(-1, 1, 1, 1, 1)
        return TrainingBatch(
            latents=clean.permute(0, 2, 1, 3, 4),
            noise=noise,
            noisy_model_input=(1 - sigmas) * clean + sigmas * noise,
            timesteps=timesteps,
            sigmas=sigmas,
            raw_latent_shape=clean.shape,
        )

    def add_noise(self, clean: Tensor, noise: Tensor, timestep: Tensor) -> Tensor:
        self.calls.append("add_noise")
        return super().add_noise(clean, noise, timestep)

    def predict_noise(
        self,
        noisy: Tensor,
        timestep: Tensor,
        batch: TrainingBatch,
        *,
        conditional: bool,
        cfg_uncond: Mapping[str, Any] | None = None,
        attn_kind: str = "dense",
    ) -> Tensor:
        self.calls.append("conditional" if conditional else "unconditional")
        sigma = (timestep / N).reshape(-1, 1, 1, 1, 1)
        out: Tensor = self.transformer(noisy, sigma, conditional=conditional)
        return out

    def decode_latents(self, latents: Tensor) -> Tensor:
        return latents.permute(0, 2, 1, 3, 4)[:, :3].clamp(0, 1)


def run_config(method: dict[str, Any] | None = None, **optimizer: Any) -> SimpleNamespace:
    """A run's config with a seed, a learning rate and the given `method:` section."""
    training = TrainingConfig()
    training.data.seed = 7
    training.loop.max_train_steps = 100
    training.optimizer.learning_rate = 1e-2
    training.optimizer.betas = (0.0, 0.99)
    for name, value in optimizer.items():
        setattr(training.optimizer, name, value)
    return SimpleNamespace(training=training, method=method or {})


def dmd2_section(**changes: Any) -> dict[str, Any]:
    """A complete `method:` section of DMD2 with some keys changed; None removes a key."""
    section = {
        "rollout_mode": "simulate",
        "dmd_denoising_steps": [1000, 750, 500, 250],
        "generator_update_interval": 1,
        "real_score_guidance_scale": 3.0,
        "fake_score_learning_rate": 1e-2,
        "fake_score_betas": [0.0, 0.99],
        "fake_score_lr_scheduler": "constant",
    }
    return {key: value for key, value in (section | changes).items() if value is not None}


def raw_batch(batch: int = 2, frames: int = 3) -> dict[str, Tensor]:
    """A batch of the loader with distinct numbers, [B, 2, T, 2, 2]."""
    values = torch.arange(batch * 2 * frames * 4, dtype=torch.float32)
    return {"vae_latent": values.reshape(batch, 2, frames, 2, 2) / values.numel()}
