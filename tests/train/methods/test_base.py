"""The contract between methods and the trainer, with two small methods."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from fastvideo.errors import ConfigError
from fastvideo.train.methods.base import TrainingMethod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType


class OneOptimizer(TrainingMethod):
    """Pulls the student's weight towards the batch."""

    def __init__(self, *, cfg: Any, role_models: Mapping[str, Any]) -> None:
        super().__init__(cfg=cfg, role_models=role_models)
        self._optimizer_dict = {
            role: torch.optim.AdamW(model.transformer.parameters(), lr=0.1)
            for role, model in role_models.items()
            if model.trainable
        }
        self._lr_scheduler_dict = {
            role: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
            for role, optimizer in self._optimizer_dict.items()
        }

    def single_train_step(self, batch: Mapping[str, Any], iteration: int) -> Any:
        loss = (self.student.transformer.weight - batch["target"]) ** 2
        return {"total_loss": loss}, {}, {}

    def get_optimizers(self, iteration: int) -> list[torch.optim.Optimizer]:
        return [self._optimizer_dict["student"]]

    def get_lr_schedulers(self, iteration: int) -> list[Any]:
        return [self._lr_scheduler_dict["student"]]


class Managed(OneOptimizer):
    """Owns its optimisation: two batches and two optimizer steps per step of the trainer."""

    def manages_optimization(self) -> bool:
        return True

    def managed_train_step(self, data_stream: Iterator[Mapping[str, Any]], iteration: int) -> Any:
        for _ in range(2):
            losses, outputs, metrics = self.single_train_step(next(data_stream), iteration)
            self.backward(losses, outputs)
            self.optimizers_schedulers_step(iteration)
            self.optimizers_zero_grad(iteration)
        return losses, outputs, metrics


def _roles(toys: ModuleType) -> dict[str, Any]:
    return {
        "student": toys.ToyModel(toys.LinearNet(1.0, 0.0, 0.0)),
        "critic": toys.ToyModel(toys.LinearNet(2.0, 0.0, 0.0)),
        "teacher": toys.ToyModel(toys.LinearNet(3.0, 0.0, 0.0), trainable=False),
    }


def _batches(value: float) -> Iterator[dict[str, float]]:
    while True:
        yield {"target": value}


def test_the_constructor_keeps_roles_and_sections(toys: ModuleType) -> None:
    """Modules are registered by role, and the method section is a copy."""
    cfg = toys.run_config({"key": 1})
    roles = _roles(toys)
    method = OneOptimizer(cfg=cfg, role_models=roles)
    assert method.student is roles["student"]
    assert method.training_config is cfg.training
    assert method.method_config == {"key": 1}
    assert method.method_config is not cfg.method
    assert method.role_modules["critic"]["transformer"] is roles["critic"].transformer
    assert method.tracker is None
    tracker = object()
    method.set_tracker(tracker)
    assert method.tracker is tracker


def test_a_run_without_a_student_is_an_error(toys: ModuleType) -> None:
    """The message names the role that is missing and those that are there."""
    roles = _roles(toys)
    del roles["student"]
    with pytest.raises(ConfigError, match=r"models\.student is missing.*critic, teacher"):
        OneOptimizer(cfg=toys.run_config(), role_models=roles)


def test_backward_divides_by_the_rounds(toys: ModuleType) -> None:
    """Gradients of accumulation rounds add up to those of their mean."""
    method = OneOptimizer(cfg=toys.run_config(), role_models=_roles(toys))
    for target in (0.0, 4.0):
        losses, outputs, _ = method.single_train_step({"target": target}, 1)
        method.backward(losses, outputs, grad_accum_rounds=2)
    assert method.student.transformer.weight.grad.item() == (2 * (1 - 0) + 2 * (1 - 4)) / 2


def test_a_step_steps_optimizers_then_schedules_and_zeroes_only_its_own(toys: ModuleType) -> None:
    """The role that is not selected keeps gradient, rate and weights."""
    method = OneOptimizer(cfg=toys.run_config(), role_models=_roles(toys))
    for net in (method.student.transformer, method.role_modules["critic"]["transformer"]):
        net.weight.grad = torch.tensor(1.0)
    method.optimizers_schedulers_step(1)
    method.optimizers_zero_grad(1)
    assert method.student.transformer.weight.grad is None
    assert method.student.transformer.weight.item() != 1.0
    assert method._lr_scheduler_dict["student"].get_last_lr() == [0.05]
    critic = method.role_modules["critic"]["transformer"]
    assert critic.weight.grad.item() == 1.0
    assert critic.weight.item() == 2.0


def test_updated_roles_are_those_whose_optimizer_is_selected(toys: ModuleType) -> None:
    """Unselected and unknown roles were not updated."""
    method = OneOptimizer(cfg=toys.run_config(), role_models=_roles(toys))
    answers = [method.did_update_role(role, 1) for role in ("student", "critic", "teacher", "x")]
    assert answers == [True, False, False, False]
    assert method.get_grad_clip_targets(1) == {"student": method.student.transformer}


def test_a_managed_method_owns_its_step(toys: ModuleType) -> None:
    """Two optimizer steps happen in one step, and the weight approaches the target."""
    method = Managed(cfg=toys.run_config(), role_models=_roles(toys))
    assert method.manages_optimization()
    stream = _batches(-1.0)
    first = float(method.managed_train_step(stream, 1)[0]["total_loss"].detach())
    assert method._lr_scheduler_dict["student"].last_epoch == 2
    for iteration in range(2, 40):
        last = method.managed_train_step(stream, iteration)[0]["total_loss"]
    assert float(last.detach()) < 0.7 * first


def test_the_default_managed_step_is_one_ordinary_step(toys: ModuleType) -> None:
    """It takes the next batch and leaves the rest to the caller."""
    method = OneOptimizer(cfg=toys.run_config(), role_models=_roles(toys))
    assert not method.manages_optimization()
    losses, _, _ = method.managed_train_step(_batches(3.0), 1)
    assert losses["total_loss"].item() == 4.0


def test_train_start_seeds_globals_alike_and_the_generator_by_rank(
    toys: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 3 draws from seed + 3, while Python, NumPy and torch start from the seed."""
    method = OneOptimizer(cfg=toys.run_config(), role_models=_roles(toys))
    with pytest.raises(RuntimeError, match="on_train_start"):
        _ = method.generator
    seen = []
    for rank in ("0", "3"):
        monkeypatch.setenv("RANK", rank)
        method.on_train_start()
        seen.append((random.random(), np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
        assert method.generator.initial_seed() == 7 + int(rank)
    assert seen[0] == seen[1]


def test_checkpoints_hold_the_trainable_roles(toys: ModuleType) -> None:
    """Frozen roles are left out."""
    method = OneOptimizer(cfg=toys.run_config(), role_models=_roles(toys))
    state = method.checkpoint_state()
    assert sorted(state) == [
        "optimizers.critic", "optimizers.student", "roles.critic.transformer",
        "roles.student.transformer", "schedulers.critic", "schedulers.student",
    ]  # fmt: skip
    assert state["optimizers.student"] is method._optimizer_dict["student"]
    assert method.on_validation_begin() == {}


def test_resuming_gives_every_optimizer_a_zero_state(toys: ModuleType) -> None:
    """A role that steps rarely gets targets too, and a seeded state changes no first step."""
    method = OneOptimizer(cfg=toys.run_config(), role_models=_roles(toys))
    plain = OneOptimizer(cfg=toys.run_config(), role_models=_roles(toys))
    method.seed_optimizer_state_for_resume()
    for optimizer in method._optimizer_dict.values():
        states = list(optimizer.state.values())
        assert len(states) == 3
        assert all(set(s) == {"step", "exp_avg", "exp_avg_sq"} for s in states)
        assert all(not value.any() for s in states for value in s.values())
    for candidate in (method, plain):
        losses, outputs, _ = candidate.single_train_step({"target": 0.0}, 1)
        candidate.backward(losses, outputs)
        candidate.optimizers_schedulers_step(1)
    assert torch.equal(method.student.transformer.weight, plain.student.transformer.weight)


def test_seeding_knows_the_kinds_of_adam_and_leaves_others_alone(toys: ModuleType) -> None:
    """A state of Adam's would mean nothing to SGD; amsgrad keeps one tensor more."""
    method = OneOptimizer(cfg=toys.run_config(), role_models=_roles(toys))
    parameters = list(method.student.transformer.parameters())
    sgd = torch.optim.SGD(parameters, lr=0.1)
    ams = torch.optim.AdamW(parameters, lr=0.1, amsgrad=True)
    method._optimizer_dict = {"student": sgd, "critic": ams}
    method.seed_optimizer_state_for_resume()
    assert not sgd.state
    keys = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    assert [set(state) for state in ams.state.values()] == [keys] * len(parameters)
