"""Toy methods, a recording callback and manager, and a run of them, for tests of the loop."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fastvideo.train.callbacks import Callback
from fastvideo.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastvideo.train.config import TrainingConfig


class BrokenOnPurposeError(Exception):
    """What a test makes fail."""


class ToyMethod:
    """Fits a linear student to twice its input, and remembers what the trainer asked of it."""

    def __init__(self, lr: float = 0.1) -> None:
        torch.manual_seed(0)
        self.student = SimpleNamespace(transformer=nn.Linear(2, 2))
        optimizer = torch.optim.SGD(self.student.transformer.parameters(), lr=lr)
        self._optimizer_dict = {"student": optimizer}
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        self.calls: list[tuple[Any, ...]] = []
        self.tracker: Any = None
        self.loss_scale: Callable[[int], float] = lambda step: 1.0
        self.extra_metrics: dict[str, Any] = {}
        self.extra_losses: dict[str, Any] = {}

    def set_tracker(self, tracker: Any) -> None:
        self.calls.append(("set_tracker",))
        self.tracker = tracker

    def on_train_start(self) -> None:
        self.calls.append(("on_train_start",))

    def manages_optimization(self) -> bool:
        return False

    def single_train_step(self, batch: torch.Tensor, iteration: int) -> tuple[Any, Any, Any]:
        self.calls.append(("forward", iteration, batch.flatten().tolist()))
        loss = ((self.student.transformer(batch) - 2 * batch) ** 2).mean()
        loss = loss * self.loss_scale(iteration)
        losses = {"total_loss": loss, **self.extra_losses}
        return losses, {}, {"batch_mean": batch.mean(), **self.extra_metrics}

    def backward(self, loss_map: Any, outputs: Any, *, grad_accum_rounds: int = 1) -> None:
        self.calls.append(("backward", grad_accum_rounds))
        (loss_map["total_loss"] / grad_accum_rounds).backward()

    def modules(self) -> Iterator[nn.Module]:
        return self.student.transformer.modules()

    def get_grad_clip_targets(self, iteration: int) -> dict[str, nn.Module]:
        return {"student": self.student.transformer}

    def did_update_role(self, role: str, iteration: int) -> bool:
        return role == "student"

    def optimizers_schedulers_step(self, iteration: int) -> None:
        self.calls.append(("step", iteration))
        self._optimizer_dict["student"].step()
        self._scheduler.step()

    def optimizers_zero_grad(self, iteration: int) -> None:
        self.calls.append(("zero_grad", iteration))
        self._optimizer_dict["student"].zero_grad(set_to_none=True)

    def seed_optimizer_state_for_resume(self) -> None:
        self.calls.append(("seed_optimizer_state",))


class ManagedMethod(ToyMethod):
    """Fetches two batches per step and steps by itself."""

    def manages_optimization(self) -> bool:
        return True

    def managed_train_step(self, stream: Iterator[Any], iteration: int) -> tuple[Any, Any, Any]:
        total = torch.zeros(())
        for _ in range(2):
            losses, _, _ = self.single_train_step(next(stream), iteration)
            losses["total_loss"].backward()
            total = total + losses["total_loss"].detach()
        self._optimizer_dict["student"].step()
        return {"total_loss": total}, {}, {"reward": 3.0}


class RecordingCallback(Callback):
    """Remembers its calls and the scalars it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.scalars: list[dict[str, float]] = []

    def on_train_start(self, method: Any, iteration: int = 0) -> None:
        self.calls.append(("train_start", iteration))

    def on_before_optimizer_step(self, method: Any, iteration: int = 0) -> None:
        assert method.student.transformer.weight.grad is not None
        self.calls.append(("before_optimizer", iteration))

    def on_training_step_end(self, method: Any, loss_dict: Any, iteration: int = 0) -> None:
        self.scalars.append(dict(loss_dict))
        self.calls.append(("step_end", iteration))

    def on_validation_begin(self, method: Any, iteration: int = 0) -> None:
        self.calls.append(("validation_begin", iteration))

    def on_validation_end(self, method: Any, iteration: int = 0) -> None:
        self.calls.append(("validation_end", iteration))

    def on_train_end(self, method: Any, iteration: int = 0) -> None:
        self.calls.append(("train_end", iteration))


class RecordingManager:
    """A checkpoint manager that only remembers."""

    def __init__(self, log: list[tuple[Any, ...]], resumed: int | None) -> None:
        self.log = log
        self.resumed = resumed

    def maybe_resume(self, *, resume_from_checkpoint: str) -> int | None:
        self.log.append(("maybe_resume", resume_from_checkpoint))
        return self.resumed

    def load_rng_snapshot(self, resume_from_checkpoint: str) -> None:
        self.log.append(("load_rng_snapshot", resume_from_checkpoint))

    def maybe_save(self, step: int) -> None:
        self.log.append(("maybe_save", step))

    def save_final(self, step: int) -> None:
        self.log.append(("save_final", step))

    def close(self) -> None:
        self.log.append(("close",))


def batches(count: int = 3) -> list[torch.Tensor]:
    """Returns batches that are told apart by their values."""
    return [torch.full((1, 2), float(index + 1)) for index in range(count)]


def run(
    config: TrainingConfig, method: Any, max_steps: int, *, loader: Any = None, **kwargs: Any
) -> tuple[Trainer, RecordingCallback]:
    """Runs a trainer with a recording callback behind the configured ones."""
    trainer = Trainer(config, callback_configs=kwargs.pop("callback_configs", {}))
    recording = RecordingCallback()
    trainer.callbacks._callbacks["recording"] = recording
    trainer.run(method, dataloader=loader or batches(), max_steps=max_steps, **kwargs)
    return trainer, recording


def lines(config: TrainingConfig) -> list[dict[str, Any]]:
    """Reads the metrics that a run wrote."""
    path = Path(config.checkpoint.output_dir, "tracker", "metrics.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def inside(*names: str) -> list[tuple[str, str]]:
    """Returns the events of regions that follow each other."""
    return [(what, name) for name in names for what in ("enter", "exit")]


ONE_STEP = [
    ("enter", "training_train_one_step"),
    *inside(
        "training_dataloader",
        "training_forward",
        "training_backward",
        "training_optimizer",
        "training_callbacks",
    ),
    ("exit", "training_train_one_step"),
]
