"""The contract between a training method and the trainer.

An ordinary method turns a batch into losses and names the optimizers to step; the trainer fetches
batches, calls backward and steps. A method that manages its own optimisation does all of that in
:meth:`TrainingMethod.managed_train_step`.
"""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fastvideo.distributed import get_sp_world_size, get_world_rank
from fastvideo.errors import ConfigError
from fastvideo.profiler import profiler_region

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from fastvideo.train.models.base import ModelBase

LossMap = dict[str, Tensor]
Outputs = dict[str, Any]
Metrics = dict[str, "float | int | Tensor"]
StepResult = tuple[LossMap, Outputs, Metrics]


class TrainingMethod(nn.Module, ABC):
    """A training method over some model roles.

    Subclasses fill ``_optimizer_dict`` and ``_lr_scheduler_dict`` in their constructor.

    Attributes:
        student: The role that is trained for use.
        training_config: The run's ``training:`` section.
        method_config: The run's ``method:`` section as a dict of its own.
        role_modules: role → {"transformer": module}.
        tracker: Where a method may log artefacts; set by the trainer.
        cuda_generator: Random numbers of this rank on the student's device (also on CPU), made by
            :meth:`on_train_start` with ``training.data.seed`` + rank.
        update_region: Profiler region around optimizer and scheduler steps, if the method has one.
        known_keys: The keys that ``method:`` may have besides ``_target_``; others are warned of.
            None accepts any.
        known_roles: The roles that the method uses; others are warned of. None accepts any.
    """

    update_region: ClassVar[str | None] = None
    known_keys: ClassVar[frozenset[str] | None] = None
    known_roles: ClassVar[frozenset[str] | None] = None

    @classmethod
    def check_settings(cls, cfg: Any) -> None:  # noqa: ANN401 - as for the constructor
        """Refuses settings that the constructor refuses, before any model is loaded.

        The launcher asks, where all models are of this package. Nothing may be written.

        Args:
            cfg: The run's config.

        Raises:
            ConfigError: A role is missing, or a value cannot be used.
        """

    def __init__(self, *, cfg: Any, role_models: Mapping[str, ModelBase]) -> None:  # noqa: ANN401
        """Keeps the roles.

        Args:
            cfg: The run's config: ``.training`` and ``.method`` are read.
            role_models: role → model; must have a ``student``.

        Raises:
            ConfigError: There is no student.
        """
        super().__init__()
        if "student" not in role_models:
            given = ", ".join(sorted(role_models)) or "none"
            message = f"models.student is missing (roles given: {given}); every method trains it"
            raise ConfigError(message)
        self._role_models = dict(role_models)
        self.student = role_models["student"]
        self.training_config = cfg.training
        self.method_config: dict[str, Any] = dict(cfg.method)
        self.role_modules = nn.ModuleDict(
            {
                role: nn.ModuleDict({"transformer": model.transformer})
                for role, model in role_models.items()
            }
        )
        self.tracker: Any = None
        self.cuda_generator: torch.Generator | None = None
        self._optimizer_dict: dict[str, Optimizer] = {}
        self._lr_scheduler_dict: dict[str, LRScheduler] = {}

    def set_tracker(self, tracker: Any) -> None:  # noqa: ANN401 - any tracker will do
        """Keeps the tracker that the trainer logs to."""
        self.tracker = tracker

    @property
    def generator(self) -> torch.Generator:
        """The random numbers of this rank.

        Raises:
            RuntimeError: :meth:`on_train_start` has not been called.
        """
        if self.cuda_generator is None:
            message = "the method has no generator yet; call on_train_start() before training"
            raise RuntimeError(message)
        return self.cuda_generator

    # -- One step --------------------------------------------------------------------------------

    @abstractmethod
    def single_train_step(self, batch: Mapping[str, Any], iteration: int) -> StepResult:
        """Computes the losses of one batch.

        Args:
            batch: A batch of the loader.
            iteration: The step, counted from 1.

        Returns:
            Losses with the scalar ``total_loss``; outputs, which may hold ``_fv_backward``, what
            :meth:`backward` needs; and scalar metrics whose keys differ from those of the losses.
        """

    def backward(self, loss_map: LossMap, outputs: Outputs, *, grad_accum_rounds: int = 1) -> None:
        """Adds the gradients of ``total_loss / grad_accum_rounds``."""
        ctx = outputs.get("_fv_backward")
        self.student.backward(loss_map["total_loss"], ctx, grad_accum_rounds=grad_accum_rounds)

    def manages_optimization(self) -> bool:
        """Tells whether :meth:`managed_train_step` replaces the trainer's own step."""
        return False

    def managed_train_step(
        self, data_stream: Iterator[Mapping[str, Any]], iteration: int
    ) -> StepResult:
        """Does a whole step: fetching, backward and optimizers included.

        Args:
            data_stream: Batches of the loader, without end.
            iteration: The step, counted from 1.

        Returns:
            As :meth:`single_train_step`.
        """
        return self.single_train_step(next(data_stream), iteration)

    # -- Optimisation ----------------------------------------------------------------------------

    @abstractmethod
    def get_optimizers(self, iteration: int) -> list[Optimizer]:
        """Returns the optimizers that step in this iteration, and no others."""

    @abstractmethod
    def get_lr_schedulers(self, iteration: int) -> list[LRScheduler]:
        """Returns the schedulers that step in this iteration, and no others."""

    def get_grad_clip_targets(self, iteration: int) -> dict[str, nn.Module]:
        """Returns the modules whose gradients are clipped in this iteration, by name."""
        del iteration
        return {"student": self.student.transformer}

    def optimizers_schedulers_step(self, iteration: int) -> None:
        """Steps the optimizers of this iteration, then its schedulers."""
        region = self.update_region
        with contextlib.nullcontext() if region is None else profiler_region(region):
            for optimizer in self.get_optimizers(iteration):
                optimizer.step()
            for scheduler in self.get_lr_schedulers(iteration):
                scheduler.step()

    def optimizers_zero_grad(self, iteration: int) -> None:
        """Drops the gradients of this iteration's optimizers."""
        for optimizer in self.get_optimizers(iteration):
            optimizer.zero_grad(set_to_none=True)

    def did_update_role(self, role: str, iteration: int) -> bool:
        """Tells whether the optimizer of ``role`` steps in this iteration."""
        optimizer = self._optimizer_dict.get(role)
        return any(optimizer is selected for selected in self.get_optimizers(iteration))

    # -- Life cycle ------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Seeds the global generators alike on all ranks, and this method's own by rank."""
        seed = int(self.training_config.data.seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - third-party code draws from the global one
        torch.manual_seed(seed)
        offset = get_world_rank() // get_sp_world_size()
        generator = torch.Generator(device=self.student.device)
        self.cuda_generator = generator.manual_seed(seed + offset)
        self.student.on_train_start()

    def on_validation_begin(self, iteration: int = 0) -> dict[str, Any]:
        """Returns validation metrics that the method computes itself; none by default."""
        del iteration
        return {}

    def checkpoint_state(self) -> dict[str, Any]:
        """Returns what a checkpoint holds of every trainable role.

        Returns:
            ``roles.<role>.transformer``, ``optimizers.<role>`` and ``schedulers.<role>`` with the
            live objects. Methods that change frozen roles add those.
        """
        states: dict[str, Any] = {
            f"roles.{role}.transformer": model.transformer
            for role, model in self._role_models.items()
            if model.trainable
        }
        states |= {f"optimizers.{role}": opt for role, opt in self._optimizer_dict.items()}
        states |= {f"schedulers.{role}": sch for role, sch in self._lr_scheduler_dict.items()}
        return states

    def seed_optimizer_state_for_resume(self) -> None:
        """Gives every trainable parameter a zero Adam state, so that a checkpoint has targets.

        It is the state that Adam makes in its first step before it uses it, so the steps after
        are not changed. All optimizers are filled, also those that do not step in the first
        iteration; those that are no Adam are left alone.
        """
        for optimizer in self._optimizer_dict.values():
            if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
                continue
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad and not optimizer.state.get(parameter):
                        optimizer.state[parameter] = _zero_adam_state(parameter, group)


def _zero_adam_state(parameter: Tensor, group: Mapping[str, Any]) -> dict[str, Tensor]:
    on_device = bool(group.get("fused") or group.get("capturable"))
    state = {
        "step": torch.zeros(
            (), dtype=torch.float32, device=parameter.device if on_device else None
        ),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
    if group.get("amsgrad"):
        state["max_exp_avg_sq"] = torch.zeros_like(parameter)
    return state
