"""Videos from prompts: the programming interface of inference."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Self, overload

import torch

from fastvideo import observability
from fastvideo.dataset.model_files import resolve_model_path
from fastvideo.errors import ConfigError, FastVideoError, counted, did_you_mean
from fastvideo.hooks.trace_settings import check_trace_variables
from fastvideo.logger import init_logger
from fastvideo.pipelines.basic.wan.wan_dmd_pipeline import WanDMDPipeline
from fastvideo.pipelines.basic.wan.wan_pipeline import WanPipeline
from fastvideo.pipelines.forward_batch import ForwardBatch
from fastvideo.pipelines.generation import GenerationRequest, GenerationResult
from fastvideo.pipelines.generator_config import GeneratorConfig
from fastvideo.pipelines.model_index import read_model_index
from fastvideo.pipelines.output_path import make_output_folder, output_paths
from fastvideo.pipelines.presets import DMD_PIPELINE, WAN_PIPELINE, find_preset
from fastvideo.pipelines.run_file import load_run_file
from fastvideo.pipelines.sampling_param import SamplingParam
from fastvideo.pipelines.stages.input_validation import check_fps
from fastvideo.pipelines.step_clock import StepBar, StepClock, shortened
from fastvideo.pipelines.video_file import VideoWriteError, to_frames, write_new_mp4
from fastvideo.profiler import get_global_controller, profiler_region

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from fastvideo.pipelines.composed_pipeline_base import ComposedPipelineBase

logger = init_logger(__name__)

PIPELINES: Final[dict[str, type[ComposedPipelineBase]]] = {
    WAN_PIPELINE: WanPipeline,
    DMD_PIPELINE: WanDMDPipeline,
}
"""By the name that ``model_index.json`` has for them."""

_EXPECTED: Final = (FastVideoError, MemoryError, torch.OutOfMemoryError)
"""What a prompt may fail with without the others suffering."""


class VideoGenerator:
    """Makes videos of prompts, one request after the other, in this process.

    Use it in a ``with`` statement, or call :meth:`shutdown`: that writes the kernel traces,
    activation traces and spans that are still under way.

    Args:
        config: Model, machine and pipeline.

    Attributes:
        preset: Parameters of requests that say nothing else.

    Raises:
        ConfigError: A setting cannot be used, or there is no such model.
        DataError: Files of the model are missing or hold another class of model.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        check_trace_variables()
        config.engine.warn_of_idle_settings()
        model_dir = resolve_model_path(config.model_path, option="model_path")
        found = find_preset(model_dir)
        settings = found.pipeline_config.updated(config.pipeline, where="generator.pipeline")
        pipeline_class = _pipeline_class(config, model_dir)
        self.preset = SamplingParam(**found.sampling)
        self._decode = config.engine.output_type != "latent"
        logger.info("loading %s", config.model_path)
        self._telemetry = _start_telemetry(config)
        controller = get_global_controller()
        self._owns_controller = controller is None or not controller.is_started
        self._pipeline: ComposedPipelineBase | None = None
        try:
            self._pipeline = pipeline_class.from_pretrained(
                model_dir, pipeline_config=settings, offload=config.engine.offload
            )
            if config.engine.enable_torch_compile:
                self._pipeline.compile(**config.engine.torch_compile_kwargs)
        except BaseException as error:
            self._end(error)
            raise

    @classmethod
    def from_pretrained(
        cls,
        model_path: str | Path,
        num_gpus: int = 1,
        **settings: Any,  # noqa: ANN401 - one flat list of settings
    ) -> Self:
        """Makes a generator of a model.

        Args:
            model_path: A directory in diffusers layout, a hub name, or ``tiny-random:wan2.1``.
            num_gpus: Devices; only 1 is offered.
            **settings: Fields of ``EngineConfig`` and ``PipelineConfig``, ``pipeline_config``,
                ``pipeline_class`` and ``observability``. Others are left out with a warning.

        Raises:
            ConfigError: A setting cannot be used, or there is no such model.
            DataError: Files of the model are missing or hold another class of model.
        """
        return cls(
            GeneratorConfig.from_keywords(str(model_path), {"num_gpus": num_gpus, **settings})
        )

    @classmethod
    def from_config(cls, config: GeneratorConfig | Mapping[str, Any]) -> Self:
        """Makes a generator of a config, or of a mapping with its fields."""
        if not isinstance(config, GeneratorConfig):
            config = GeneratorConfig.from_mapping(config)
        return cls(config)

    @classmethod
    def from_file(cls, path: str | Path, overrides: Mapping[str, Any] | Sequence[str] = ()) -> Self:
        """Makes a generator of the ``generator`` section of a run file.

        Args:
            path: A YAML file.
            overrides: See :func:`fastvideo.pipelines.run_file.load_run_file`.
        """
        sections = load_run_file(path, overrides)
        return cls(generator_config(sections))

    @property
    def pipeline(self) -> ComposedPipelineBase:
        """What makes the videos.

        Raises:
            RuntimeError: The generator was shut down.
        """
        if self._pipeline is None:
            message = "the generator was shut down; make another one"
            raise RuntimeError(message)
        return self._pipeline

    def _refuse_after_shutdown(self) -> None:
        """Raises what :attr:`pipeline` raises, before anything is counted as a failed request."""
        _ = self.pipeline

    @overload
    def generate_video(
        self,
        prompt: str,
        sampling_param: SamplingParam | None = None,
        **changes: Any,  # noqa: ANN401 - fields of SamplingParam
    ) -> dict[str, Any]: ...

    @overload
    def generate_video(
        self,
        prompt: list[str],
        sampling_param: SamplingParam | None = None,
        **changes: Any,  # noqa: ANN401 - fields of SamplingParam
    ) -> list[dict[str, Any]]: ...

    def generate_video(
        self,
        prompt: str | list[str],
        sampling_param: SamplingParam | None = None,
        **changes: Any,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Makes the videos of a prompt, or of several.

        Args:
            prompt: One prompt, or a list. In a list, a prompt that cannot be fulfilled does not
                end the others: it leaves a result with ``error`` behind.
            sampling_param: Parameters; None: those of the model's preset.
            **changes: Fields of :class:`SamplingParam` to change.

        Returns:
            The fields of :class:`GenerationResult`, or a list of them.

        Raises:
            ConfigError: A parameter is unknown or cannot be used, or the one prompt.
            VideoWriteError: The video of the one prompt cannot be written.
        """
        self._refuse_after_shutdown()
        param = (sampling_param or self.preset).updated(changes)
        if isinstance(prompt, str):
            return self._answer_one(prompt, param).to_dict()
        results = self._answer_all([(one, param, {}) for one in prompt])
        return [result.to_dict() for result in results]

    def generate(
        self,
        request: GenerationRequest | Mapping[str, Any] | Sequence[Any],
        *,
        on_result: Callable[[GenerationResult], None] | None = None,
    ) -> GenerationResult | list[GenerationResult]:
        """Answers a request, or several.

        Args:
            request: A request, a mapping with its fields, or a list of these.
            on_result: Is given the result of every prompt as soon as it is there.

        Returns:
            A result for a request of one prompt, else a list in the order of the prompts. In a
            list, a prompt that failed has an ``error``.

        Raises:
            ConfigError: The one prompt cannot be fulfilled, or the request is not understood.
            VideoWriteError: The video of the one prompt cannot be written.
        """
        self._refuse_after_shutdown()
        if isinstance(request, GenerationRequest) or hasattr(request, "keys"):
            one = _as_request(request)
            prompts = one.prompts()
            param = one.parameters(self.preset)
            if isinstance(one.prompt, str):
                result = self._answer_one(one.prompt, param)
                if on_result is not None:
                    on_result(result)
                return result
            return self._answer_all([(prompt, param, own) for prompt, own in prompts], on_result)
        work: list[tuple[str, SamplingParam | FastVideoError, dict[str, Any]]] = []
        for each in request:
            work.extend(self._work_of(each))
        return self._answer_all(work, on_result)

    def shutdown(self) -> None:
        """Ends the generator: flushes and closes traces and spans, and frees the model.

        A second call does nothing. Whatever is asked of the generator afterwards raises a
        ``RuntimeError``.
        """
        self._end(None)

    def __enter__(self) -> Self:
        self._refuse_after_shutdown()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        with ExitStack() as ends:  # the last one first, and each whatever happens to the others
            telemetry, self._telemetry = self._telemetry, None
            if telemetry is not None:
                stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
                ends.callback(telemetry.shutdown, error=error, stopped=stopped, linger=True)
            controller = get_global_controller()
            owns_controller, self._owns_controller = self._owns_controller, False
            if owns_controller and controller is not None:
                ends.callback(controller.stop)
            if torch.cuda.is_available():
                ends.callback(torch.cuda.empty_cache)
            pipeline, self._pipeline = self._pipeline, None
            if pipeline is not None:
                ends.callback(pipeline.close)
            del pipeline

    def _work_of(
        self, each: object
    ) -> list[tuple[str, SamplingParam | FastVideoError, dict[str, Any]]]:
        """Returns the prompts of one request of several, or what is wrong with it."""
        try:
            request = _as_request(each)
            param = request.parameters(self.preset)
            return [(prompt, param, own) for prompt, own in request.prompts()]
        except FastVideoError as error:
            return [(_shown_prompt(each), error, {})]

    def _answer_all(
        self,
        work: Sequence[tuple[str, SamplingParam | FastVideoError, dict[str, Any]]],
        on_result: Callable[[GenerationResult], None] | None = None,
    ) -> list[GenerationResult]:
        """Answers every prompt; what cannot be answered is logged and leaves an error behind."""
        results = []
        with StepBar() as bar:
            for number, (prompt, param, own) in enumerate(work, 1):
                shown = bar.request(str(prompt), number, len(work))
                try:
                    result = self._answer(prompt, param, own, shown)
                except _EXPECTED as error:
                    reason = f"{type(error).__name__}: {error}"
                    short = shortened(str(prompt))
                    logger.error("prompt %d of %d, %r: %s", number, len(work), short, reason)  # noqa: TRY400 - the message says it
                    made = error.result if isinstance(error, VideoWriteError) else None
                    result = made or GenerationResult(prompts=str(prompt))
                    result.error = reason
                results.append(result)
                if result.error is None and not bar.is_shown:
                    _log_made(result, number, len(work))
                if on_result is not None:
                    on_result(result)
        failed = sum(result.error is not None for result in results)
        if failed:
            logger.warning("%d of %d prompts failed; the log names each", failed, len(results))
        return results

    def _answer_one(self, prompt: str, param: SamplingParam) -> GenerationResult:
        with StepBar() as bar:
            result = self._answer(prompt, param, {}, bar.request(prompt, 1, 1))
        if not bar.is_shown:
            _log_made(result, 1, 1)
        return result

    def _answer(
        self,
        prompt: str,
        param: SamplingParam | FastVideoError,
        own: Mapping[str, Any],
        shown: Callable[[int, int], None],
    ) -> GenerationResult:
        """Makes the videos of one prompt, in a trace of its own."""
        attributes = {} if isinstance(param, FastVideoError) else _attributes(param)
        telemetry = observability.active()
        if telemetry is not None:
            telemetry.expect_requests()
        with profiler_region("inference_request", **attributes):
            if isinstance(param, FastVideoError):
                raise param
            return self._make(prompt, param.updated(own), shown)

    def _make(
        self, prompt: str, param: SamplingParam, shown: Callable[[int, int], None]
    ) -> GenerationResult:
        pipeline = self.pipeline
        if param.save_video:
            check_fps("fps", param.fps)
            make_output_folder("output_path", param.output_path)
        start = perf_counter()
        device = pipeline.args.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        clock = StepClock(device)

        def on_step(done: int, of: int) -> None:
            clock.note()
            shown(done, of)

        batch = pipeline.forward(_new_batch(prompt, param, decode=self._decode, on_step=on_step))
        result = _new_result(batch, param)
        result.generation_time = perf_counter() - start
        durations_s = clock.durations_s()
        telemetry = observability.active()
        if telemetry is not None:
            trace_id, _ = observability.current_trace()
            telemetry.record_denoising_steps(durations_s, trace_id=trace_id)
        result.peak_memory_mb = _peak_memory_mb(device)
        result.logging_info["denoising_steps_s"] = durations_s
        if batch.output is not None and param.save_video:
            _write(result, batch.output, param)
        result.e2e_latency = perf_counter() - start
        return result


def generator_config(sections: Mapping[str, Any]) -> GeneratorConfig:
    """Returns the config that the sections of a run file describe.

    Args:
        sections: From :func:`load_run_file`.

    Raises:
        ConfigError: A field is unknown, missing or of another type.
    """
    own = sections["generator"]
    section = sections.get("observability")
    if section is not None and isinstance(own, dict):
        own = {"observability": section, **own}
    return GeneratorConfig.from_mapping(own)


def _pipeline_class(config: GeneratorConfig, model_dir: Path) -> type[ComposedPipelineBase]:
    """Returns the pipeline that is asked for, or else the model's own."""
    name = config.pipeline_class
    if name is not None:
        if name not in PIPELINES:
            message = (
                f"generator.pipeline_class: expected one of {list(PIPELINES)}, got {name!r}."
                f"{did_you_mean(name, PIPELINES)}"
            )
            raise ConfigError(message)
        return PIPELINES[name]
    own = str(read_model_index(model_dir).get("_class_name"))
    if own not in PIPELINES:
        message = (
            f"{model_dir / 'model_index.json'} names the pipeline {own}; this version has "
            f"{', '.join(PIPELINES)}. If the model is of their kind, say so with pipeline_class"
        )
        raise ConfigError(message)
    return WanDMDPipeline if config.pipeline.get("dmd_denoising_steps") else PIPELINES[own]


def _start_telemetry(config: GeneratorConfig) -> observability.Telemetry | None:
    """Starts telemetry where something asks for it; None where it runs already, or nothing does."""
    if observability.active() is not None:
        return None
    settings = observability.TelemetryConfig.from_sources(os.environ, config.observability)
    asked = (
        config.observability is not None
        or settings.traces.enabled
        or settings.otlp_metrics is not None
        or (bool(os.environ.get("FASTVIDEO_METRICS")) and settings.metrics)
    )
    if not asked:
        return None
    return observability.start(settings, method="inference", model=config.model_path)


def _as_request(request: object) -> GenerationRequest:
    if isinstance(request, GenerationRequest):
        return request
    return GenerationRequest.from_mapping(request)


def _shown_prompt(request: object) -> str:
    prompt = request.get("prompt") if hasattr(request, "get") else request
    return str(prompt)


def _attributes(param: SamplingParam) -> dict[str, Any]:
    """Returns what the trace says of a request; prompts may be secret."""
    return {
        "height": param.height,
        "width": param.width,
        "num_frames": param.num_frames,
        "num_inference_steps": param.num_inference_steps,
        "num_videos": param.num_videos_per_prompt,
        "guidance_scale": param.guidance_scale,
        "seed": param.seed,
    }


def _new_batch(
    prompt: object, param: SamplingParam, *, decode: bool, on_step: Callable[[int, int], None]
) -> ForwardBatch:
    if not isinstance(prompt, str):
        message = f"prompt: expected text, got {prompt!r}"
        raise ConfigError(message)
    return ForwardBatch(
        prompt=prompt,
        negative_prompt=param.negative_prompt,
        height=param.height,
        width=param.width,
        num_frames=param.num_frames,
        num_inference_steps=param.num_inference_steps,
        guidance_scale=param.guidance_scale,
        guidance_scale_2=param.guidance_scale_2,
        seeds=param.seeds(),
        decode=decode,
        keep_trajectory=param.return_trajectory_latents,
        on_step=on_step,
    )


def _new_result(batch: ForwardBatch, param: SamplingParam) -> GenerationResult:
    result = GenerationResult(
        prompts=batch.prompt,
        size=(batch.height, batch.width, batch.num_frames),
        seeds=batch.seeds,
    )
    if batch.latents is not None:
        result.logging_info["nonfinite_latents"] = _count_nonfinite(batch.latents, batch.prompt)
    if batch.output is None:
        result.latents = None if batch.latents is None else batch.latents.cpu()
    else:
        batch.output = batch.output.cpu()
        if param.return_frames:
            result.samples = batch.output
            result.frames = list(to_frames(batch.output[0]))
    if batch.trajectory:
        result.trajectory = torch.stack([latents for _, latents in batch.trajectory])
        result.trajectory_timesteps = [timestep for timestep, _ in batch.trajectory]
    return result


def _log_made(result: GenerationResult, number: int, total: int) -> None:
    height, width, frames = result.size or (0, 0, 0)
    logger.info(
        "prompt %d of %d took %.1f s: %dx%d, %s, %s: %s",
        number,
        total,
        result.e2e_latency,
        height,
        width,
        counted(frames, "frame"),
        counted(len(result.logging_info["denoising_steps_s"]), "step"),
        ", ".join(result.video_paths) or "no file",
    )


def _count_nonfinite(latents: Tensor, prompt: str) -> int:
    """Returns how many latents are NaN or infinite, which no video can show, and warns of it."""
    count = int((~torch.isfinite(latents)).sum())
    if count:
        logger.warning(
            "prompt %r: %d of %d latents are NaN or infinite, so the video is no good; "
            "FASTVIDEO_TRACE_ACTIVATIONS=1 tells which layer began it",
            shortened(prompt),
            count,
            latents.numel(),
        )
    return count


def _write(result: GenerationResult, videos_BCTHW: Tensor, param: SamplingParam) -> None:
    """Writes the files of a result; one that cannot be written takes the result along."""
    for video_CTHW in videos_BCTHW:
        names = output_paths(param.output_path, result.prompts)
        try:
            path = write_new_mp4(names, to_frames(video_CTHW), fps=param.fps)
        except VideoWriteError as error:
            error.result = result
            raise
        result.video_paths.append(str(path))
        result.video_path = result.video_paths[0]


def _peak_memory_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
