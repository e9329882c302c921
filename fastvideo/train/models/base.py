"""What a training method needs of a model: the plugin interface.

Methods work on latents [B, T, C, H, W] (B samples, T latent frames, C channels, HxW latent
pixels); loaders and transformers on [B, C, T, H, W]. A plugin converts between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal

import torch

from fastvideo.train.models import flow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.models.batch import TrainingBatch

AttnKind = Literal["dense", "vsa"]
LatentsSource = Literal["data", "zeros"]


class ModelBase(ABC):
    """One role's model: a transformer that predicts the velocity of a rectified flow.

    A plugin sets the attributes in its constructor and implements the abstract methods; what
    follows from the flow's algebra is written here once.

    Attributes:
        transformer: The network; its parameters are what optimizers and checkpoints see.
        noise_scheduler: The shifted grid of noise levels of this role.
        device: Where the transformer computes.
        attention_backend: Name of the attention implementation, or None for the default.
        timestep_shift: Shift that :meth:`shift_and_clamp_timestep` applies.
        min_timestep: Lower bound of shifted timesteps.
        max_timestep: Upper bound of shifted timesteps.
        dataloader: Batches of the run; set by :meth:`init_preprocessors` on the student.
        start_step: Step the run starts after; set with the loader.
    """

    transformer: nn.Module
    noise_scheduler: flow.FlowMatchScheduler
    device: torch.device
    attention_backend: str | None = None
    timestep_shift: float = 1.0
    min_timestep: float = 0.0
    max_timestep: float = float(flow.NUM_TRAIN_TIMESTEPS)
    dataloader: Any = None
    start_step: int = 0
    _trainable: bool = True

    @property
    def trainable(self) -> bool:
        """Whether this role's parameters receive gradients."""
        return self._trainable

    @property
    def attention_backend_name(self) -> str | None:
        """Name of the attention implementation, or None for the default."""
        return self.attention_backend

    @property
    def num_train_timesteps(self) -> int:
        """N, the timestep of pure noise."""
        return self.noise_scheduler.num_train_timesteps

    @abstractmethod
    def init_preprocessors(self, training_config: TrainingConfig) -> None:
        """Sets up what only the student needs: data loader, latent statistics, timestep shift.

        A method's constructor calls this once.
        """

    @abstractmethod
    def prepare_batch(
        self,
        raw: Mapping[str, Any],
        *,
        generator: torch.Generator,
        latents_source: LatentsSource = "data",
    ) -> TrainingBatch:
        """Normalises, noises and conditions a batch of the loader.

        Draws from ``generator``, in this order: the noise, then the timesteps; the same number of
        draws for both sources of latents.

        Args:
            raw: A batch of the loader.
            generator: Random numbers of this rank.
            latents_source: ``data`` takes the clean latents of the batch; ``zeros`` needs none.

        Raises:
            ValueError: ``data`` is asked for and ``raw`` has no ``vae_latent``.
        """

    @abstractmethod
    def predict_noise(
        self,
        noisy: Tensor,
        timestep: Tensor,
        batch: TrainingBatch,
        *,
        conditional: bool,
        cfg_uncond: Mapping[str, Any] | None = None,
        attn_kind: AttnKind = "dense",
    ) -> Tensor:
        """Predicts the velocity v̂ ≈ ε - x₀. The name is historical.

        Args:
            noisy: Latents x_sigma, [B, T, C, H, W], float32.
            timestep: Timesteps in [0, N]: [1], [B], [B, T] or [B·T].
            batch: Where the conditioning comes from.
            conditional: Whether the prompt, or else what ``cfg_uncond`` says, conditions.
            cfg_uncond: Policy for the unconditional input; see
                :func:`fastvideo.train.models.conditioning.parse_unconditional_policy`.
            attn_kind: ``dense`` or ``vsa`` (sparse where the model offers it).

        Returns:
            v̂ in the layout of ``noisy``, float32.
        """

    @abstractmethod
    def decode_latents(self, latents: Tensor) -> Tensor:
        """Turns normalised latents [B, T, C, H, W] into video [B, 3, T', H', W'] in [0, 1]."""

    def on_train_start(self) -> None:  # noqa: B027 - an optional hook
        """Called once before training, on the student."""

    def set_requires_negative_conditioning(self, required: bool) -> None:  # noqa: B027, FBT001
        """Says whether batches must carry an unconditional input. Optional for plugins."""

    def shift_and_clamp_timestep(self, timestep: Tensor) -> Tensor:
        """Returns N·s·u / (1 + (s - 1)·u) with u = t / N, within [min, max]; floats stay floats.

        Args:
            timestep: Timesteps in [0, N] of any shape.
        """
        level = timestep.double() / self.num_train_timesteps
        shifted = flow.shift_sigma(level, self.timestep_shift) * self.num_train_timesteps
        clamped = shifted.clamp(self.min_timestep, self.max_timestep)
        return clamped.to(torch.promote_types(timestep.dtype, torch.float32))

    def add_noise(self, clean: Tensor, noise: Tensor, timestep: Tensor) -> Tensor:
        """Returns (1 - sigma)·clean + sigma·noise with sigma = t / N.

        Args:
            clean: Clean latents [B, T, C, H, W].
            noise: Noise of the same shape.
            timestep: [1], [B], [B, T] or [B·T].
        """
        sigma = flow.sigma_of(timestep, clean, self.num_train_timesteps)
        return flow.interpolate(clean, noise, sigma)

    def predict_x0(
        self,
        noisy: Tensor,
        timestep: Tensor,
        batch: TrainingBatch,
        *,
        conditional: bool,
        cfg_uncond: Mapping[str, Any] | None = None,
        attn_kind: AttnKind = "dense",
    ) -> Tensor:
        """Predicts clean latents: x̂₀ = x_sigma - sigma·v̂, computed in float64.

        Arguments are those of :meth:`predict_noise`.

        Returns:
            x̂₀ in the layout of ``noisy`` and the dtype of v̂.
        """
        velocity = self.predict_noise(
            noisy,
            timestep,
            batch,
            conditional=conditional,
            cfg_uncond=cfg_uncond,
            attn_kind=attn_kind,
        )
        sigma = flow.sigma_of(timestep, noisy, self.num_train_timesteps)
        return flow.clean_from_velocity(noisy, velocity, sigma)

    def backward(self, loss: Tensor, ctx: object, *, grad_accum_rounds: int) -> None:
        """Adds the gradients of ``loss / grad_accum_rounds``.

        Args:
            loss: A scalar with a graph.
            ctx: What the forward of this model needs to be recomputed with; None here, since
                attention metadata travels in the batch.
            grad_accum_rounds: Rounds that one optimizer step is made of.
        """
        del ctx
        (loss / grad_accum_rounds).backward()  # type: ignore[no-untyped-call]
