"""Sampling videos during training: settings are checked, sampling itself is not offered yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastvideo.errors import nearest
from fastvideo.logger import init_logger
from fastvideo.train.callbacks.callback import Callback
from fastvideo.train.options import as_bool, as_float, as_int, as_text, reject_value
from fastvideo.train.preflight import reject_validation

if TYPE_CHECKING:
    from fastvideo.train.methods.base import TrainingMethod

logger = init_logger(__name__)

_WHERE = "callbacks.validation"


class ValidationCallback(Callback):
    """Would sample videos of the validation prompts every ``every_steps`` steps.

    This version checks the settings and refuses to start a run that asks for samples; with
    ``every_steps`` of 0 or less it does nothing. Numbers may be given as text.

    Args:
        pipeline_target: Dotted path of the pipeline class.
        dataset_file: JSON file with the prompts.
        every_steps: Steps between validations; 0 or less never validates.
        run_at_start: Also validate before the first step.
        sampling_steps: Numbers of denoising steps to sample with.
        guidance_scale: Classifier-free guidance; None leaves the pipeline's default.
        num_frames: Frames per video; None derives them from ``training.data.num_latent_t``.
        num_videos_per_prompt: Videos per prompt, at least 1.
        use_validation_media_conditioning: Use images and videos that the prompts come with.
        output_dir: Where videos are written; None for ``training.checkpoint.output_dir``.
        sampling_timesteps: Fixed timesteps of a distilled student.
        overlay_actions: Draw the actions of a record onto its video.
        keyboard_value_scale: Scale of keyboard actions.
        offload_training_state: Move training state off the device while sampling.
        unload_pipeline_after_validation: Build the pipeline anew each time.
        attn_qat_infer: Use quantised attention.
        metrics: Video metrics to compute, by name.
        **pipeline_kwargs: Passed to the pipeline.

    Raises:
        ConfigError: A setting has the wrong type or value.
    """

    def __init__(  # noqa: PLR0913 - the keys of the section
        self,
        *,
        pipeline_target: str,
        dataset_file: str,
        every_steps: int = 100,
        run_at_start: bool = True,
        sampling_steps: object = (40,),
        guidance_scale: float | None = None,
        num_frames: int | None = None,
        num_videos_per_prompt: int = 1,
        use_validation_media_conditioning: bool = True,
        output_dir: str | None = None,
        sampling_timesteps: object = None,
        overlay_actions: bool = False,
        keyboard_value_scale: float = 1.0,
        offload_training_state: bool = False,
        unload_pipeline_after_validation: bool = False,
        attn_qat_infer: bool = False,
        metrics: object = None,
        **pipeline_kwargs: object,
    ) -> None:
        self.pipeline_target = _dotted_path("pipeline_target", pipeline_target)
        self.dataset_file = _text("dataset_file", dataset_file)
        self.every_steps = as_int(every_steps, where=f"{_WHERE}.every_steps")
        self.run_at_start = _flag("run_at_start", run_at_start)
        self.sampling_steps = _positive_ints("sampling_steps", sampling_steps)
        self.guidance_scale = _optional_float("guidance_scale", guidance_scale)
        self.num_frames = None if num_frames is None else _positive_int("num_frames", num_frames)
        self.num_videos_per_prompt = _positive_int("num_videos_per_prompt", num_videos_per_prompt)
        self.use_validation_media_conditioning = _flag(
            "use_validation_media_conditioning", use_validation_media_conditioning
        )
        self.output_dir = None if output_dir is None else _text("output_dir", output_dir)
        self.sampling_timesteps = (
            None
            if sampling_timesteps is None
            else _positive_ints("sampling_timesteps", sampling_timesteps)
        )
        self.overlay_actions = _flag("overlay_actions", overlay_actions)
        self.keyboard_value_scale = as_float(
            keyboard_value_scale, where=f"{_WHERE}.keyboard_value_scale"
        )
        self.offload_training_state = _flag("offload_training_state", offload_training_state)
        self.unload_pipeline_after_validation = _flag(
            "unload_pipeline_after_validation", unload_pipeline_after_validation
        )
        self.attn_qat_infer = _flag("attn_qat_infer", attn_qat_infer)
        self.metrics = _names_or_mapping("metrics", metrics)
        self.pipeline_kwargs = dict(pipeline_kwargs)
        _warn_similar(pipeline_kwargs, [name for name in vars(self) if name != "pipeline_kwargs"])

    def on_train_start(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Refuses a run that asks for validation samples.

        Args:
            method: The training method.
            iteration: The step the run starts from.

        Raises:
            ConfigError: ``every_steps`` is more than 0.
        """
        del method, iteration
        reject_validation(self.every_steps)


def _warn_similar(pipeline_kwargs: Mapping[str, object], known: list[str]) -> None:
    """Any key is passed to the pipeline, so one that is nearly ours is probably mistyped."""
    for key in pipeline_kwargs:
        match = nearest(key, known)
        if match is not None:
            logger.warning("%s.%s is passed to the pipeline. Did you mean %r?", _WHERE, key, match)


def _text(key: str, value: object) -> str:
    where = f"{_WHERE}.{key}"
    text = as_text(value, where=where)
    if not text.strip():
        reject_value(where, "text that is not empty", value)
    return text


def _dotted_path(key: str, value: object) -> str:
    text = _text(key, value)
    if "." not in text or not all(text.split(".")):
        reject_value(f"{_WHERE}.{key}", "a dotted path 'package.module.Class'", value)
    return text


def _flag(key: str, value: object) -> bool:
    return as_bool(value, where=f"{_WHERE}.{key}")


def _optional_float(key: str, value: object) -> float | None:
    return None if value is None else as_float(value, where=f"{_WHERE}.{key}")


def _positive_int(key: str, value: object) -> int:
    number = as_int(value, where=f"{_WHERE}.{key}")
    if number < 1:
        reject_value(f"{_WHERE}.{key}", "a whole number of at least 1", value)
    return number


def _positive_ints(key: str, value: object) -> list[int]:
    """Reads one number, a list of numbers, or text such as ``"4,8"``."""
    parts: Any = value
    if isinstance(value, str):
        parts = [part for part in value.strip("[]() ").replace(",", " ").split() if part]
    elif not isinstance(value, (list, tuple)):
        parts = [value]
    if not parts:
        reject_value(f"{_WHERE}.{key}", "at least one number", value)
    return [_positive_int(key, part) for part in parts]


def _names_or_mapping(key: str, value: object) -> list[str] | dict[str, Any]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        return [_text(key, value)]
    if not isinstance(value, (list, tuple)):
        reject_value(f"{_WHERE}.{key}", "a list of names or a mapping", value)
    return [_text(key, item) for item in value]
