"""What is asked of a model: size, length, steps, seeds, and where the video goes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastvideo.pipelines.presets import WAN_NEGATIVE_PROMPT, find_preset
from fastvideo.pipelines.typed_fields import checked_values, fail

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(slots=True)
class SamplingParam:
    """How videos are sampled and where they go.

    Attributes:
        num_frames: Length of the video, 4k + 1.
        height: Height of the video, a multiple of 16.
        width: Width of the video, a multiple of 16.
        fps: Frames per second of the file.
        num_inference_steps: Denoising steps; distilled students have their own.
        guidance_scale: Classifier-free guidance; 1 is none, and half the work.
        guidance_scale_2: That of the second expert, in models that have one; unset, the same.
        seed: Seed of the first video; each further video of a prompt has the next one.
        negative_prompt: What guidance leads away from.
        num_videos_per_prompt: Videos of each prompt, made together.
        output_path: A file that ends in ``.mp4``, or a folder.
        save_video: Whether files are written.
        return_frames: Whether results hold pixels.
        return_trajectory_latents: Whether results hold the latents of every step.
    """

    num_frames: int = field(default=125, metadata={"allowed": "4k + 1", "unit": "frames"})
    height: int = field(default=720, metadata={"allowed": "multiples of 16", "unit": "pixels"})
    width: int = field(default=1280, metadata={"allowed": "multiples of 16", "unit": "pixels"})
    fps: int = field(default=24, metadata={"unit": "frames per second"})
    num_inference_steps: int = field(default=50, metadata={"unit": "steps"})
    guidance_scale: float = 1.0
    guidance_scale_2: float | None = None
    seed: int = 1024
    negative_prompt: str = WAN_NEGATIVE_PROMPT
    num_videos_per_prompt: int = field(
        default=1, metadata={"allowed": "at least 1", "unit": "videos"}
    )
    output_path: str = "outputs/"
    save_video: bool = True
    return_frames: bool = True
    return_trajectory_latents: bool = False

    @classmethod
    def from_pretrained(cls, model_path: str | Path) -> SamplingParam:
        """Returns the parameters of a model's preset; the defaults where there is none.

        Args:
            model_path: A model directory or hub name.

        Raises:
            ConfigError: There is no such model.
        """
        return cls(**find_preset(model_path).sampling)

    def update(self, values: Mapping[str, Any]) -> None:
        """Replaces some fields.

        Args:
            values: New values by field name.

        Raises:
            ConfigError: A name is unknown (all of these are listed), or a value has another type.
        """
        for name, value in checked_values(type(self), values, where="").items():
            setattr(self, name, value)

    def updated(self, values: Mapping[str, Any], *, where: str = "") -> SamplingParam:
        """Returns a copy with some fields replaced.

        Args:
            values: New values by field name.
            where: Path of the mapping, for messages.

        Raises:
            ConfigError: A name is unknown, or a value has another type.
        """
        return replace(self, **checked_values(type(self), values, where=where))

    def seeds(self) -> tuple[int, ...]:
        """Returns the seed of each video of a prompt.

        Raises:
            ConfigError: ``num_videos_per_prompt`` is less than 1.
        """
        if self.num_videos_per_prompt < 1:
            fail(
                "num_videos_per_prompt",
                f"expected a whole number of at least 1, got {self.num_videos_per_prompt!r}",
            )
        return tuple(self.seed + video for video in range(self.num_videos_per_prompt))
