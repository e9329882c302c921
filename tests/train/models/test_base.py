"""What every plugin inherits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastvideo.train.models.base import ModelBase
from fastvideo.train.models.flow import FlowMatchScheduler


class Constant(ModelBase):
    """Predicts the velocity 2 everywhere."""

    def __init__(self) -> None:
        self.transformer = torch.nn.Linear(1, 1)
        self.noise_scheduler = FlowMatchScheduler.create(shift=1.0)
        self.device = torch.device("cpu")

    def init_preprocessors(self, training_config: Any) -> None:
        raise NotImplementedError

    def prepare_batch(self, raw: Any, **options: Any) -> Any:
        raise NotImplementedError

    def predict_noise(self, noisy: torch.Tensor, timestep: Any, batch: Any, **options: Any) -> Any:
        return torch.full_like(noisy, 2.0)

    def decode_latents(self, latents: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def test_shifted_timesteps_follow_the_formula_and_are_clamped() -> None:
    """N·s·u / (1 + (s - 1)·u), then the bounds; whole numbers become floats."""
    model = Constant()
    model.timestep_shift, model.min_timestep, model.max_timestep = 8.0, 20.0, 980.0
    shifted = model.shift_and_clamp_timestep(torch.tensor([0, 100, 500, 1000]))
    assert shifted.dtype == torch.float32
    assert shifted.tolist() == pytest.approx([20.0, 800 / 1.7, 4000 / 4.5, 980.0])


def test_adding_noise_and_predicting_clean_latents() -> None:
    """Both read the noise level off the timestep, in any of its shapes."""
    model = Constant()
    clean, noise = torch.zeros(2, 3, 1, 1, 1), torch.ones(2, 3, 1, 1, 1)
    noisy = model.add_noise(clean, noise, torch.tensor([250.0, 500.0]))
    assert noisy[:, :, 0, 0, 0].tolist() == [[0.25] * 3, [0.5] * 3]
    predicted = model.predict_x0(noisy, torch.tensor([250.0, 500.0]), None, conditional=True)
    assert predicted[:, 0, 0, 0, 0].tolist() == [0.25 - 0.5, 0.5 - 1.0]


def test_backward_divides_by_the_rounds() -> None:
    """A context is not needed here."""
    model = Constant()
    loss = model.transformer.weight.sum() * 6
    model.backward(loss, None, grad_accum_rounds=3)
    assert model.transformer.weight.grad.item() == 2.0


def test_defaults_of_a_plugin() -> None:
    """Roles are trainable with the default attention until a plugin says otherwise."""
    model = Constant()
    assert model.trainable
    assert model.attention_backend_name is None
    assert model.num_train_timesteps == 1000
    model.on_train_start()
    model.set_requires_negative_conditioning(True)
