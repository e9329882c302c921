"""FineTune: its loss by hand, its errors, and that it learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fastvideo.errors import ConfigError
from fastvideo.train.methods.fine_tuning.finetune import FineTuneMethod

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def _method(toys: ModuleType, *, precondition: bool = False) -> FineTuneMethod:
    cfg = toys.run_config()
    cfg.training.model.precondition_outputs = precondition
    role = toys.ToyModel(toys.LinearNet(0.3, -0.2, 0.1))
    method = FineTuneMethod(cfg=cfg, role_models={"student": role})
    method.on_train_start()
    return method


@pytest.mark.parametrize("precondition", [False, True])
def test_the_loss_and_its_gradient_follow_the_formula(
    toys: ModuleType, *, precondition: bool
) -> None:
    """MSE(v̂, ε - x₀), or MSE(x_t - sigma·v̂, x₀); for a linear model both gradients are known."""
    method = _method(toys, precondition=precondition)
    raw = toys.raw_batch()
    losses, outputs, metrics = method.single_train_step(raw, 1)
    method.backward(losses, outputs)

    clean = raw["vae_latent"]
    draws = torch.Generator().manual_seed(7)
    noise = torch.randn(clean.shape, generator=draws)
    sigma = ((1 + 999 * torch.rand(2, generator=draws)) / 1000).reshape(2, 1, 1, 1, 1)
    noisy = (1 - sigma) * clean + sigma * noise
    error = 0.3 * noisy - 0.2 + 0.1 - (noise - clean)
    if precondition:
        error = sigma * error
    slope = sigma * noisy if precondition else noisy

    net = method.student.transformer
    assert metrics == {}
    assert losses["total_loss"] is losses["finetune_loss"]
    torch.testing.assert_close(losses["total_loss"], (error**2).mean())
    torch.testing.assert_close(net.weight.grad, (2 * error * slope).mean())


def test_a_few_hundred_steps_lower_the_loss_of_the_tiny_model(
    tiny_runs: ModuleType, tmp_path: Path
) -> None:
    """The Wan transformer learns a synthetic data set: the loss falls to less than half."""
    config = tiny_runs.training_config(tiny_runs.write_dataset(tmp_path))
    config.data.train_batch_size = 4
    config.optimizer.learning_rate = 5e-3
    method = tiny_runs.finetune(config)
    method.on_train_start()
    stream = tiny_runs._endless(method.student.dataloader)
    history = []
    for step in range(1, 251):
        losses, outputs, _ = method.single_train_step(next(stream), step)
        method.backward(losses, outputs)
        method.optimizers_schedulers_step(step)
        method.optimizers_zero_grad(step)
        history.append(losses["total_loss"].item())
    first, last = sum(history[:25]) / 25, sum(history[-25:]) / 25
    assert last < 0.5 * first


def test_every_step_updates_the_student(toys: ModuleType) -> None:
    """There is one optimizer and one schedule, always selected."""
    method = _method(toys)
    assert method.get_optimizers(3) == [method._optimizer_dict["student"]]
    assert method.get_lr_schedulers(3) == [method._lr_scheduler_dict["student"]]
    assert method.did_update_role("student", 3)
    assert method.student.dataloader is not None


def test_a_frozen_student_is_an_error(toys: ModuleType) -> None:
    """The message names the key."""
    role = toys.ToyModel(toys.LinearNet(0.0, 0.0, 0.0), trainable=False)
    with pytest.raises(ConfigError, match=r"models\.student\.trainable"):
        FineTuneMethod(cfg=toys.run_config(), role_models={"student": role})


def test_a_learning_rate_of_zero_is_an_error(toys: ModuleType) -> None:
    """The default of the config is 0, which would train nothing."""
    cfg = toys.run_config(learning_rate=0.0)
    role = toys.ToyModel(toys.LinearNet(0.0, 0.0, 0.0))
    with pytest.raises(ConfigError, match=r"training\.optimizer\.learning_rate"):
        FineTuneMethod(cfg=cfg, role_models={"student": role})


def test_text_only_data_is_an_error_at_build(toys: ModuleType) -> None:
    """Without latents there is nothing to fine-tune on."""
    cfg = toys.run_config()
    cfg.training.data.preprocessed_data_type = "text_only"
    role = toys.ToyModel(toys.LinearNet(0.0, 0.0, 0.0))
    with pytest.raises(ConfigError, match="vae_latent not found"):
        FineTuneMethod(cfg=cfg, role_models={"student": role})
