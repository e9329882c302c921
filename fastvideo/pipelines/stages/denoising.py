"""The denoising loop along the whole flow."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, cast

from fastvideo.pipelines.denoising_step import denoising_step
from fastvideo.pipelines.stages.stage import PipelineStage

if TYPE_CHECKING:
    from torch import Tensor

    from fastvideo.pipelines.forward_batch import ForwardBatch
    from fastvideo.pipelines.inference_args import InferenceArgs


class DenoisingStage(PipelineStage):
    """Follows the predicted velocity from noise to a sample, with classifier-free guidance.

    The order of operations is that of ``diffusers.WanPipeline``, so samples equal its to the bit.

    Args:
        transformer: Predicts the velocity; in models with two experts, at high noise.
        scheduler: A flow scheduler of diffusers.
        transformer_2: The expert for low noise, in models that have one.
        boundary_ratio: Fraction of the timesteps from which on the first expert is used.
    """

    profiler_region: ClassVar[str | None] = "inference_denoising"

    def __init__(
        self,
        transformer: Any,  # noqa: ANN401 - diffusers is untyped
        scheduler: Any,  # noqa: ANN401 - diffusers is untyped
        *,
        transformer_2: Any = None,  # noqa: ANN401 - diffusers is untyped
        boundary_ratio: float | None = None,
    ) -> None:
        self._transformer = transformer
        self._transformer_2 = transformer_2
        self._scheduler = scheduler
        self._boundary: float | None = None
        if transformer_2 is not None and boundary_ratio is not None:
            self._boundary = boundary_ratio * scheduler.config.num_train_timesteps

    def forward(self, batch: ForwardBatch, args: InferenceArgs) -> ForwardBatch:
        """Denoises the latents."""
        timesteps = cast("Tensor", batch.timesteps)
        latents = cast("Tensor", batch.latents)
        self._scheduler.set_begin_index(0)
        begin_steps(batch)
        experts = _Experts(args)
        with experts:
            for index, timestep in enumerate(timesteps):
                with denoising_step(index):
                    velocity = self._predict(latents, timestep, batch, experts)
                    stepped = self._scheduler.step(velocity, timestep, latents, return_dict=False)
                    latents = stepped[0]
                note_step(batch, index, timestep, latents)
        batch.latents = latents
        return batch

    def _predict(
        self, latents: Tensor, timestep: Tensor, batch: ForwardBatch, experts: _Experts
    ) -> Tensor:
        """Returns the velocity with guidance, [B, C, T, H, W]."""
        first = self._boundary is None or bool(timestep >= self._boundary)
        name = "transformer" if first else "transformer_2"
        model = experts.use(name, self._transformer if first else self._transformer_2)
        guidance = batch.guidance_scale
        if not first and batch.guidance_scale_2 is not None:
            guidance = batch.guidance_scale_2
        velocity = experts.call(model, latents, timestep, batch.prompt_embeds)
        if not batch.is_guided:
            return velocity
        unguided = experts.call(model, latents, timestep, batch.negative_prompt_embeds)
        return unguided + guidance * (velocity - unguided)


class _Experts(ExitStack):
    """The transformers of one loop: on the device while they are used."""

    def __init__(self, args: InferenceArgs) -> None:
        super().__init__()
        self._args = args
        self._name: str | None = None

    def use(self, name: str, model: Any) -> Any:  # noqa: ANN401 - diffusers is untyped
        """Returns a transformer that is on the device, and sends the one before back."""
        if name != self._name:
            self.close()
            self.enter_context(self._args.in_use(name, model))
            self._name = name
        return model

    def call(
        self,
        model: Any,  # noqa: ANN401 - diffusers is untyped
        latents: Tensor,
        timestep: Tensor,
        embeds: Tensor | None,
    ) -> Tensor:
        """Returns the velocity that a transformer predicts, [B, C, T, H, W]."""
        return call_transformer(model, latents, timestep, embeds, self._args)


def call_transformer(
    model: Any,  # noqa: ANN401 - diffusers is untyped
    latents: Tensor,
    timestep: Tensor,
    embeds: Tensor | None,
    args: InferenceArgs,
) -> Tensor:
    """Returns the velocity that a transformer predicts.

    Args:
        model: A ``WanTransformer3DModel``, perhaps sharded.
        latents: [B, C, T, H, W], float32.
        timestep: A scalar tensor.
        embeds: [B, L, D].
        args: Where and how to run.

    Returns:
        [B, C, T, H, W] in the type that the transformer computes in.
    """
    with args.autocast():
        velocity: Tensor = model(
            hidden_states=latents.to(model.dtype),
            timestep=timestep.expand(latents.shape[0]),
            encoder_hidden_states=embeds,
            return_dict=False,
        )[0]
    return velocity


def begin_steps(batch: ForwardBatch) -> None:
    """Reports that the loop begins.

    Args:
        batch: The request.
    """
    if batch.on_step is not None:
        batch.on_step(0, len(cast("Tensor", batch.timesteps)))


def note_step(batch: ForwardBatch, index: int, timestep: Tensor, latents: Tensor) -> None:
    """Keeps the latents of a step if they are wanted, and reports progress.

    Args:
        batch: The request.
        index: The step that is done, from 0.
        timestep: Its timestep, a scalar tensor.
        latents: What it made, [B, C, T, H, W].
    """
    if batch.keep_trajectory:
        batch.trajectory.append((float(timestep), latents.detach().cpu()))
    if batch.on_step is not None:
        batch.on_step(index + 1, len(cast("Tensor", batch.timesteps)))
