"""Knowledge distillation: a student of few steps learns where its teacher's trajectories end.

The teacher samples one trajectory for every row of the data set, from noise that depends on the
seed and the row alone: x₀ … x_S by the ODE of the flow, with guidance. The student sees a state of
it, at one of its own timesteps, and predicts the end in one step (Luhman and Luhman 2021,
"Knowledge Distillation in Iterative Generative Models for Improved Sampling Speed", for several
steps). The trajectories are made once and kept on disk; then the teacher is let go.

Shapes: latents are [B, T, C, H, W]; K is the number of the student's timesteps.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.functional import mse_loss

from fastvideo.dataset.sampler import stable_hash
from fastvideo.distributed import (
    get_dp_rank,
    get_dp_world_size,
    get_world_group,
    is_sharded,
)
from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger
from fastvideo.profiler import profiler_region
from fastvideo.train.methods.base import TrainingMethod
from fastvideo.train.methods.knowledge_distillation.generation import (
    complete_cache,
    on_first_rank,
)
from fastvideo.train.methods.knowledge_distillation.kd_config import (
    KD_KEYS,
    KDConfig,
    nearest_steps,
)
from fastvideo.train.methods.knowledge_distillation.trajectory_cache import (
    CAPTION,
    LATENTS,
    MASK,
    REAL,
    TEXT,
    TIMESTEPS,
    TrajectoryCache,
    trimmed_text,
)
from fastvideo.train.methods.knowledge_distillation.trajectory_dataset import (
    TrajectoryDataset,
    trajectory_loader,
)
from fastvideo.train.methods.ode import follow_flow, sigma_grid
from fastvideo.train.methods.optimizers import (
    build_role_optimizer,
    check_optimizer,
    schedule_plan,
)
from fastvideo.train.methods.roles import Role, stated_roles
from fastvideo.train.models.data import pins_batches
from fastvideo.train.models.flow import NUM_TRAIN_TIMESTEPS
from fastvideo.train.models.latent_size import check_made_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.methods.base import StepResult
    from fastvideo.train.methods.knowledge_distillation.trajectory_cache import Sample
    from fastvideo.train.methods.lr_schedulers import SchedulePlan
    from fastvideo.train.models.base import LatentsSource, ModelBase
    from fastvideo.train.models.batch import TrainingBatch

logger = init_logger(__name__)

_TEACHER = "teacher"
_RATE = "training.optimizer.learning_rate"


class KDMethod(TrainingMethod):
    """Trains the student on trajectories of the teacher, which it makes first.

    The loader of the run is one over the trajectories. They are made when training starts, not when
    the method is, so a dry run makes none. Once they are there, the role ``teacher`` may be left
    out.

    Attributes:
        teacher: The frozen model that makes trajectories; None once they are there.
        config: The checked ``method:`` section.
        cache: The trajectories.
    """

    update_region: ClassVar[str | None] = "distillation_update"
    known_keys: ClassVar[frozenset[str] | None] = KD_KEYS
    known_roles: ClassVar[frozenset[str] | None] = frozenset({"student", _TEACHER})

    @classmethod
    def check_settings(cls, cfg: Any) -> None:  # noqa: ANN401 - as for the constructor
        """Refuses what the constructor refuses; see :meth:`TrainingMethod.check_settings`."""
        _check_roles(stated_roles(cfg.models))
        config = KDConfig.from_mapping(cfg.method, num_train_timesteps=NUM_TRAIN_TIMESTEPS)
        check_optimizer(
            cfg.training.optimizer.learning_rate, _plan(cfg.training, config), where=_RATE
        )
        if cfg.training.data.preprocessed_data_type == "text_only":
            check_made_size(cfg.training.data)

    def __init__(self, *, cfg: Any, role_models: Mapping[str, ModelBase]) -> None:  # noqa: ANN401
        """Checks roles, settings and cache, prepares the student, and makes its optimizer.

        Args:
            cfg: The run's config.
            role_models: role → model: a trainable ``student`` and, as long as trajectories are
                missing, a frozen ``teacher``.

        Raises:
            ConfigError: A role is missing or wrongly frozen, a setting cannot be used, or the
                cache belongs to another run.
        """
        super().__init__(cfg=cfg, role_models=role_models)
        _check_roles(role_models)
        self.teacher: ModelBase | None = role_models.get(_TEACHER)
        self.config = KDConfig.from_mapping(
            self.method_config, num_train_timesteps=self.student.num_train_timesteps
        )
        self.cache = TrajectoryCache(self.config.teacher_path_cache)
        self.student.init_preprocessors(self.training_config)
        self._source: Any = self.student.dataloader.dataset
        self._total = len(self._source)
        self._metadata = self._describe(cfg)
        self._kept_steps: tuple[int, ...] = ()
        self._sigmas: tuple[float, ...] = ()
        self._look_at_cache()
        self.student.dataloader = trajectory_loader(
            TrajectoryDataset(self.cache, self._total, self.config.student_timesteps),
            self.training_config.data,
            group=get_dp_rank(),
            num_groups=get_dp_world_size(),
            pin_memory=pins_batches(self.training_config.distributed),
        )
        self._build_optimizer()

    def _look_at_cache(self) -> None:
        """Finds out, alike on all ranks, whether there is something left for the teacher to do."""
        group = get_world_group()
        on_first_rank(group, lambda: self.cache.check_metadata(self._metadata))
        if on_first_rank(group, lambda: self.cache.is_complete(self._total)):
            self._release_teacher()
            return
        if self.teacher is None:
            missing = on_first_rank(group, lambda: len(self.cache.missing(self._total)))
            message = (
                f"models.teacher is missing, but {self.cache.root} lacks {missing} of "
                f"{self._total} trajectories (method.teacher_path_cache); add the teacher, with "
                "trainable: false"
            )
            raise ConfigError(message)
        self._plan_trajectories(self.teacher)
        if getattr(self._source, "cfg_rate", 0.0):
            logger.warning(
                "training.data.training_cfg_rate does nothing here: trajectories follow the prompt"
            )
            self._source.cfg_rate = 0.0
        self.student.set_requires_negative_conditioning(self.config.needs_negative_prompt)

    def _plan_trajectories(self, teacher: ModelBase) -> None:
        steps = self.config.teacher_inference_steps
        self._sigmas = sigma_grid(steps, teacher.noise_scheduler.shift)
        nearest = nearest_steps(self.config.student_timesteps, self._grid())
        self._kept_steps = (
            nearest if self.config.cached_states == "student" else tuple(range(steps))
        )

    def _grid(self) -> list[float]:
        """Returns the timesteps of the teacher's states, without the end."""
        return [sigma * self.student.num_train_timesteps for sigma in self._sigmas[:-1]]

    def _describe(self, cfg: Any) -> dict[str, Any]:  # noqa: ANN401 - the run's config
        """Returns what a trajectory depends on, as far as this run knows it."""
        data = self.training_config.data
        described: dict[str, Any] = {
            "total_samples": self._total,
            "teacher_inference_steps": self.config.teacher_inference_steps,
            "teacher_guidance_scale": self.config.teacher_guidance_scale,
            "source_data_path": data.data_path,
            "seed": int(data.seed),
            "num_latent_t": data.num_latent_t,
        }
        if self.config.cached_states == "student":
            described["cached_timesteps"] = list(self.config.student_timesteps)
        if self.teacher is not None:
            section = getattr(cfg, "models", {}).get(_TEACHER, {})
            described["teacher"] = str(section.get("init_from", type(self.teacher).__name__))
            described["flow_shift"] = self.teacher.noise_scheduler.shift
        return described

    def _build_optimizer(self) -> None:
        training = self.training_config
        optimizer, scheduler = build_role_optimizer(
            self.student,
            learning_rate=training.optimizer.learning_rate,
            betas=training.optimizer.betas,
            weight_decay=training.optimizer.weight_decay,
            plan=_plan(training, self.config),
            where=_RATE,
        )
        self._optimizer_dict = {"student": optimizer}
        self._lr_scheduler_dict = {"student": scheduler}

    # -- The teacher's trajectories --------------------------------------------------------------

    def on_train_start(self) -> None:
        """Seeds the generators and completes the cache, which draws from none of them."""
        super().on_train_start()
        if self.teacher is not None:
            complete_cache(
                self.cache,
                self.make_trajectory,
                metadata=self._metadata,
                timesteps=[self._grid()[step] for step in self._kept_steps],
                group=get_world_group(),
                in_step=is_sharded(self.teacher.transformer),
            )
            self._release_teacher()
        self._log_mapping()

    def make_trajectory(self, index: int) -> Sample:
        """Lets the teacher sample the trajectory of a row of the data set.

        Its noise is drawn on the CPU by a generator of its own, so it is the same on every rank
        and device.

        Args:
            index: The row.

        Returns:
            What :mod:`~fastvideo.train.methods.knowledge_distillation.trajectory_cache` describes,
            in float32.

        Raises:
            RuntimeError: The teacher has been let go.
        """
        if self.teacher is None:
            message = "the teacher has been let go, because all trajectories are there"
            raise RuntimeError(message)
        seed = stable_hash(int(self.training_config.data.seed), index)
        has_latents = self.training_config.data.preprocessed_data_type != "text_only"
        source: LatentsSource = "data" if has_latents else "zeros"
        raw = self._source[index]
        batch = self.student.prepare_batch(
            raw, generator=torch.Generator().manual_seed(seed), latents_source=source
        )
        end, states = follow_flow(
            lambda noisy, sigma: self._teacher_velocity(noisy, sigma, batch),
            batch.noise.permute(0, 2, 1, 3, 4),
            self._sigmas,
            keep=set(self._kept_steps),
        )
        grid = self._grid()
        sample: Sample = {
            LATENTS: torch.cat(states),
            TIMESTEPS: torch.tensor([grid[step] for step in sorted(self._kept_steps)]),
            REAL: end[0],
            CAPTION: _caption(raw),
        }
        if batch.encoder_hidden_states is not None and batch.encoder_attention_mask is not None:
            text, mask = batch.encoder_hidden_states[0], batch.encoder_attention_mask[0]
            sample |= {TEXT: trimmed_text(text, mask), MASK: mask}
        return sample

    def _teacher_velocity(self, noisy: Tensor, sigma: float, batch: TrainingBatch) -> Tensor:
        """Predicts with guidance, v_u + s·(v_c - v_u); a scale of 1 needs v_c only."""
        conditional = self._teacher_forward(noisy, sigma, batch, conditional=True)
        if not self.config.uses_guidance:
            return conditional
        unconditional = self._teacher_forward(noisy, sigma, batch, conditional=False)
        return unconditional + self.config.teacher_guidance_scale * (conditional - unconditional)

    def _teacher_forward(
        self, noisy: Tensor, sigma: float, batch: TrainingBatch, *, conditional: bool
    ) -> Tensor:
        assert self.teacher is not None  # noqa: S101 - make_trajectory has looked
        timestep = torch.full((1,), sigma * self.student.num_train_timesteps, device=noisy.device)
        with profiler_region("distillation_teacher_forward"):
            return self.teacher.predict_noise(
                noisy,
                timestep,
                batch,
                conditional=conditional,
                cfg_uncond=self.config.cfg_uncond,
            )

    def _release_teacher(self) -> None:
        """Gives the teacher's memory back."""
        if self.teacher is None:
            return
        self.teacher = None
        self._role_models.pop(_TEACHER, None)
        if _TEACHER in self.role_modules:
            del self.role_modules[_TEACHER]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _log_mapping(self) -> None:
        if not get_world_group().is_first_rank:
            return
        found: Sequence[float] = self.cache.read(0)[TIMESTEPS].tolist()
        wanted = self.config.student_timesteps
        positions = nearest_steps(wanted, found)
        pairs = ", ".join(f"{t} → {found[p]:.6g}" for t, p in zip(wanted, positions, strict=True))
        logger.info("timesteps of method.t_list → states of the teacher: %s", pairs)

    # -- One step --------------------------------------------------------------------------------

    def single_train_step(self, batch: Mapping[str, Any], iteration: int) -> StepResult:
        """Computes the loss of one batch of trajectories, at a timestep drawn for all of them.

        Returns:
            ``total_loss`` and ``kd_loss`` (the same), ½·MSE(x̂₀, where the trajectory ends); no
            outputs; and the metric ``kd_step_idx``, which of the student's timesteps it was.
        """
        del iteration
        device = self.student.device
        prepared = self.student.prepare_batch(_conditioning(batch), generator=self.generator)
        index = self._draw_step()
        noisy = batch[LATENTS][:, index].to(device, torch.float32, non_blocking=True)
        timesteps = batch[TIMESTEPS][:, index].to(device, non_blocking=True)
        real = batch[REAL].to(device, torch.float32, non_blocking=True)
        with profiler_region("distillation_student_forward"):
            clean = self.student.predict_x0(
                noisy, timesteps, prepared, conditional=True, attn_kind="vsa"
            )
        with profiler_region("distillation_loss"):
            loss = 0.5 * mse_loss(clean.float(), real)
        return {"total_loss": loss, "kd_loss": loss}, {}, {"kd_step_idx": index}

    def _draw_step(self) -> int:
        generator = self.generator
        steps = self.config.student_sample_steps
        return int(torch.randint(steps, (1,), generator=generator, device=generator.device))

    def get_optimizers(self, iteration: int) -> list[Optimizer]:
        """Returns the student's optimizer."""
        del iteration
        return [self._optimizer_dict["student"]]

    def get_lr_schedulers(self, iteration: int) -> list[LRScheduler]:
        """Returns the student's schedule."""
        del iteration
        return [self._lr_scheduler_dict["student"]]


def _conditioning(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a batch as a loader of videos would give it; only its conditioning is used."""
    return {**batch, "vae_latent": batch[REAL].permute(0, 2, 1, 3, 4)}


def _caption(raw: Mapping[str, Any]) -> str:
    captions = raw.get("caption_text") or [""]
    return str(captions[0])


def _plan(training: TrainingConfig, config: KDConfig) -> SchedulePlan:
    return schedule_plan(
        training.optimizer,
        num_steps=training.loop.max_train_steps,
        step_rules=config.lr_step_rules,
    )


def _check_roles(role_models: Mapping[str, Role]) -> None:
    if not role_models["student"].trainable:
        message = "models.student.trainable is false, but knowledge distillation trains the student"
        raise ConfigError(message)
    teacher = role_models.get(_TEACHER)
    if teacher is not None and teacher.trainable:
        message = "models.teacher.trainable must be false for knowledge distillation"
        raise ConfigError(message)
