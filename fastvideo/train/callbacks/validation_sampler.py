"""Sampling the validation prompts with the model that is being trained.

Tensor legend: B videos, T frames, H/W height and width, L tokens, D text width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastvideo.dataset.encoders import TextEncoder
from fastvideo.dataset.model_files import resolve_model_path
from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger
from fastvideo.pipelines.composed_pipeline_base import ComposedPipelineBase
from fastvideo.pipelines.forward_batch import ForwardBatch
from fastvideo.pipelines.presets import WAN_NEGATIVE_PROMPT, find_preset
from fastvideo.pipelines.stages import PromptEncodingStage
from fastvideo.train.instantiate import resolve_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor, nn

    from fastvideo.train.config import DataConfig

logger = init_logger(__name__)

_MOVED = frozenset({"vae"})
"""Modules that are in host memory between validations: training needs the device."""


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """What every validation video has in common.

    Attributes:
        height: Pixels.
        width: Pixels.
        num_frames: Frames, 4k + 1.
        fps: Frames per second of the files.
        guidance_scale: Classifier-free guidance; 1 is none.
    """

    height: int
    width: int
    num_frames: int
    fps: int
    guidance_scale: float


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of the validation file.

    Attributes:
        index: Its position in the file.
        text: The prompt.
        seeds: One per video.
    """

    index: int
    text: str
    seeds: tuple[int, ...]


def sample_settings(
    data: DataConfig,
    model_path: str,
    *,
    guidance_scale: float | None,
    num_frames: int | None,
) -> SampleSettings:
    """Returns what ``training.data`` says of the videos, and the model's preset beyond that.

    Args:
        data: The ``training.data`` section.
        model_path: The model whose preset counts beyond that.
        guidance_scale: That of ``callbacks.validation``, or None.
        num_frames: Likewise; None: those of ``training.data.num_latent_t``.
    """
    preset = find_preset(model_path).sampling
    if num_frames is None:
        num_frames = (data.num_latent_t - 1) * 4 + 1 if data.num_latent_t else data.num_frames
    guidance = preset.get("guidance_scale", 1.0) if guidance_scale is None else guidance_scale
    return SampleSettings(
        height=data.num_height or preset.get("height", 480),
        width=data.num_width or preset.get("width", 832),
        num_frames=num_frames or preset.get("num_frames", 81),
        fps=preset.get("fps", 16),
        guidance_scale=float(guidance),
    )


def pipeline_class(target: str) -> type[ComposedPipelineBase]:
    """Returns the pipeline class that a dotted path names.

    Args:
        target: Such as ``fastvideo.pipelines.basic.wan.wan_pipeline.WanPipeline``.

    Raises:
        ConfigError: It names something else.
        ImportError: It names nothing.
    """
    found = resolve_target(target)
    if not isinstance(found, type) or not issubclass(found, ComposedPipelineBase):
        message = (
            f"callbacks.validation.pipeline_target: {target} is no pipeline; expected a "
            "subclass of fastvideo.pipelines.composed_pipeline_base.ComposedPipelineBase"
        )
        raise ConfigError(message)
    return found


class ValidationSampler:
    """Makes videos with a transformer that stays where it is.

    Prompts are encoded the first time and the text encoder is let go, since it is larger than
    many transformers.

    Args:
        target: Dotted path of the pipeline class.
        model_path: The model that VAE, text encoder and scheduler are taken from.
        transformer: The transformer that is being trained, perhaps sharded.
        compute_dtype: Type it computes in.
        options: Fields of the pipeline's config.

    Raises:
        ConfigError: The class is no pipeline, or a setting cannot be used.
        ImportError: There is no such class.
    """

    def __init__(
        self,
        target: str,
        model_path: str | Path,
        transformer: nn.Module,
        *,
        compute_dtype: torch.dtype | None = None,
        options: dict[str, Any],
    ) -> None:
        self._pipeline: ComposedPipelineBase = pipeline_class(target).from_pretrained(
            model_path,
            loaded_modules={"transformer": transformer, "text_encoder": None},
            autocast_dtype=compute_dtype,
            offload=_MOVED,
            **options,
        )
        self._embeddings: dict[str, Tensor] = {}

    @property
    def transformer(self) -> nn.Module:
        """The transformer that it samples with."""
        module: nn.Module = self._pipeline.modules["transformer"]
        return module

    def encode(self, prompts: Sequence[str], settings: SampleSettings) -> None:
        """Encodes prompts that were not encoded before, and the negative prompt with them.

        Args:
            prompts: The prompts.
            settings: Whether there is guidance.
        """
        if all(prompt in self._embeddings for prompt in prompts):
            return
        args = self._pipeline.args
        logger.info("encoding %d validation prompts", len(prompts))
        encoder = TextEncoder.from_model_dir(
            resolve_model_path(str(self._pipeline.model_dir)),
            device=args.device,
            dtype=args.text_encoder_dtype,
            text_len=args.pipeline_config.text_len,
        )
        stage = PromptEncodingStage(encoder)
        for prompt in prompts:
            batch = stage(_new_batch(prompt, (0,), 1, settings), args)
            for text, embeds in (
                (prompt, batch.prompt_embeds),
                (WAN_NEGATIVE_PROMPT, batch.negative_prompt_embeds),
            ):
                if embeds is not None:
                    self._embeddings[text] = embeds.cpu()

    def sample(
        self, prompts: Sequence[Prompt], steps: int, settings: SampleSettings
    ) -> Iterator[tuple[Prompt, int, Tensor]]:
        """Makes the videos of some prompts, one after the other.

        Args:
            prompts: The prompts, encoded before.
            steps: Denoising steps; few-step students have their own.
            settings: What all videos have in common.

        Yields:
            Prompt, position of the seed, and video [3, T, H, W], float32 in [0, 1].
        """
        for prompt in prompts:
            for position, seed in enumerate(prompt.seeds):
                batch = _new_batch(prompt.text, (seed,), steps, settings)
                batch.prompt_embeds = self._embeddings[prompt.text]
                batch.negative_prompt_embeds = self._embeddings.get(WAN_NEGATIVE_PROMPT)
                output = self._pipeline.forward(batch).output
                assert output is not None  # noqa: S101 - the request asks for pixels
                yield prompt, position, output[0]


def _new_batch(
    prompt: str, seeds: tuple[int, ...], steps: int, settings: SampleSettings
) -> ForwardBatch:
    return ForwardBatch(
        prompt=prompt,
        negative_prompt=WAN_NEGATIVE_PROMPT,
        height=settings.height,
        width=settings.width,
        num_frames=settings.num_frames,
        num_inference_steps=steps,
        guidance_scale=settings.guidance_scale,
        seeds=seeds,
    )
