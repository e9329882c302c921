"""Activations of a run's roles, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fastvideo.analysis import ActivationFile
from fastvideo.train.config import TrainingConfig
from fastvideo.train.methods.base import StepResult, TrainingMethod
from fastvideo.train.trainer import Trainer

if TYPE_CHECKING:
    from pathlib import Path


class TwoRoles(TrainingMethod):
    """A student that is fitted to a teacher, which runs twice in each step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        roles: Any = {
            role: SimpleNamespace(transformer=nn.Sequential(nn.Linear(2, 2)))
            for role in ("student", "teacher")
        }
        cfg = SimpleNamespace(training=TrainingConfig(), method={})
        super().__init__(cfg=cfg, role_models=roles)
        self._teacher = roles["teacher"].transformer
        parameters = self.student.transformer.parameters()
        self._optimizer_dict = {"student": torch.optim.SGD(parameters, lr=0.1)}

    def on_train_start(self) -> None:
        """Has nothing to prepare."""

    def single_train_step(self, batch: Any, iteration: int) -> StepResult:
        if iteration == self.method_config.get("fail_at"):
            message = "broken on purpose"
            raise RuntimeError(message)
        with torch.no_grad():
            target = (self._teacher(batch) + self._teacher(-batch)) / 2
        return {"total_loss": ((self.student.transformer(batch) - target) ** 2).mean()}, {}, {}

    def backward(self, loss_map: Any, outputs: Any, *, grad_accum_rounds: int = 1) -> None:
        loss_map["total_loss"].backward()

    def get_optimizers(self, iteration: int) -> list[Any]:
        return list(self._optimizer_dict.values())

    def get_lr_schedulers(self, iteration: int) -> list[Any]:
        return []


def _run(method: TwoRoles, folder: Path) -> None:
    config = TrainingConfig()
    config.checkpoint.output_dir = str(folder)
    Trainer(config).run(method, dataloader=[torch.ones(1, 2)], max_steps=2)


def test_roles_and_steps_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every role is traced, in the steps of the run; at its end nothing is attached."""
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "1")
    monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", str(tmp_path / "t.jsonl"))
    method = TwoRoles()
    _run(method, tmp_path)
    keys = [record.key for record in ActivationFile(tmp_path / "t.jsonl").records()]
    assert [(key.step.number, key.role, key.module, key.call) for key in keys] == [
        (step, role, "0", call)
        for step in (1, 2)
        for role, call in (("teacher", 0), ("teacher", 1), ("student", 0))
    ]
    assert not any(module._forward_hooks for module in method.modules())


def test_a_run_that_fails_leaves_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded is written, and nothing stays attached."""
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "1")
    monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", str(tmp_path / "t.jsonl"))
    method = TwoRoles()
    method.method_config["fail_at"] = 2
    with pytest.raises(RuntimeError, match="broken on purpose"):
        _run(method, tmp_path)
    records = list(ActivationFile(tmp_path / "t.jsonl").records())
    assert [record.key.step.number for record in records] == [1, 1, 1]
    assert not any(module._forward_hooks for module in method.modules())


def test_off_attaches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without the variable never registers a hook."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a hook was registered")

    monkeypatch.setattr(nn.Module, "register_forward_hook", refuse)
    _run(TwoRoles(), tmp_path)
