"""How known models are sampled: sizes, steps and guidance that they were made for.

A model is recognised by the architecture in ``transformer/config.json`` and the pipeline in
``model_index.json``, so a copy or a fine-tuned model under another name counts too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dataset.model_files import read_component_config, resolve_model_path
from fastvideo.errors import DataError
from fastvideo.pipelines.model_index import read_model_index
from fastvideo.pipelines.pipeline_config import PipelineConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# What the Wan 2.1 models are sampled with (Wan-Video/Wan2.1, Apache-2.0, in English translation):
# guidance is trained and evaluated against this sentence, so its words are part of the model.
WAN_NEGATIVE_PROMPT: Final = (
    "Bright tones, overexposed, static, blurred details, subtitles, style, works, paintings, "
    "images, static, overall gray, worst quality, low quality, JPEG compression residue, ugly, "
    "incomplete, extra fingers, poorly drawn hands, poorly drawn faces, deformed, disfigured, "
    "misshapen limbs, fused fingers, still picture, messy background, three legs, many people in "
    "the background, walking backwards"
)

DMD_PIPELINE: Final = "WanDMDPipeline"
WAN_PIPELINE: Final = "WanPipeline"


@dataclass(frozen=True, slots=True)
class Preset:
    """How a model is sampled where nothing else is asked for.

    Attributes:
        name: For people.
        architecture: Heads, width of a head, and layers of its transformer.
        pipeline: Name of its pipeline class; "" for any.
        pipeline_config: Settings of its pipeline.
        sampling: Fields of :class:`SamplingParam` that differ from the defaults.
    """

    name: str
    architecture: tuple[int, int, int] | None = None
    pipeline: str = ""
    pipeline_config: PipelineConfig = field(default_factory=PipelineConfig)
    sampling: Mapping[str, Any] = field(default_factory=dict)


_SMALL: Final = (12, 128, 30)
_LARGE: Final = (40, 128, 40)
_TINY: Final = (2, 16, 2)
_480P: Final = {"height": 480, "width": 832, "num_frames": 81, "fps": 16}
_720P: Final = {"height": 720, "width": 1280, "num_frames": 81, "fps": 16}
_THREE_STEPS: Final = [1000, 757, 522]
_FEW_STEPS: Final = PipelineConfig(flow_shift=8.0, dmd_denoising_steps=_THREE_STEPS)

PRESETS: Final = (
    Preset(
        "FastWan 2.1 T2V 1.3B",
        _SMALL,
        DMD_PIPELINE,
        _FEW_STEPS,
        _480P | {"num_inference_steps": 3, "guidance_scale": 1.0},
    ),
    Preset(
        "FastWan 2.1 T2V 14B",
        _LARGE,
        DMD_PIPELINE,
        _FEW_STEPS,
        _720P | {"num_inference_steps": 3, "guidance_scale": 1.0},
    ),
    Preset(
        "Wan 2.1 T2V 1.3B",
        _SMALL,
        WAN_PIPELINE,
        PipelineConfig(flow_shift=3.0),
        _480P | {"num_inference_steps": 50, "guidance_scale": 3.0},
    ),
    Preset(
        "Wan 2.1 T2V 14B",
        _LARGE,
        WAN_PIPELINE,
        PipelineConfig(flow_shift=5.0),
        _720P | {"num_inference_steps": 50, "guidance_scale": 5.0},
    ),
    Preset(
        "tiny-random:wan2.1",
        _TINY,
        "",
        PipelineConfig(),
        {
            "height": 64,
            "width": 64,
            "num_frames": 9,
            "fps": 16,
            "num_inference_steps": 4,
            "guidance_scale": 3.0,
        },
    ),
)
"""In the order in which they are tried."""

NO_PRESET: Final = Preset("none")
"""Of models that are not known: the defaults."""


def find_preset(model_path: str | Path) -> Preset:
    """Returns the preset of a model, or :data:`NO_PRESET`.

    Args:
        model_path: A model directory, a hub name, or ``tiny-random:wan2.1``.

    Raises:
        ConfigError: There is no such model.
        DataError: It is not in diffusers layout.
    """
    directory = resolve_model_path(str(model_path), option="model_path")
    pipeline = str(read_model_index(directory).get("_class_name"))
    try:
        config = read_component_config(directory, "transformer")
    except DataError:
        return NO_PRESET
    keys = ("num_attention_heads", "attention_head_dim", "num_layers")
    architecture = tuple(config.get(key) for key in keys)
    for preset in PRESETS:
        if preset.architecture == architecture and preset.pipeline in {"", pipeline}:
            return preset
    return NO_PRESET
