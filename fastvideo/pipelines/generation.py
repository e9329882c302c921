"""Requests for videos, and what comes back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError, did_you_mean
from fastvideo.pipelines.sampling_param import SamplingParam
from fastvideo.pipelines.typed_fields import expanded, fail, field_names, from_mapping

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

OUTPUT_FIELDS: Final = ("output_path", "return_frames", "return_trajectory_latents", "save_video")
"""The fields of :class:`SamplingParam` that belong to the section ``output``."""


@dataclass(slots=True)
class GenerationRequest:
    """What is asked of a generator.

    Attributes:
        prompt: One prompt, or several.
        prompt_path: A file of prompts: ``.txt`` with one a line, or ``.jsonl`` with objects that
            have ``prompt`` and perhaps fields of :class:`SamplingParam` of their own.
        negative_prompt: What guidance leads away from.
        sampling: Fields of :class:`SamplingParam` about the video.
        output: Fields of :class:`SamplingParam` about what becomes of it.
    """

    prompt: str | list[str] | None = None
    prompt_path: str | None = None
    negative_prompt: str | None = field(default=None, metadata={"default": "the preset's"})
    sampling: dict[str, Any] = field(default_factory=dict)
    output: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, values: object) -> GenerationRequest:
        """Returns the request that a run file's ``request`` section holds.

        Args:
            values: The section.

        Raises:
            ConfigError: A field is unknown or of another type; the message has its path.
        """
        return from_mapping(cls, values, where="request")

    def parameters(self, preset: SamplingParam) -> SamplingParam:
        """Returns the parameters: those of the request, and the preset's beyond that.

        Args:
            preset: Those of the model.

        Raises:
            ConfigError: A field is unknown or of another type.
        """
        own = [
            n for n in field_names(SamplingParam) if n not in (*OUTPUT_FIELDS, "negative_prompt")
        ]
        for section, known in (("sampling", own), ("output", OUTPUT_FIELDS)):
            for name in getattr(self, section):
                if name not in known:
                    hint = did_you_mean(name, known)
                    known_text = ", ".join(known)
                    fail(f"request.{section}.{name}", f"unknown field.{hint} Known: {known_text}")
        result = preset.updated(self.sampling, where="request.sampling")
        result = result.updated(self.output, where="request.output")
        if self.negative_prompt is not None:
            result.negative_prompt = self.negative_prompt
        return result

    def prompts(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns the prompts, each with the fields of :class:`SamplingParam` that are its own.

        Raises:
            ConfigError: There is no prompt, or two sources of prompts, or the file is no good.
        """
        if self.prompt is None and self.prompt_path is None:
            fail("request.prompt", "missing required field (or request.prompt_path)")
        if self.prompt is not None and self.prompt_path is not None:
            fail("request.prompt", "given, and request.prompt_path as well; give one of them")
        if self.prompt_path is not None:
            return read_prompts(self.prompt_path)
        prompts = [self.prompt] if isinstance(self.prompt, str) else list(self.prompt or ())
        if not prompts:
            fail("request.prompt", "expected at least one prompt, got an empty list")
        return [(prompt, {}) for prompt in prompts]


def read_prompts(path: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """Reads a file of prompts.

    Args:
        path: ``.txt`` or ``.jsonl`` in UTF-8; empty lines are left out.

    Returns:
        The prompts, each with what else its line says.

    Raises:
        ConfigError: The file cannot be read, or a line of it.
    """
    file = expanded(path, where="request.prompt_path")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"request.prompt_path: {file} cannot be read: {reason}"
        raise ConfigError(message) from error
    # Not splitlines, which also divides at characters that a prompt or a string of JSON may hold.
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        fail("request.prompt_path", f"{file} holds no prompts")
    if file.suffix.lower() != ".jsonl":
        return [(line.strip(), {}) for _, line in numbered]
    return [_from_json(line, f"request.prompt_path: {file}, line {n}") for n, line in numbered]


def _from_json(line: str, where: str) -> tuple[str, dict[str, Any]]:
    try:
        values = json.loads(line)
    except ValueError as error:
        message = f"{where} is not valid JSON: {error}"
        raise ConfigError(message) from error
    if not isinstance(values, dict) or not isinstance(values.get("prompt"), str):
        fail(where, f"expected an object with a 'prompt', got {line.strip()[:80]}")
    prompt = values.pop("prompt")
    return prompt, values


@dataclass(slots=True)
class GenerationResult:
    """What became of one prompt.

    Attributes:
        prompts: The prompt.
        error: What was wrong with it, or None. In a list of prompts a bad one leaves this behind.
        samples: [B, 3, T, H, W], float32 in [0, 1]; or None.
        frames: Frames of the first video, [H, W, 3] uint8 each; or None.
        size: Height, width and frames.
        generation_time: Seconds that the pipeline took.
        e2e_latency: Seconds from the request to the written file.
        video_path: File of the first video, or None.
        video_paths: Files of all videos.
        seeds: Of the videos.
        trajectory: Latents after every step, [steps, B, C, T, H, W], or None.
        trajectory_timesteps: The timesteps they are of, or None.
        latents: [B, C, T, H, W], where latents were asked for instead of pixels, or None.
        peak_memory_mb: Most memory in use so far, in MiB: of the device during the request, or
            of the process where there is no device.
        logging_info: Seconds of every denoising step, as ``denoising_steps_s``.
    """

    prompts: str
    error: str | None = None
    samples: Tensor | None = None
    frames: list[NDArray[np.uint8]] | None = None
    size: tuple[int, int, int] | None = None
    generation_time: float = 0.0
    e2e_latency: float = 0.0
    video_path: str | None = None
    video_paths: list[str] = field(default_factory=list)
    seeds: tuple[int, ...] = ()
    trajectory: Tensor | None = None
    trajectory_timesteps: list[float] | None = None
    latents: Tensor | None = None
    peak_memory_mb: float = 0.0
    logging_info: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dictionary."""
        return {each.name: getattr(self, each.name) for each in fields(self)}
