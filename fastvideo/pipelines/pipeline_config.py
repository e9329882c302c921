"""How a model is loaded and sampled: what does not change between requests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from fastvideo.pipelines.typed_fields import checked_values, fail

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NUM_TRAIN_TIMESTEPS: Final = 1000

Precision = Literal["fp32", "bf16", "fp16"]
"""Names of data types, as run files have them."""


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Settings of a pipeline.

    Attributes:
        flow_shift: Shift of the sampling schedule.
        dmd_denoising_steps: Timesteps at which a few-step student samples; None for models that are
            sampled along the whole flow.
        dit_precision: Data type of the transformer.
        vae_precision: Data type of the VAE.
        text_encoder_precision: Data type of the text encoder.
        text_len: Tokens that a prompt is cut or padded to.
        vae_tiling: Decode in tiles: less memory, more time, slightly other pixels.
        attention_backend: Attention implementation in diffusers' words.

    Raises:
        ConfigError: A value cannot be used; the message names the field.
    """

    flow_shift: float | None = field(
        default=None, metadata={"allowed": "above 0", "default": "that of the model's scheduler"}
    )
    dmd_denoising_steps: list[int] | None = field(
        default=None, metadata={"allowed": "descending, from 1 to 1000"}
    )
    dit_precision: Precision | None = field(
        default=None, metadata={"default": "bf16 on CUDA, fp32 on a CPU"}
    )
    vae_precision: Precision = "fp32"
    text_encoder_precision: Precision | None = field(
        default=None, metadata={"default": "that of `dit_precision`"}
    )
    text_len: int = field(default=512, metadata={"allowed": "at least 1", "unit": "tokens"})
    vae_tiling: bool = False
    attention_backend: str | None = field(default=None, metadata={"default": "that of diffusers"})

    def __post_init__(self) -> None:
        if self.flow_shift is not None and not self.flow_shift > 0:
            fail("pipeline_config.flow_shift", f"expected more than 0, got {self.flow_shift!r}")
        if self.text_len < 1:
            fail("pipeline_config.text_len", f"expected at least 1, got {self.text_len!r}")
        steps = self.dmd_denoising_steps
        if steps is None:
            return
        falling = all(high > low for high, low in pairwise(steps))
        if not steps or not falling or steps[0] > _NUM_TRAIN_TIMESTEPS or steps[-1] < 1:
            fail(
                "pipeline_config.dmd_denoising_steps",
                f"expected falling timesteps from 1 to {_NUM_TRAIN_TIMESTEPS}, such as "
                f"[1000, 750, 500, 250], got {steps!r}",
            )

    @classmethod
    def from_pretrained(cls, model_path: str | Path) -> PipelineConfig:
        """Returns the settings of a model's preset; the defaults where there is none.

        Args:
            model_path: A model directory or hub name, as for ``VideoGenerator.from_pretrained``.
        """
        from fastvideo.pipelines.presets import find_preset  # noqa: PLC0415 - presets use this

        return find_preset(model_path).pipeline_config

    def updated(
        self, values: Mapping[str, Any], *, where: str = "pipeline_config"
    ) -> PipelineConfig:
        """Returns a copy with some fields replaced.

        Args:
            values: New values by field name.
            where: Path of the mapping, for messages.

        Raises:
            ConfigError: A name is unknown, or a value cannot be used.
        """
        return replace(self, **checked_values(type(self), values, where=where))
