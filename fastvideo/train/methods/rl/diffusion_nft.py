"""DiffusionNFT: raising rewards of a flow model by training it on its own samples.

Zheng et al. 2025, "DiffusionNFT: Online Diffusion Reinforcement with Forward Process"
(arXiv:2509.16117). A step samples videos with the old policy, scores them, and trains the student
by the flow-matching loss of two implicit policies: one that does more of what scored well, and one
that does less of what did not. No likelihoods and no gradients through the sampler are needed.

The method manages its own optimisation: it fetches as many prompt batches as it wants, and clips,
steps and averages by itself. Its regions lie one after the other and add up to the step; only
``nft_decoding`` lies inside of another, ``nft_reward``. Every random number depends on the seed,
the step and the sample alone, so neither a resume nor another number of ranks changes what is
drawn.

Shapes: latents are [B, T, C, H, W]; videos are [B, 3, T', H', W'] in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import torch

from fastvideo.dataset.sampler import stable_hash
from fastvideo.distributed import (
    GradientReduction,
    get_dp_rank,
    get_dp_world_size,
    get_world_group,
)
from fastvideo.distributed.collective_wait import timed_collective
from fastvideo.errors import ConfigError
from fastvideo.profiler import profiler_region
from fastvideo.train.callbacks.ema import ShadowWeights
from fastvideo.train.callbacks.grad_clip import clip_gradients
from fastvideo.train.methods.base import TrainingMethod
from fastvideo.train.methods.ode import follow_flow, sigma_grid
from fastvideo.train.methods.optimizers import (
    build_role_optimizer,
    check_optimizer,
    schedule_plan,
)
from fastvideo.train.methods.rl.nft_config import NFT_KEYS, NFTConfig
from fastvideo.train.methods.rl.policy import (
    Velocities,
    blend_weights,
    copy_weights,
    optimality,
    policy_loss,
    prompt_advantages,
)
from fastvideo.train.methods.rl.rewards.weighted import AVERAGE, WeightedRewards, check_rewards
from fastvideo.train.methods.roles import Role, stated_roles
from fastvideo.train.models.latent_size import check_made_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.methods.base import LossMap, Metrics, StepResult
    from fastvideo.train.methods.lr_schedulers import SchedulePlan
    from fastvideo.train.models.base import ModelBase
    from fastvideo.train.models.batch import TrainingBatch

_ROLES: Final = {"student": True, "old": False}
_NOISE, _TRAINING = 0, 1
_GRAD_NORM: Final = "grad_norm/student"
_RATE: Final = "training.optimizer.learning_rate"


@dataclass(slots=True)
class _Rollout:
    """Samples of the old policy, one of each prompt of a batch.

    Attributes:
        batch: The prompts.
        clean: The samples [B, T, C, H, W].
        seeds: Seeds of what is drawn for each sample in training.
        prompts: The prompts as text.
        rewards: Scores [B] by name.
        good: The weights r of the samples as good ones, [B].
    """

    batch: TrainingBatch
    clean: Tensor
    seeds: list[int]
    prompts: list[str]
    rewards: dict[str, Tensor] = field(default_factory=dict)
    good: Tensor = field(default_factory=lambda: torch.empty(0))


class DiffusionNFTMethod(TrainingMethod):
    """Trains the student for rewards, from samples of a policy that follows it.

    Attributes:
        old: The policy that makes the samples; it starts as a copy of the student.
        reference: What the student is held close to; None where ``kl_beta`` is 0.
        config: The checked ``method:`` section.
        rewards: What scores the videos.
        student_ema: A moving average of the student; None where ``ema_decay`` is 0.
    """

    known_keys: ClassVar[frozenset[str] | None] = NFT_KEYS
    known_roles: ClassVar[frozenset[str] | None] = frozenset({*_ROLES, "reference"})

    @classmethod
    def check_settings(cls, cfg: Any) -> None:  # noqa: ANN401 - as for the constructor
        """Refuses what the constructor refuses; see :meth:`TrainingMethod.check_settings`."""
        config = NFTConfig.from_mapping(cfg.method)
        _check_roles(stated_roles(cfg.models), with_reference=config.kl_beta > 0)
        check_rewards(cfg.method.get("rewards"))
        check_optimizer(
            cfg.training.optimizer.learning_rate, _plan(cfg.training, config), where=_RATE
        )
        check_made_size(cfg.training.data)

    def __init__(self, *, cfg: Any, role_models: Mapping[str, ModelBase]) -> None:  # noqa: ANN401
        """Checks roles and settings, prepares the student, and makes rewards and optimizer.

        Args:
            cfg: The run's config.
            role_models: role → model: a trainable ``student``, a frozen ``old`` and, unless
                ``kl_beta`` is 0, a frozen ``reference``.

        Raises:
            ConfigError: A role is missing or wrongly frozen, or a setting cannot be used.
        """
        super().__init__(cfg=cfg, role_models=role_models)
        self.config = NFTConfig.from_mapping(self.method_config)
        _check_roles(role_models, with_reference=self.config.kl_beta > 0)
        self.old = role_models["old"]
        self.reference = role_models.get("reference") if self.config.kl_beta > 0 else None
        self.rewards = WeightedRewards.from_mapping(self.method_config.get("rewards"))
        self.student_ema: ShadowWeights | None = None
        self.student.init_preprocessors(self.training_config)
        self.student.set_requires_negative_conditioning(self.config.needs_negative_prompt)
        self._sigmas = sigma_grid(self.config.sampling_steps, self.student.noise_scheduler.shift)
        self._reduction = GradientReduction(
            self.student.transformer,
            every_round=self.training_config.distributed.reduce_every_round,
        )
        self._build_optimizer()

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

    def on_train_start(self) -> None:
        """Seeds the generators, makes the old policy a copy of the student, and starts its average.

        Raises:
            ConfigError: The old policy has another architecture.
        """
        super().on_train_start()
        names = ("models.old", "models.student")
        copy_weights(self.old.transformer, self.student.transformer, names=names)
        if self.config.ema_decay > 0:
            self.student_ema = ShadowWeights(self.student.transformer, self.config.ema_decay)

    def checkpoint_state(self) -> dict[str, Any]:
        """Adds the old policy, whole, and the average to what every method keeps."""
        states = super().checkpoint_state()
        states["roles.old.transformer"] = self.old.transformer
        if self.student_ema is not None:
            states |= {f"ema.student.{n}": t for n, t in self.student_ema.shadow.items()}
        return states

    # -- One step --------------------------------------------------------------------------------

    def manages_optimization(self) -> bool:
        """Returns True: a step is one of :meth:`managed_train_step`."""
        return True

    def single_train_step(self, batch: Mapping[str, Any], iteration: int) -> NoReturn:
        """Is no way to train with this method.

        Raises:
            RuntimeError: Always.
        """
        message = (
            "DiffusionNFT manages its own optimisation: call managed_train_step(data_stream, "
            f"iteration), not single_train_step (step {iteration}, {len(batch)} columns)"
        )
        raise RuntimeError(message)

    def managed_train_step(
        self, data_stream: Iterator[Mapping[str, Any]], iteration: int
    ) -> StepResult:
        """Samples, scores, trains the student, and lets the old policy follow.

        Returns:
            ``total_loss``, ``policy_loss`` and, if there is a reference, ``kl_loss``, means over
            this rank's samples and inner epochs; no outputs; and metrics over all ranks:
            ``reward/<name>``, ``reward/avg``, ``reward_std`` within a prompt, ``grad_norm/student``
            and ``old_decay``.
        """
        rollouts: list[_Rollout] = []
        for number in range(self.config.num_batches_per_epoch):
            with profiler_region("nft_prompts"):
                raw = next(data_stream)
            with profiler_region("nft_rollout"):
                rollouts += self._sample(raw, iteration, number)
        for rollout in rollouts:
            with profiler_region("nft_reward"):
                rollout.rewards = self._score(rollout)
        with profiler_region("nft_advantages"):
            metrics = self._weigh(rollouts)
        losses: list[LossMap] = []
        for epoch in range(self.config.num_inner_epochs):
            with profiler_region("nft_update"):
                losses.append(self._train(rollouts, epoch))
                metrics |= self._update(iteration)
        decay = self.config.old_decay(iteration)
        with profiler_region("nft_old_policy"):
            blend_weights(self.old.transformer, self.student.transformer, decay=decay)
        mean = {n: torch.stack([loss[n] for loss in losses]).mean() for n in losses[0]}
        return mean, {}, metrics | {"old_decay": decay}

    # -- Sampling and scoring --------------------------------------------------------------------

    def _sample(self, raw: Mapping[str, Any], iteration: int, number: int) -> Iterator[_Rollout]:
        """Yields the samples of a prompt batch, one rollout for each repeat of its prompts."""
        batch = self.student.prepare_batch(raw, generator=self.generator, latents_source="zeros")
        size = batch.latents.shape[0]
        rows = [get_dp_world_size() * row + get_dp_rank() for row in range(size)]
        prompts = _prompts(batch, rows, number)
        seed = int(self.training_config.data.seed)
        for repeat in range(self.config.samples_per_prompt):
            keys = [(seed, iteration, number, row, repeat) for row in rows]
            noise = _normal(batch.latents, [stable_hash(*key, _NOISE) for key in keys])
            clean, _ = follow_flow(
                lambda noisy, sigma: self._old_velocity(noisy, sigma, batch), noise, self._sigmas
            )
            yield _Rollout(batch, clean, [stable_hash(*key, _TRAINING) for key in keys], prompts)

    def _old_velocity(self, noisy: Tensor, sigma: float, batch: TrainingBatch) -> Tensor:
        timestep = torch.full((1,), sigma * self.old.num_train_timesteps, device=noisy.device)
        conditional = self.old.predict_noise(noisy, timestep, batch, conditional=True)
        if not self.config.uses_guidance:
            return conditional
        unconditional = self.old.predict_noise(
            noisy, timestep, batch, conditional=False, cfg_uncond=self.config.cfg_uncond
        )
        return unconditional + self.config.guidance_scale * (conditional - unconditional)

    @torch.no_grad()
    def _score(self, rollout: _Rollout) -> dict[str, Tensor]:
        """Decodes and scores a few videos at a time, which are much larger than their latents."""
        size = self.config.decode_batch_size
        parts = []
        for start in range(0, len(rollout.prompts), size):
            with profiler_region("nft_decoding"):
                videos = self.student.decode_latents(rollout.clean[start : start + size])
            parts.append(self.rewards.score(videos, rollout.prompts[start : start + size]))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _weigh(self, rollouts: Sequence[_Rollout]) -> Metrics:
        """Compares the videos of each prompt over all ranks; returns the rewards' means.

        Raises:
            ValueError: A score is not finite; on every rank.
        """
        group = get_world_group()
        own = {
            name: torch.cat([rollout.rewards[name] for rollout in rollouts])
            for name in rollouts[0].rewards
        }
        prompts = [prompt for rollout in rollouts for prompt in rollout.prompts]
        with timed_collective("rewards", rollouts[0].clean.device):
            gathered = group.all_gather_object((own, prompts))
        rewards = {name: torch.cat([scores[name] for scores, _ in gathered]) for name in own}
        for name, score in rewards.items():
            if not bool(score.isfinite().all()):
                message = f"method.rewards.{name} returned a score that is not finite"
                raise ValueError(message)
        everyone = [prompt for _, theirs in gathered for prompt in theirs]
        advantages = prompt_advantages(rewards[AVERAGE], everyone)
        good = optimality(advantages, self.config.adv_clip_max)
        start = sum(len(theirs) for _, theirs in gathered[: group.rank_in_group])
        for rollout in rollouts:
            end = start + len(rollout.prompts)
            rollout.good = good[start:end].to(rollout.clean.device, torch.float32)
            start = end
        means: Metrics = {f"reward/{name}": float(score.mean()) for name, score in rewards.items()}
        return means | {"reward_std": _deviation(rewards[AVERAGE], everyone)}

    # -- Training --------------------------------------------------------------------------------

    def _train(self, rollouts: Sequence[_Rollout], epoch: int) -> LossMap:
        """Adds the gradients of an inner epoch; returns its mean losses."""
        rounds = len(rollouts) * self.config.num_train_timesteps
        total: LossMap = {}
        for rollout in rollouts:
            draws = [torch.Generator().manual_seed(stable_hash(s, epoch)) for s in rollout.seeds]
            steps = torch.stack(
                [torch.randperm(self.config.sampling_steps, generator=draw) for draw in draws]
            )
            for number in range(self.config.num_train_timesteps):
                is_last_step = number == self.config.num_train_timesteps - 1
                self._reduction.before_backward(last=is_last_step and rollout is rollouts[-1])
                noise = _normal_of(rollout.clean, draws)
                sigma = torch.tensor([self._sigmas[step] for step in steps[:, number].tolist()])
                losses = self._losses(rollout, noise, sigma.to(noise.device))
                self.student.backward(losses["total_loss"], None, grad_accum_rounds=rounds)
                for name, loss in losses.items():
                    total[name] = total.get(name, 0) + loss.detach() / rounds
        return total

    def _losses(self, rollout: _Rollout, noise: Tensor, sigma: Tensor) -> LossMap:
        timestep = sigma * self.student.num_train_timesteps
        noisy = self.student.add_noise(rollout.clean, noise, timestep)
        batch = rollout.batch
        with torch.no_grad():
            old = self.old.predict_noise(noisy, timestep, batch, conditional=True)
            reference = (
                None
                if self.reference is None
                else self.reference.predict_noise(noisy, timestep, batch, conditional=True)
            )
        student = self.student.predict_noise(noisy, timestep, batch, conditional=True)
        each = policy_loss(
            Velocities(student, old),
            *(noisy, rollout.clean, sigma[:, None, None, None, None], rollout.good),
            beta=self.config.beta,
        )
        policy = self.config.adv_clip_max * each.mean()
        if reference is None:
            return {"total_loss": policy, "policy_loss": policy}
        distance = (student.float() - reference.float()).square().mean()
        total = policy + self.config.kl_beta * distance
        return {"total_loss": total, "policy_loss": policy, "kl_loss": distance}

    def _update(self, iteration: int) -> Metrics:
        """Clips, steps, and averages; returns the norm before clipping."""
        metrics: Metrics = {}
        if self.config.max_grad_norm > 0:
            parameters = self.student.transformer.parameters()
            norm = clip_gradients(parameters, self.config.max_grad_norm)
            if norm is not None:
                metrics[_GRAD_NORM] = norm
        self.optimizers_schedulers_step(iteration)
        self.optimizers_zero_grad(iteration)
        if self.student_ema is not None:
            self.student_ema.update(self.student.transformer)
        return metrics

    def get_optimizers(self, iteration: int) -> list[Optimizer]:
        """Returns the student's optimizer."""
        del iteration
        return [self._optimizer_dict["student"]]

    def get_lr_schedulers(self, iteration: int) -> list[LRScheduler]:
        """Returns the student's schedule, which counts inner epochs."""
        del iteration
        return [self._lr_scheduler_dict["student"]]


def _prompts(batch: TrainingBatch, rows: Sequence[int], number: int) -> list[str]:
    """Returns each row's text; a row without one is a prompt of its own."""
    texts = [str(info.get("prompt") or "") for info in batch.infos] or [""] * len(rows)
    return [text or f"batch {number}, row {row}" for text, row in zip(texts, rows, strict=True)]


def _deviation(rewards: Tensor, prompts: Sequence[str]) -> float:
    """Returns the mean over prompts of the deviation of their rewards."""
    deviations = []
    for prompt in dict.fromkeys(prompts):
        own = [index for index, other in enumerate(prompts) if other == prompt]
        deviations.append(float(rewards[own].std(unbiased=False)))
    return sum(deviations) / len(deviations)


def _normal(like: Tensor, seeds: Sequence[int]) -> Tensor:
    return _normal_of(like, [torch.Generator().manual_seed(seed) for seed in seeds])


def _normal_of(like: Tensor, draws: Sequence[torch.Generator]) -> Tensor:
    """Draws noise for each sample on the CPU, where it is the same for every device."""
    noise = [torch.randn(like.shape[1:], generator=draw) for draw in draws]
    return torch.stack(noise).to(like.device)


def _plan(training: TrainingConfig, config: NFTConfig) -> SchedulePlan:
    return schedule_plan(
        training.optimizer,
        num_steps=training.loop.max_train_steps * config.num_inner_epochs,
        step_rules=config.lr_step_rules,
    )


def _check_roles(role_models: Mapping[str, Role], *, with_reference: bool) -> None:
    roles = {**_ROLES, "reference": False} if with_reference else _ROLES
    for role, trainable in roles.items():
        model = role_models.get(role)
        if model is None:
            why = "; or set method.kl_beta to 0" if role == "reference" else ""
            message = (
                f"models.{role} is missing; DiffusionNFT needs student, old and reference{why}"
            )
            raise ConfigError(message)
        if model.trainable != trainable:
            wanted = "true" if trainable else "false"
            message = f"models.{role}.trainable must be {wanted} for DiffusionNFT"
            raise ConfigError(message)
