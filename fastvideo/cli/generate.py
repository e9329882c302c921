"""`fastvideo generate`: videos from prompts."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from fastvideo import envs
from fastvideo.errors import ConfigError, FastVideoError, did_you_mean
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from fastvideo.pipelines.generation import GenerationResult
    from fastvideo.pipelines.sampling_param import SamplingParam

logger = init_logger(__name__)

_DESCRIPTION = """\
Makes videos of prompts with a model in diffusers layout.

  fastvideo generate --config run.yaml --request.sampling.seed 7
  fastvideo generate --model-path DIR --prompt "a red ball" --prompt "snow"

A run file has the sections generator, request and observability. Every key of it can be set on
the command line, as --section.key VALUE; the options below are short forms. What is not set
comes from the model's preset.

With several prompts, those that cannot be fulfilled are named and the others are made; the exit
status is then 1."""

_SHORT: Final = {
    "model_path": "generator.model_path",
    "dmd_denoising_steps": "generator.pipeline.dmd_denoising_steps",
    "prompt_path": "request.prompt_path",
    "negative_prompt": "request.negative_prompt",
    "output_path": "request.output.output_path",
    "height": "request.sampling.height",
    "width": "request.sampling.width",
    "num_frames": "request.sampling.num_frames",
    "fps": "request.sampling.fps",
    "num_inference_steps": "request.sampling.num_inference_steps",
    "guidance_scale": "request.sampling.guidance_scale",
    "seed": "request.sampling.seed",
    "num_videos_per_prompt": "request.sampling.num_videos_per_prompt",
}
_TEXTS: Final = ("model_path", "prompt_path", "negative_prompt", "output_path")
_HELP: Final = {
    "model_path": ("PATH", "model directory, hub name, or tiny-random:wan2.1"),
    "prompt_path": ("FILE", "prompts: .txt with one a line, or .jsonl with settings of their own"),
    "negative_prompt": ("TEXT", "what guidance leads away from"),
    "output_path": ("PATH", "a file that ends in .mp4, or a folder (default: outputs/)"),
    "height": ("N", "pixels, a multiple of 16"),
    "width": ("N", "pixels, a multiple of 16"),
    "num_frames": ("N", "frames, 4k + 1"),
    "fps": ("N", "frames per second of the file"),
    "num_inference_steps": ("N", "denoising steps"),
    "guidance_scale": ("X", "classifier-free guidance; 1 is none"),
    "seed": ("N", "of the first video; each further video of a prompt has the next one"),
    "num_videos_per_prompt": ("N", "videos of each prompt"),
    "dmd_denoising_steps": ("LIST", "timesteps of a few-step student, such as [1000,750,500,250]"),
}


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "generate",
        help="make videos of prompts",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="a run file in YAML")
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="what is to be seen; may be repeated"
    )
    for name, (metavar, text) in _HELP.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    parser.set_defaults(run=run, takes_overrides=True)


def run(args: argparse.Namespace) -> int:
    """Makes the videos.

    Args:
        args: The parsed options; `args.rest` holds the overrides.

    Returns:
        0 if every prompt has its videos, else 1.

    Raises:
        ConfigError: The run file, an option or an override is wrong, or the only prompt.
        DataError: Files of the model are missing or hold another class of model.
    """
    from fastvideo.hooks.trace_settings import (  # noqa: PLC0415 - imports torch
        check_trace_variables,
    )
    from fastvideo.pipelines.generation import GenerationRequest  # noqa: PLC0415 - as above
    from fastvideo.pipelines.run_file import load_run_file  # noqa: PLC0415 - as above
    from fastvideo.pipelines.sampling_param import SamplingParam  # noqa: PLC0415 - as above

    if args.config is None and args.model_path is None:
        message = "give a run file with --config FILE, or a model with --model-path PATH"
        raise ConfigError(message)
    sections = load_run_file(args.config, _overrides(args))
    request = GenerationRequest.from_mapping(sections["request"])
    prompts = request.prompts()
    param = request.parameters(SamplingParam())
    _check_parameters(param)
    check_trace_variables()
    mistakes = list(_mistakes(prompts, param))
    if len(mistakes) == len(prompts):
        _refuse_all(mistakes)
    request.output["return_frames"] = False  # nobody looks at them, and many are much memory
    _begin_logging()
    for number, error in mistakes:
        logger.warning("prompt %d of %d will be left out: %s", number, len(prompts), error)
    from fastvideo.pipelines.video_generator import (  # noqa: PLC0415 - after what may be mistaken
        VideoGenerator,
        generator_config,
    )
    from fastvideo.train.entrypoint.termination import (  # noqa: PLC0415 - as above
        terminate_by_exception,
    )

    with (
        terminate_by_exception(signal.SIGTERM),  # it would end everything at once otherwise
        VideoGenerator.from_config(generator_config(sections)) as generator,
    ):
        if len(prompts) == 1 and not prompts[0][1]:
            request.prompt, request.prompt_path = prompts[0][0], None
        answer = generator.generate(request, on_result=_print_files)
    results = answer if isinstance(answer, list) else [answer]
    return 1 if any(result.error is not None for result in results) else 0


def _begin_logging() -> None:
    from fastvideo.logger import configure_logging  # noqa: PLC0415 - as in run
    from fastvideo.observability.logs import log_formatter  # noqa: PLC0415 - as in run
    from fastvideo.profiler import ranks  # noqa: PLC0415 - as in run

    rank, size = ranks.current_rank(), ranks.current_world_size()
    form = log_formatter(envs.FASTVIDEO_LOG_FORMAT, rank=rank)
    configure_logging(envs.FASTVIDEO_LOG_LEVEL, rank=rank, formatter=form)
    for given, meant in envs.misspelled_variables().items():
        logger.warning("%s is set, but is no variable: is %s meant?", given, meant)
    if rank == 0 and size > 1:
        logger.warning(
            "each of the %d ranks makes every prompt: start processes on their own instead, and "
            "give each its own prompts",
            size,
        )


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the short forms as overrides, and behind them the overrides themselves.

    What is text by nature is taken to the letter, whatever YAML would see in it.
    """
    from fastvideo.pipelines.run_file import read_overrides  # noqa: PLC0415 - as in run

    given = {path: getattr(args, name) for name, path in _SHORT.items() if name not in _TEXTS}
    words = [f"--{path}={value}" for path, value in given.items() if value is not None]
    texts = {_SHORT[name]: getattr(args, name) for name in _TEXTS}
    texts["request.prompt"] = args.prompt
    overrides = read_overrides(args.rest)
    _refuse_misspelled(overrides)
    literal = {path: value for path, value in texts.items() if value is not None}
    return {**read_overrides(words), **literal, **overrides}


def _refuse_misspelled(overrides: Mapping[str, Any]) -> None:
    """Names the short form that is probably meant by one that there is not.

    Raises:
        ConfigError: There is such a one.
    """
    options = [f"--{name.replace('_', '-')}" for name in ("config", "prompt", *_HELP)]
    for path in overrides:
        given = f"--{path.replace('_', '-')}"
        hint = "" if "." in path else did_you_mean(given, options)
        if hint:
            message = f"{given}: unknown option.{hint}"
            raise ConfigError(message)


def _check_parameters(param: SamplingParam) -> None:
    """Refuses what would only be refused after the model was loaded."""
    from fastvideo.pipelines.output_path import check_output_path  # noqa: PLC0415 - as below
    from fastvideo.pipelines.stages.input_validation import (  # noqa: PLC0415 - imports torch
        check_fps,
        check_numbers,
    )

    check_numbers(param, param.seeds(), where="request.sampling.")
    if param.save_video:
        check_fps("request.sampling.fps", param.fps)
        check_output_path("request.output.output_path", param.output_path)


def _mistakes(
    prompts: Sequence[tuple[str, Mapping[str, Any]]], param: SamplingParam
) -> Iterator[tuple[int, FastVideoError]]:
    """Yields the numbers of prompts that cannot be fulfilled, from 1, and why."""
    from fastvideo.pipelines.stages.input_validation import check_prompt  # noqa: PLC0415 - as above

    for number, (prompt, own) in enumerate(prompts, 1):
        try:
            check_prompt("request.prompt", prompt)
            if own:
                _check_parameters(param.updated(own, where="request.sampling"))
        except FastVideoError as error:
            yield number, error


def _refuse_all(mistakes: Sequence[tuple[int, FastVideoError]]) -> NoReturn:
    number, error = mistakes[0]
    if len(mistakes) == 1:
        raise error
    message = f"none of the {len(mistakes)} prompts can be fulfilled: prompt {number}: {error}"
    raise ConfigError(message) from error


def _print_files(result: GenerationResult) -> None:
    """Names the files of a prompt on standard output; the log names a prompt that failed."""
    for path in result.video_paths:
        sys.stdout.write(f"{path}\n")
    sys.stdout.flush()
