"""What travels through the stages of a pipeline: a request, and what became of it so far.

Tensor legend: B videos, C channels, T frames (pixels) or latent frames, H/W height and width,
L tokens, D text width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(slots=True)
class ForwardBatch:
    """Videos of one prompt, made together.

    Attributes:
        prompt: What is to be seen.
        height: Pixels, a multiple of 16.
        width: Pixels, a multiple of 16.
        num_frames: Frames, 4k + 1.
        num_inference_steps: Denoising steps; a few-step student has its own.
        guidance_scale: Classifier-free guidance; at 1 or less there is none.
        guidance_scale_2: Guidance of the second expert, in models that have one; None: the same.
        negative_prompt: What guidance leads away from.
        seeds: One per video; the number of videos follows from it.
        decode: Whether latents are decoded at the end.
        keep_trajectory: Whether the latents of every step are kept.
        on_step: Is told before the first denoising step and after each, how many of how many are
            done.
        prompt_embeds: [1, L, D]; given or made by the prompt stage.
        negative_prompt_embeds: [1, L, D], if there is guidance; given or made likewise.
        timesteps: [steps], in the order of sampling.
        latents: [B, C, T, H, W], float32, normalised; noise at first, the sample at the end.
        trajectory: Latents after every step, on the CPU, and the timesteps they are of.
        output: [B, 3, T, H, W], float32 in [0, 1], if decoded.
        generators: Random numbers of each video, on the CPU; made of the seeds.
    """

    prompt: str
    height: int
    width: int
    num_frames: int
    num_inference_steps: int
    guidance_scale: float = 1.0
    guidance_scale_2: float | None = None
    negative_prompt: str = ""
    seeds: tuple[int, ...] = (0,)
    decode: bool = True
    keep_trajectory: bool = False
    on_step: Callable[[int, int], None] | None = None
    prompt_embeds: Tensor | None = None
    negative_prompt_embeds: Tensor | None = None
    timesteps: Tensor | None = None
    latents: Tensor | None = None
    trajectory: list[tuple[float, Tensor]] = field(default_factory=list)
    output: Tensor | None = None
    generators: list[torch.Generator] = field(default_factory=list)

    def draw_noise(self, shape: tuple[int, ...]) -> Tensor:
        """Draws noise for every video from the generator that is its own.

        A video then depends on its seed alone: not on the device, nor on the videos beside it.

        Args:
            shape: Of one video: [C, T, H, W].

        Returns:
            [B, C, T, H, W], float32, on the CPU.
        """
        if not self.generators:
            self.generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        return torch.stack([torch.randn(shape, generator=one) for one in self.generators])

    @property
    def is_guided(self) -> bool:
        """Whether classifier-free guidance is applied."""
        return self.guidance_scale > 1.0
