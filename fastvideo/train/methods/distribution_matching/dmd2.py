"""DMD2: distilling a diffusion teacher into a student of few steps.

Yin et al. 2024, "Improved Distribution Matching Distillation for Fast Image Synthesis"
(arXiv:2405.14867), on rectified flows. The student learns from the difference of two scores at a
noised sample of its own: that of the frozen teacher, which knows the data, and that of the critic,
which is trained along the way to know the student's samples.

Shapes: latents are [B, T, C, H, W]; N is the timestep of pure noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.functional import mse_loss

from fastvideo.distributed import get_world_group
from fastvideo.errors import ConfigError
from fastvideo.profiler import profiler_region
from fastvideo.train.methods.base import TrainingMethod
from fastvideo.train.methods.distribution_matching.dmd2_config import DMD2_KEYS, DMD2Config
from fastvideo.train.methods.distribution_matching.rollout import draw_rollout
from fastvideo.train.methods.optimizers import (
    build_role_optimizer,
    check_optimizer,
    schedule_plan,
)
from fastvideo.train.methods.roles import Role, stated_roles
from fastvideo.train.models.conditioning import guidance_pair
from fastvideo.train.models.flow import NUM_TRAIN_TIMESTEPS, unshift_sigma
from fastvideo.train.models.latent_size import check_made_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.methods.base import LossMap, Outputs, StepResult
    from fastvideo.train.methods.lr_schedulers import SchedulePlan
    from fastvideo.train.models.base import LatentsSource, ModelBase
    from fastvideo.train.models.batch import TrainingBatch

_ROLES = {"student": True, "teacher": False, "critic": True}
_RATES = ("training.optimizer.learning_rate", "method.fake_score_learning_rate")


class DMD2Method(TrainingMethod):
    """Trains student and critic against a frozen teacher.

    The critic learns in every step; the student in every ``generator_update_interval``-th. What
    the student does on the other steps is sampled without gradients.

    Attributes:
        teacher: The frozen model whose distribution is matched.
        critic: The model of the student's own distribution ("fake score").
        config: The checked ``method:`` section.
    """

    update_region: ClassVar[str | None] = "distillation_update"
    known_keys: ClassVar[frozenset[str] | None] = DMD2_KEYS
    known_roles: ClassVar[frozenset[str] | None] = frozenset(_ROLES)

    @classmethod
    def check_settings(cls, cfg: Any) -> None:  # noqa: ANN401 - as for the constructor
        """Refuses what the constructor refuses; see :meth:`TrainingMethod.check_settings`."""
        _check_roles(stated_roles(cfg.models))
        config = DMD2Config.from_mapping(cfg.method, num_train_timesteps=NUM_TRAIN_TIMESTEPS)
        _check_data(cfg.training, config)
        if config.rollout_mode == "simulate":
            check_made_size(cfg.training.data)
        rates = (cfg.training.optimizer.learning_rate, config.fake_score_learning_rate)
        plans = _plans(cfg.training, config)
        for rate, plan, where in zip(rates, plans, _RATES, strict=True):
            check_optimizer(rate, plan, where=where)

    def __init__(self, *, cfg: Any, role_models: Mapping[str, ModelBase]) -> None:  # noqa: ANN401
        """Checks roles and settings, prepares the student, and makes both optimizers.

        Args:
            cfg: The run's config.
            role_models: role → model: ``student`` and ``critic`` trainable, ``teacher`` frozen.

        Raises:
            ConfigError: A role is missing or wrongly frozen, or a setting cannot be used.
        """
        super().__init__(cfg=cfg, role_models=role_models)
        _check_roles(role_models)
        self.teacher = role_models["teacher"]
        self.critic = role_models["critic"]
        self.config = DMD2Config.from_mapping(
            self.method_config, num_train_timesteps=self.student.num_train_timesteps
        )
        _check_data(self.training_config, self.config)
        self.student.init_preprocessors(self.training_config)
        self.student.set_requires_negative_conditioning(self.config.needs_negative_prompt)
        self._denoising_timesteps = self.config.sampling_timesteps(self.student.noise_scheduler)
        self._build_optimizers()

    def _build_optimizers(self) -> None:
        settings = self.training_config.optimizer
        plans = _plans(self.training_config, self.config)
        student = build_role_optimizer(
            self.student,
            learning_rate=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            plan=plans[0],
            where=_RATES[0],
        )
        critic = build_role_optimizer(
            self.critic,
            learning_rate=self.config.fake_score_learning_rate,
            betas=self.config.fake_score_betas,
            weight_decay=settings.weight_decay,
            plan=plans[1],
            where=_RATES[1],
        )
        self._optimizer_dict = {"student": student[0], "critic": critic[0]}
        self._lr_scheduler_dict = {"student": student[1], "critic": critic[1]}

    # -- One step --------------------------------------------------------------------------------

    def updates_student(self, iteration: int) -> bool:
        """Tells whether the student is updated in this step."""
        return iteration % self.config.generator_update_interval == 0

    def step_kind(self, iteration: int) -> str:
        """Returns ``generator`` for a step that updates the student, else ``critic``."""
        return "generator" if self.updates_student(iteration) else "critic"

    def single_train_step(self, batch: Mapping[str, Any], iteration: int) -> StepResult:
        """Computes the student's loss, if it is its turn, and the critic's.

        Returns:
            Losses ``total_loss``, ``generator_loss`` (0 when the student is not updated) and
            ``fake_score_loss``; what :meth:`backward` needs; and the metric ``update_student``.
        """
        source: LatentsSource = "zeros" if self.config.rollout_mode == "simulate" else "data"
        prepared = self.student.prepare_batch(
            batch, generator=self.generator, latents_source=source
        )
        updates = self.updates_student(iteration)
        samples = None
        generator_loss = torch.zeros((), device=self.student.device)
        if updates:
            generator_loss, samples = self._generator_loss(prepared)
        if not self.config.reuse_generator_rollout:
            samples = None
        critic_loss = self._critic_loss(prepared, samples)
        losses = {
            "total_loss": generator_loss + critic_loss,
            "generator_loss": generator_loss,
            "fake_score_loss": critic_loss,
        }
        outputs = {"_fv_backward": {"student": None, "critic": None}, "update_student": updates}
        return losses, outputs, {"update_student": int(updates)}

    def backward(self, loss_map: LossMap, outputs: Outputs, *, grad_accum_rounds: int = 1) -> None:
        """Adds the student's gradients, if it is its turn, then the critic's."""
        contexts = outputs["_fv_backward"]
        if outputs["update_student"]:
            self.student.backward(
                loss_map["generator_loss"],
                contexts["student"],
                grad_accum_rounds=grad_accum_rounds,
            )
        self.critic.backward(
            loss_map["fake_score_loss"], contexts["critic"], grad_accum_rounds=grad_accum_rounds
        )

    # -- Sampling from the student ---------------------------------------------------------------

    def _rollout(self, batch: TrainingBatch, *, with_grad: bool) -> Tensor:
        """Samples clean latents from the student; gradients, if any, of the last step only."""
        with profiler_region("dmd2_student_rollout"):
            if self.config.rollout_mode == "simulate":
                noisy, timestep = self._simulate(batch)
            else:
                noisy, timestep = self._noise_data(batch)
            with torch.set_grad_enabled(with_grad):
                return self._student_x0(noisy, timestep, batch)

    def _simulate(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Runs the steps before the drawn one, from pure noise; returns its input."""
        steps = self._denoising_timesteps
        plan = draw_rollout(
            batch.latents.shape,
            len(steps),
            generator=self.generator,
            group=get_world_group(),
            sync_target=self.config.sync_rollout_target,
        )
        noisy = reached = plan.latents
        with torch.no_grad():
            for index in range(plan.num_prefix):
                clean = self._student_x0(noisy, self._timestep(steps[index]), batch)
                if index >= plan.target:
                    continue
                noisy = self.student.add_noise(
                    clean, plan.noises[index], self._timestep(steps[index + 1])
                )
                reached = noisy
        return reached, self._timestep(steps[plan.target])

    def _noise_data(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Noises the data to one of the denoising steps."""
        steps = self._denoising_timesteps
        device = self.generator.device
        index = torch.randint(len(steps), (1,), generator=self.generator, device=device)
        timestep = torch.tensor(steps, device=device)[index]
        return self.student.add_noise(batch.latents, self._noise_like(batch), timestep), timestep

    def _student_x0(self, noisy: Tensor, timestep: Tensor, batch: TrainingBatch) -> Tensor:
        with profiler_region("distillation_student_forward"):
            return self.student.predict_x0(
                noisy, timestep, batch, conditional=True, attn_kind="vsa"
            )

    def _timestep(self, value: float) -> Tensor:
        return torch.full((1,), value, device=self.student.device)

    def _noise_like(self, batch: TrainingBatch) -> Tensor:
        return torch.randn(
            batch.latents.shape, generator=self.generator, device=self.generator.device
        )

    def _score_timestep(self) -> Tensor:
        """Draws the timestep [1] at which scores are compared.

        It is drawn uniformly before the shift, between what the shift maps onto the bounds.
        Clamping after the shift would pile up draws on the bounds (14 % on the upper one with
        shift 8 and ratio 0.98).
        """
        total = self.student.num_train_timesteps
        bounds = (self.config.min_timestep_ratio, self.config.max_timestep_ratio)
        low, high = (unshift_sigma(ratio, self.student.timestep_shift) for ratio in bounds)
        device = self.generator.device
        uniform = torch.rand((1,), generator=self.generator, device=device)
        unshifted = (low + (high - low) * uniform) * total
        shifted = self.student.shift_and_clamp_timestep(unshifted)
        return shifted.clamp(bounds[0] * total, bounds[1] * total)

    # -- Losses ----------------------------------------------------------------------------------

    def _generator_loss(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Returns the student's loss, and the detached samples it was computed on.

        The gradient with respect to a sample x is g / numel(x), where g is the normalised
        difference of the critic's and the teacher's predictions.
        """
        with profiler_region("dmd2_generator_loss"):
            samples = self._rollout(batch, with_grad=True)
            with torch.no_grad():
                timestep, noise = self._score_timestep(), self._noise_like(batch)
                noisy = self.student.add_noise(samples, noise, timestep)
                fake = self.critic.predict_x0(noisy, timestep, batch, conditional=True)
                real = self._teacher_x0(noisy, timestep, batch)
            with profiler_region("distillation_loss"):
                loss = distribution_matching_loss(samples, fake=fake, real=real)
            return loss, samples.detach()

    def _teacher_x0(self, noisy: Tensor, timestep: Tensor, batch: TrainingBatch) -> Tensor:
        """Predicts with guidance, r_u + s·(r_c - r_u); a scale of 1 needs r_c only."""
        if not self.config.uses_guidance:
            with profiler_region("distillation_teacher_forward"):
                return self.teacher.predict_x0(noisy, timestep, batch, conditional=True)
        conditional, unconditional = self._teacher_pair(noisy, timestep, batch)
        scale = self.config.real_score_guidance_scale
        return unconditional + scale * (conditional - unconditional)

    def _teacher_pair(
        self, noisy: Tensor, timestep: Tensor, batch: TrainingBatch
    ) -> tuple[Tensor, Tensor]:
        """Predicts with the prompt and without; in one call if so configured."""
        policy = self.config.cfg_uncond
        if self.config.batch_teacher_guidance:
            pair = guidance_pair(batch, policy)
            with profiler_region("distillation_teacher_forward"):
                both = self.teacher.predict_x0(
                    torch.cat([noisy, noisy]), timestep, pair, conditional=True
                )
            conditional, unconditional = both.chunk(2)
            return conditional, unconditional
        with profiler_region("distillation_teacher_forward"):
            conditional = self.teacher.predict_x0(noisy, timestep, batch, conditional=True)
        with profiler_region("distillation_teacher_forward"):
            unconditional = self.teacher.predict_x0(
                noisy, timestep, batch, conditional=False, cfg_uncond=policy
            )
        return conditional, unconditional

    def _critic_loss(self, batch: TrainingBatch, samples: Tensor | None) -> Tensor:
        """Returns the critic's flow-matching loss on samples of the student."""
        with profiler_region("dmd2_critic_loss"):
            if samples is None:
                samples = self._rollout(batch, with_grad=False)
            timestep, noise = self._score_timestep(), self._noise_like(batch)
            noisy = self.student.add_noise(samples, noise, timestep)
            velocity = self.critic.predict_noise(noisy, timestep, batch, conditional=True)
            with profiler_region("distillation_loss"):
                return mse_loss(velocity.float(), (noise - samples).float())

    # -- Optimisation ----------------------------------------------------------------------------

    def _updated_roles(self, iteration: int) -> tuple[str, ...]:
        return ("student", "critic") if self.updates_student(iteration) else ("critic",)

    def get_optimizers(self, iteration: int) -> list[Optimizer]:
        """Returns the critic's optimizer, after the student's if it is its turn."""
        return [self._optimizer_dict[role] for role in self._updated_roles(iteration)]

    def get_lr_schedulers(self, iteration: int) -> list[LRScheduler]:
        """Returns the schedules of the roles that are updated; the student's counts its updates."""
        return [self._lr_scheduler_dict[role] for role in self._updated_roles(iteration)]

    def get_grad_clip_targets(self, iteration: int) -> dict[str, nn.Module]:
        """Returns the transformers of the roles that are updated."""
        roles = self._updated_roles(iteration)
        return {role: self._role_models[role].transformer for role in roles}


def distribution_matching_loss(samples: Tensor, *, fake: Tensor, real: Tensor) -> Tensor:
    """Returns ½·MSE(x, sg(x - g)) with g = (f - r) / mean|x - r|, in float32.

    The denominator is one number over the whole tensor, and at least the smallest step of float32
    numbers around 1, so that it stays finite where student and teacher agree.

    Args:
        samples: The student's samples x, with their graph.
        fake: The critic's predictions f at noised samples.
        real: The teacher's predictions r at the same.
    """
    with torch.no_grad():
        detached = samples.detach().float()
        scale = (detached - real.float()).abs().mean()
        scale = scale.clamp(min=torch.finfo(torch.float32).eps)
        gradient = torch.nan_to_num((fake.float() - real.float()) / scale)
        target = detached - gradient
    return 0.5 * mse_loss(samples.float(), target)


def _check_data(training: TrainingConfig, config: DMD2Config) -> None:
    data_type = training.data.preprocessed_data_type
    if data_type == "text_only" and config.rollout_mode != "simulate":
        message = (
            "training.data.preprocessed_data_type is text_only, so method.rollout_mode must be "
            f"simulate, not {config.rollout_mode}: there are no latents to start from"
        )
        raise ConfigError(message)


def _plans(training: TrainingConfig, config: DMD2Config) -> tuple[SchedulePlan, SchedulePlan]:
    """Returns the schedules of the student and the critic."""
    steps = training.loop.max_train_steps
    student = schedule_plan(
        training.optimizer,
        num_steps=steps // config.generator_update_interval,
        step_rules=config.lr_step_rules,
    )
    critic = schedule_plan(
        training.optimizer,
        name=config.fake_score_lr_scheduler,
        num_steps=steps,
        step_rules=config.fake_score_lr_step_rules,
    )
    return student, critic


def _check_roles(role_models: Mapping[str, Role]) -> None:
    for role, trainable in _ROLES.items():
        model = role_models.get(role)
        if model is None:
            message = f"models.{role} is missing; DMD2 needs student, teacher and critic"
            raise ConfigError(message)
        if model.trainable != trainable:
            wanted = "true" if trainable else "false"
            message = f"models.{role}.trainable must be {wanted} for DMD2"
            raise ConfigError(message)
