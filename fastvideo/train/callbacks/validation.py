"""Sampling videos of fixed prompts while a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import torch

from fastvideo.dataset.validation_file import read_validation_file, share_of_group
from fastvideo.distributed import forget_forwards, get_world_group, get_world_rank
from fastvideo.errors import ConfigError, did_you_mean, nearest
from fastvideo.logger import init_logger
from fastvideo.pipelines.pipeline_config import PipelineConfig
from fastvideo.pipelines.typed_fields import field_names
from fastvideo.pipelines.video_file import VideoWriteError, to_frames, write_mp4
from fastvideo.pipelines.video_metrics import METRICS
from fastvideo.profiler import profiler_region
from fastvideo.train.callbacks.callback import Callback
from fastvideo.train.callbacks.ema import EMACallback, ShadowWeights
from fastvideo.train.callbacks.validation_sampler import (
    Prompt,
    SampleSettings,
    ValidationSampler,
    pipeline_class,
    sample_settings,
)
from fastvideo.train.checkpoint.rng import random_state, restore_random_state
from fastvideo.train.models.latent_size import check_frame_count
from fastvideo.train.options import as_bool, as_float, as_int, as_text, reject_value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.methods.base import TrainingMethod

logger = init_logger(__name__)

_WHERE: Final = "callbacks.validation"
_COUNTS: Final = {"type": "whole number, or list of them", "allowed": "at least 1"}
_FRAMES: Final = {
    "allowed": "4k + 1",
    "default": "4 (`training.data.num_latent_t` - 1) + 1, else that of "
    "`training.data.num_frames`, else the model's preset",
    "unit": "frames",
}
_METRICS: Final = {
    "type": "list of texts, or mapping",
    "allowed": tuple(METRICS),
    "default": "all",
}
_WITHOUT_EFFECT: Final[dict[str, object]] = {
    "attn_qat_infer": False,
    "keyboard_value_scale": 1.0,
    "offload_training_state": False,
    "overlay_actions": False,
}


class ValidationCallback(Callback):
    """Samples videos of the validation prompts every ``every_steps`` steps.

    The student samples with its present weights, or with their moving average where the ``ema``
    callback has started one or the method keeps one. The prompts are shared among the ranks. Every
    prompt has seeds of its own, the same each time and for any number of ranks:
    ``training.data.seed`` plus its position in the file. Numbers may be given as text.

    Args:
        pipeline_target: Dotted path of the pipeline class, such as
            ``fastvideo.pipelines.basic.wan.wan_pipeline.WanPipeline``; ``WanDMDPipeline`` of
            ``wan_dmd_pipeline`` beside it is for few-step students.
        dataset_file: JSON file with the prompts.
        every_steps: Steps between validations; 0 or less never validates.
        run_at_start: Also validate before the first step.
        sampling_steps: Numbers of denoising steps to sample with, one after the other.
        guidance_scale: Classifier-free guidance; 1 is none.
        num_frames: Length of the videos.
        num_videos_per_prompt: Videos of each prompt.
        use_validation_media_conditioning: No effect in text-to-video.
        output_dir: Where videos are written.
        sampling_timesteps: Timesteps of a few-step student.
        overlay_actions: No effect in text-to-video.
        keyboard_value_scale: No effect in text-to-video.
        offload_training_state: No effect in text-to-video.
        unload_pipeline_after_validation: Build the pipeline anew each time.
        attn_qat_infer: No effect in text-to-video.
        metrics: Names of what is measured of every video, or a mapping from name to whether it is.
        **pipeline_kwargs: Passed to the pipeline.

    Raises:
        ConfigError: A setting has the wrong type or value.
    """

    def __init__(  # noqa: PLR0913 - the keys of the section
        self,
        *,
        pipeline_target: str,
        dataset_file: str,
        every_steps: Annotated[int, {"unit": "steps"}] = 100,
        run_at_start: bool = True,
        sampling_steps: Annotated[object, _COUNTS | {"unit": "steps"}] = (40,),
        guidance_scale: Annotated[float | None, {"default": "the model's preset"}] = None,
        num_frames: Annotated[int | None, _FRAMES] = None,
        num_videos_per_prompt: Annotated[int, {"allowed": "at least 1", "unit": "videos"}] = 1,
        use_validation_media_conditioning: bool = True,
        output_dir: Annotated[
            str | None, {"default": "that of `training.checkpoint.output_dir`"}
        ] = None,
        sampling_timesteps: Annotated[object, _COUNTS] = None,
        overlay_actions: bool = False,
        keyboard_value_scale: float = 1.0,
        offload_training_state: bool = False,
        unload_pipeline_after_validation: bool = False,
        attn_qat_infer: bool = False,
        metrics: Annotated[object, _METRICS] = None,
        **pipeline_kwargs: object,
    ) -> None:
        self.pipeline_target = _dotted_path("pipeline_target", pipeline_target)
        self.dataset_file = _text("dataset_file", dataset_file)
        self.every_steps = as_int(every_steps, where=f"{_WHERE}.every_steps")
        self.run_at_start = _flag("run_at_start", run_at_start)
        self.sampling_steps = _positive_ints("sampling_steps", sampling_steps)
        self.guidance_scale = _optional_float("guidance_scale", guidance_scale)
        self.num_frames = None if num_frames is None else _positive_int("num_frames", num_frames)
        check_frame_count(self.num_frames or 1, key=f"{_WHERE}.num_frames")
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
        self.metrics = _metric_names(metrics)
        self.pipeline_kwargs = dict(pipeline_kwargs)
        _warn_similar(pipeline_kwargs, [name for name in vars(self) if name != "pipeline_kwargs"])
        _warn_without_effect(vars(self))
        self._sampler: ValidationSampler | None = None
        self._prompts: list[tuple[Prompt, bool]] | None = None

    def check_settings(self, training_config: TrainingConfig) -> None:
        """Looks for the pipeline, the prompts and a place for the videos.

        Args:
            training_config: The run's ``training`` section.

        Raises:
            ConfigError: There is no place for the videos, or the pipeline is none.
            DataError: A record of the validation file has no caption.
            FileNotFoundError: There is no such file.
        """
        if self.every_steps <= 0:
            return
        pipeline_class(self.pipeline_target)
        read_validation_file(self.dataset_file)
        if not (self.output_dir or training_config.checkpoint.output_dir):
            reject_value(f"{_WHERE}.output_dir", "a folder, as training.checkpoint has none", "")

    def on_train_start(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Reads the prompts, so that a mistake in their file ends the run before its first step.

        Args:
            method: The training method.
            iteration: The step the run starts from.

        Raises:
            ConfigError: There is no place for the videos, or the pipeline is none.
            DataError: A record of the validation file has no caption.
            FileNotFoundError: There is no such file.
        """
        del iteration
        if self.every_steps <= 0:
            return
        self.check_settings(method.training_config)
        self._prompts = self._share_of_prompts(method.training_config.data.seed)

    def on_validation_begin(self, method: TrainingMethod, iteration: int = 0) -> None:
        """Samples and measures the validation videos, if it is time to.

        The random state of training, the weights and the mode of the student are the same
        afterwards, to the bit.

        Args:
            method: The training method.
            iteration: The step that has just ended; 0 before the first one.

        Raises:
            ConfigError: A setting cannot be used with this model.
            DataError: The validation file is missing a caption, or the model a part.
        """
        if not self.is_due(iteration):
            return
        with profiler_region("training_validation", step=iteration), _unchanged(method):
            self._validate(method, iteration)

    def is_due(self, iteration: int) -> bool:
        """Tells whether the step is one that is validated.

        Args:
            iteration: The step; 0 before the first one.
        """
        if self.every_steps <= 0:
            return False
        return self.run_at_start if iteration == 0 else iteration % self.every_steps == 0

    def _validate(self, method: TrainingMethod, iteration: int) -> None:
        training = method.training_config
        if self._prompts is None:
            self._prompts = self._share_of_prompts(training.data.seed)
        settings = sample_settings(
            training.data,
            _model_path(method),
            guidance_scale=self.guidance_scale,
            num_frames=self.num_frames,
        )
        sampler = self._sampler_of(method)
        sampler.encode([prompt.text for prompt, _ in self._prompts], settings)
        with self._averaged(method):
            for steps in self.sampling_steps:
                self._sample(method, sampler, iteration, (steps, settings))
        if self.unload_pipeline_after_validation:
            self._sampler = None

    def _sample(
        self,
        method: TrainingMethod,
        sampler: ValidationSampler,
        iteration: int,
        how: tuple[int, SampleSettings],
    ) -> None:
        """Samples with one number of steps, and lets rank 0 log what all ranks made."""
        steps, settings = how
        start = perf_counter()
        rank = get_world_rank()
        folder = self._directory(method.training_config)
        prompts = cast("list[tuple[Prompt, bool]]", self._prompts)
        is_own = {prompt.index: own for prompt, own in prompts}
        made: list[dict[str, Any]] = []
        for prompt, position, video in sampler.sample([one for one, _ in prompts], steps, settings):
            if not is_own[prompt.index]:
                continue  # repeated so that all ranks make as many: sharded weights need them all
            number = len(made)
            name = (
                f"validation_step_{iteration}_inference_steps_{steps}"
                f"_rank_{rank}_video_{number}.mp4"
            )
            made.append(
                {
                    "path": _written(folder / name, video, settings.fps),
                    "caption": prompt.text,
                    "order": (prompt.index, position),
                    "metrics": {key: float(METRICS[key](video[None])) for key in self.metrics},
                }
            )
        gathered = get_world_group().all_gather_object(made)
        seconds = perf_counter() - start
        if rank == 0:
            every = sorted((one for part in gathered for one in part), key=itemgetter("order"))
            self._log(method, iteration, steps, (every, seconds, settings.fps))

    def _log(
        self,
        method: TrainingMethod,
        iteration: int,
        steps: int,
        result: tuple[list[dict[str, Any]], float, int],
    ) -> None:
        made, seconds, fps = result
        prefix = f"validation/{steps}_steps"
        written = [one for one in made if one["path"] is not None]
        scalars: dict[str, float] = {
            f"{prefix}_video_count": len(written),
            f"{prefix}_duration_sec": seconds,
        }
        for name in self.metrics:
            values = [one["metrics"][name] for one in made]
            scalars[f"{prefix}_{name}"] = sum(values) / len(values)
        logger.info(
            "validation after step %d: %d videos of %d steps in %.1f s",
            iteration,
            len(written),
            steps,
            seconds,
        )
        tracker = getattr(method, "tracker", None)
        if tracker is None:
            return
        tracker.log(scalars, iteration)
        videos = [
            tracker.video(one["path"], caption=one["caption"], fps=fps, format="mp4")
            for one in written
        ]
        if any(video is not None for video in videos):
            tracker.log_artifacts({f"validation_videos_{steps}_steps": videos}, iteration)

    def _share_of_prompts(self, seed: int) -> list[tuple[Prompt, bool]]:
        """Returns the prompts of this rank, and whether each is sampled for its own sake."""
        records = read_validation_file(self.dataset_file)
        world = get_world_group()
        count = self.num_videos_per_prompt
        share = share_of_group(
            range(len(records)), num_groups=world.world_size, group=world.rank_in_group
        )
        first = len(share) * world.rank_in_group
        return [
            (
                Prompt(
                    index,
                    records[index]["prompt"],
                    tuple(seed + index * count + video for video in range(count)),
                ),
                first + at < len(records),
            )
            for at, index in enumerate(share)
        ]

    def _sampler_of(self, method: TrainingMethod) -> ValidationSampler:
        """Returns the sampler with the student's transformer, made the first time."""
        transformer = method.student.transformer
        if self._sampler is None or self._sampler.transformer is not transformer:
            training = method.training_config
            self._sampler = ValidationSampler(
                self.pipeline_target,
                _model_path(method),
                transformer,
                compute_dtype=getattr(method.student, "compute_dtype", None),
                options=self._pipeline_options(training),
            )
        return self._sampler

    def _pipeline_options(self, training: TrainingConfig) -> dict[str, Any]:
        options: dict[str, Any] = {}
        section = training.pipeline_config
        if section is not None:
            known = field_names(PipelineConfig)
            options = {key: value for key, value in section.options.items() if key in known}
            if section.flow_shift is not None:
                options["flow_shift"] = section.flow_shift
        options |= self.pipeline_kwargs
        if self.sampling_timesteps is not None:
            options["dmd_denoising_steps"] = self.sampling_timesteps
        return options

    def _averaged(self, method: TrainingMethod) -> AbstractContextManager[object]:
        """Returns the context in which the student has its averaged weights, if it has any."""
        transformer = method.student.transformer
        found = self._callback_dict.get("ema") if self._callback_dict is not None else None
        if isinstance(found, EMACallback):
            return found.ema_context(transformer)
        own = getattr(method, "student_ema", None)
        return own.applied_to(transformer) if isinstance(own, ShadowWeights) else nullcontext()

    def _directory(self, training: TrainingConfig) -> Path:
        return Path(self.output_dir or training.checkpoint.output_dir)


def _model_path(method: TrainingMethod) -> str:
    """Returns where VAE, text encoder and scheduler are: as the student's own parts are found."""
    return method.training_config.model_path or str(getattr(method.student, "model_dir", ""))


@contextmanager
def _unchanged(method: TrainingMethod) -> Iterator[None]:
    """Restores the random state, and the mode of the student, after the body."""
    transformer = method.student.transformer
    generator = getattr(method, "cuda_generator", None)
    state = random_state(generator)
    was_training = transformer.training
    transformer.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        transformer.train(was_training)
        forget_forwards(transformer)
        restore_random_state(state, generator)


def _written(path: Path, video_CTHW: Tensor, fps: int) -> str | None:
    """Writes a video; one that cannot be written is logged and left out."""
    try:
        return str(write_mp4(path, to_frames(video_CTHW), fps=fps))
    except VideoWriteError as error:
        logger.warning("validation: %s; training goes on without this video", error)
        return None


def _warn_without_effect(settings: Mapping[str, object]) -> None:
    """Says which settings change nothing here; they are for other kinds of models."""
    idle = [name for name in _WITHOUT_EFFECT if settings[name] != _WITHOUT_EFFECT[name]]
    if idle:
        logger.warning("%s: %s changes nothing in text-to-video", _WHERE, ", ".join(idle))


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


def _metric_names(value: object) -> list[str]:
    """Reads one name, a list of them, or a mapping of names to whether they are wanted."""
    if value is None:
        return list(METRICS)
    if isinstance(value, Mapping):
        value = [name for name, wanted in value.items() if wanted not in {False, None}]
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        reject_value(f"{_WHERE}.metrics", "a list of names or a mapping", value)
    names = [_text("metrics", item) for item in value]
    for name in names:
        if name not in METRICS:
            message = (
                f"{_WHERE}.metrics: there is no metric {name!r}; known are {', '.join(METRICS)}."
                f"{did_you_mean(name, METRICS)}"
            )
            raise ConfigError(message)
    return names
