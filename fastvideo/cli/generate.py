"""`fastvideo generate`: videos from prompts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from fastvideo import envs
from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from fastvideo.pipelines.generation import GenerationResult
    from fastvideo.pipelines.sampling_param import SamplingParam

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
    from fastvideo.pipelines.generation import GenerationRequest  # noqa: PLC0415 - imports torch
    from fastvideo.pipelines.run_file import load_run_file  # noqa: PLC0415 - as above
    from fastvideo.pipelines.sampling_param import SamplingParam  # noqa: PLC0415 - as above

    if args.config is None and args.model_path is None:
        message = "give a run file with --config FILE, or a model with --model-path PATH"
        raise ConfigError(message)
    sections = load_run_file(args.config, _overrides(args))
    request = GenerationRequest.from_mapping(sections["request"])
    prompts = request.prompts()
    _check_parameters(request.parameters(SamplingParam()))
    from fastvideo.logger import configure_logging  # noqa: PLC0415 - after what may be mistaken
    from fastvideo.observability.logs import log_formatter  # noqa: PLC0415 - as above
    from fastvideo.pipelines.video_generator import (  # noqa: PLC0415 - as above
        VideoGenerator,
        generator_config,
    )

    form = log_formatter(envs.FASTVIDEO_LOG_FORMAT, rank=0)
    configure_logging(envs.FASTVIDEO_LOG_LEVEL, rank=0, formatter=form)
    with VideoGenerator.from_config(generator_config(sections)) as generator:
        if len(prompts) == 1 and not prompts[0][1]:
            request.prompt, request.prompt_path = prompts[0][0], None
        answer = generator.generate(request)
    return _report(answer if isinstance(answer, list) else [answer])


def _overrides(args: argparse.Namespace) -> Sequence[str]:
    """Returns the short forms as overrides, and behind them the overrides themselves."""
    words: list[str] = []
    for name, path in _SHORT.items():
        value = getattr(args, name)
        if value is not None:
            words.append(f"--{path}={value}")
    if args.prompt:
        words.append(f"--request.prompt={json.dumps(args.prompt)}")
    return [*words, *args.rest]


def _check_parameters(param: SamplingParam) -> None:
    """Refuses what would only be refused after the model was loaded."""
    from fastvideo.pipelines.output_path import check_output_path  # noqa: PLC0415 - as below
    from fastvideo.pipelines.stages.input_validation import (  # noqa: PLC0415 - imports torch
        check_num_frames,
        check_size,
    )

    check_size("request.sampling.height", param.height)
    check_size("request.sampling.width", param.width)
    check_num_frames(param.num_frames, name="request.sampling.num_frames")
    if param.save_video:
        check_output_path("request.output.output_path", param.output_path)


def _report(results: Sequence[GenerationResult]) -> int:
    """Names the files on standard output; the log has named every prompt that failed."""
    for result in results:
        for path in result.video_paths:
            sys.stdout.write(f"{path}\n")
    return 1 if any(result.error is not None for result in results) else 0
