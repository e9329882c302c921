"""A model and a method that run files of tests name: a linear student fitted to twice its input.

Imported by path in the tests' own process and in processes they start.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fastvideo.distributed import get_world_rank
from fastvideo.train.callbacks import Callback
from fastvideo.train.methods.base import StepResult, TrainingMethod
from fastvideo.train.models.base import ModelBase

if TYPE_CHECKING:
    from collections.abc import Mapping


class DyingRows(Dataset[torch.Tensor]):
    """Rows whose second kills the process that reads it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(2)


@final
class ToyModel(ModelBase):
    """A linear layer with three batches, or with a loader whose worker dies."""

    def __init__(
        self,
        *,
        init_from: str,
        training_config: Any,
        flow_shift: float = 3.0,
        trainable: bool = True,
        worker_dies: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.worker_dies = worker_dies
        self.transformer = nn.Linear(2, 2)
        self.device = torch.device("cpu")
        self.init_from = init_from
        self.training_config = training_config
        self.flow_shift = flow_shift
        self._trainable = trainable

    def init_preprocessors(self, training_config: Any) -> None:
        """Makes the batches and a step to start after."""
        generator = torch.Generator().manual_seed(training_config.data.seed)
        self.dataloader = [torch.rand(1, 2, generator=generator) for _ in range(3)]
        if self.worker_dies:
            self.dataloader = DataLoader(DyingRows(), num_workers=1)
        self.start_step = 0

    def prepare_batch(self, raw: Any, **options: Any) -> Any:
        """Is not used by the toy method."""
        raise NotImplementedError

    def predict_noise(self, *args: Any, **options: Any) -> Any:
        """Is not used by the toy method."""
        raise NotImplementedError

    def decode_latents(self, latents: Any) -> Any:
        """Is not used by the toy method."""
        raise NotImplementedError


@final
class ToyMethod(TrainingMethod):
    """Fits the student; fails or sends itself a signal at a step, if asked to."""

    def __init__(self, *, cfg: Any, role_models: Mapping[str, ModelBase]) -> None:
        super().__init__(cfg=cfg, role_models=role_models)
        self.student.init_preprocessors(cfg.training)
        optimizer = torch.optim.SGD(self.student.transformer.parameters(), lr=0.1)
        self._optimizer_dict = {"student": optimizer}
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        self._lr_scheduler_dict = {"student": schedule}

    def single_train_step(self, batch: Any, iteration: int) -> StepResult:
        """Computes the loss of one batch."""
        if iteration == self.method_config.get("fail_at"):
            message = f"broken on purpose at step {iteration}"
            raise RuntimeError(message)
        if iteration == self.method_config.get("sigterm_at"):
            os.kill(os.getpid(), signal.SIGTERM)
        if iteration == self.method_config.get("print_ready_at"):
            print(f"ready {os.getpid()}", flush=True)  # noqa: T201 - the test waits for it
        loss = ((self.student.transformer(batch) - 2 * batch) ** 2).mean()
        return {"total_loss": loss}, {}, {}

    def backward(self, loss_map: Any, outputs: Any, *, grad_accum_rounds: int = 1) -> None:
        """Adds the gradients."""
        (loss_map["total_loss"] / grad_accum_rounds).backward()

    def get_optimizers(self, iteration: int) -> list[Any]:
        """Steps the student every time."""
        return list(self._optimizer_dict.values())

    def get_lr_schedulers(self, iteration: int) -> list[Any]:
        """Steps the schedule every time."""
        return list(self._lr_scheduler_dict.values())


class DieOnce(Callback):
    """Kills one rank in a step, unless that has happened before.

    Args:
        rank: Which rank.
        step: In which step.
        marker: A file that says that it has happened.
    """

    def __init__(self, *, rank: int, step: int, marker: str) -> None:
        self._where = rank, step
        self._marker = Path(marker)

    def on_before_optimizer_step(self, method: Any, iteration: int = 0) -> None:
        """Is called in the step."""
        if (get_world_rank(), iteration) == self._where and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class NotAModel:
    """Is built like a model and is none."""

    def __init__(self, **options: Any) -> None:
        self.options = options
