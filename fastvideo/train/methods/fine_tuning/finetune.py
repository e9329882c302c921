"""Fine-tuning: the flow-matching loss on clean latents."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final

from torch.nn.functional import mse_loss

from fastvideo.errors import ConfigError
from fastvideo.train.methods.base import TrainingMethod
from fastvideo.train.methods.optimizers import (
    build_role_optimizer,
    check_optimizer,
    schedule_plan,
)
from fastvideo.train.methods.roles import Role, stated_roles
from fastvideo.train.models.flow import clean_from_velocity, sigma_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.methods.base import StepResult
    from fastvideo.train.methods.lr_schedulers import SchedulePlan
    from fastvideo.train.models.base import ModelBase
    from fastvideo.train.models.batch import TrainingBatch


@dataclass(frozen=True, slots=True)
class FineTuneConfig:
    """What fine-tuning is told. Attribute names are the YAML keys below `method`.

    Attributes:
        lr_step_rules: Rules of a `piecewise_constant` schedule: factors of the peak rate, each up
            to a step, and the last one, such as `"1:1000,0.5:2000,0.1"`.
    """

    lr_step_rules: str | None = None

    @classmethod
    def from_mapping(cls, method: Mapping[str, Any]) -> FineTuneConfig:
        """Returns the section.

        Args:
            method: The run's `method:` mapping.
        """
        return cls(lr_step_rules=method.get("lr_step_rules"))


FINETUNE_KEYS: Final = frozenset(f.name for f in fields(FineTuneConfig))
"""The keys that the section may have."""


class FineTuneMethod(TrainingMethod):
    """Trains the student to predict the velocity ε - x₀ at timesteps drawn from a density.

    With ``training.model.precondition_outputs`` the clean latents that follow from the prediction
    are compared instead, which weights each sample by sigma².
    """

    known_keys: ClassVar[frozenset[str] | None] = FINETUNE_KEYS
    known_roles: ClassVar[frozenset[str] | None] = frozenset({"student"})

    @classmethod
    def check_settings(cls, cfg: Any) -> None:  # noqa: ANN401 - as for the constructor
        """Refuses what the constructor refuses; see :meth:`TrainingMethod.check_settings`."""
        _check_student(stated_roles(cfg.models)["student"], cfg.training)
        check_optimizer(
            cfg.training.optimizer.learning_rate,
            _plan(cfg.training, cfg.method),
            where="training.optimizer.learning_rate",
        )

    def __init__(self, *, cfg: Any, role_models: Mapping[str, ModelBase]) -> None:  # noqa: ANN401
        """Prepares the student and its optimizer.

        Args:
            cfg: The run's config.
            role_models: role → model with a trainable ``student``.

        Raises:
            ConfigError: The student is missing or frozen, the learning rate is not above 0, or
                the data set has no latents.
        """
        super().__init__(cfg=cfg, role_models=role_models)
        training = self.training_config
        _check_student(self.student, training)
        self.student.init_preprocessors(training)
        optimizer, scheduler = build_role_optimizer(
            self.student,
            learning_rate=training.optimizer.learning_rate,
            betas=training.optimizer.betas,
            weight_decay=training.optimizer.weight_decay,
            plan=_plan(training, self.method_config),
            where="training.optimizer.learning_rate",
        )
        self._optimizer_dict = {"student": optimizer}
        self._lr_scheduler_dict = {"student": scheduler}

    def single_train_step(self, batch: Mapping[str, Any], iteration: int) -> StepResult:
        """Computes the loss of one batch; see :meth:`TrainingMethod.single_train_step`.

        Returns:
            ``total_loss`` and ``finetune_loss`` (the same), no outputs, no metrics.
        """
        del iteration
        prepared = self.student.prepare_batch(
            batch, generator=self.generator, latents_source="data"
        )
        noisy_BTCHW = prepared.noisy_model_input.permute(0, 2, 1, 3, 4)
        velocity = self.student.predict_noise(
            noisy_BTCHW, prepared.timesteps, prepared, conditional=True
        )
        loss = self._loss(velocity, noisy_BTCHW, prepared)
        return {"total_loss": loss, "finetune_loss": loss}, {}, {}

    def _loss(self, velocity: Tensor, noisy: Tensor, prepared: TrainingBatch) -> Tensor:
        if self.training_config.model.precondition_outputs:
            sigma = sigma_of(prepared.timesteps, noisy, self.student.num_train_timesteps)
            clean = clean_from_velocity(noisy, velocity, sigma)
            return mse_loss(clean.float(), prepared.latents.float())
        target = prepared.noise.permute(0, 2, 1, 3, 4) - prepared.latents
        return mse_loss(velocity.float(), target.float())

    def get_optimizers(self, iteration: int) -> list[Optimizer]:
        """Returns the student's optimizer."""
        del iteration
        return [self._optimizer_dict["student"]]

    def get_lr_schedulers(self, iteration: int) -> list[LRScheduler]:
        """Returns the student's schedule."""
        del iteration
        return [self._lr_scheduler_dict["student"]]


def _check_student(student: Role, training: TrainingConfig) -> None:
    if not student.trainable:
        message = "models.student.trainable is false, but fine-tuning trains the student"
        raise ConfigError(message)
    if training.data.preprocessed_data_type == "text_only":
        message = (
            "vae_latent not found: training.data.preprocessed_data_type is text_only, and "
            "fine-tuning needs latents; use a data set of type t2v"
        )
        raise ConfigError(message)


def _plan(training: TrainingConfig, method: Mapping[str, Any]) -> SchedulePlan:
    return schedule_plan(
        training.optimizer,
        num_steps=training.loop.max_train_steps,
        step_rules=FineTuneConfig.from_mapping(method).lr_step_rules,
    )
