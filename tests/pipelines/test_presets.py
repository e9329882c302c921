"""Models are recognised by what they are, not by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastvideo.errors import ConfigError
from fastvideo.pipelines.pipeline_config import PipelineConfig
from fastvideo.pipelines.presets import NO_PRESET, PRESETS, find_preset
from fastvideo.pipelines.sampling_param import SamplingParam
from fastvideo.pipelines.stages.input_validation import check_num_frames, check_size


def model(root: Path, pipeline: str, heads: int, width: int, layers: int) -> Path:
    """Writes the configs that a preset is found by."""
    (root / "transformer").mkdir(parents=True)
    (root / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    config = {"num_attention_heads": heads, "attention_head_dim": width, "num_layers": layers}
    (root / "transformer" / "config.json").write_text(json.dumps(config))
    return root


@pytest.mark.parametrize(
    ("pipeline", "architecture", "name"),
    [
        ("WanPipeline", (12, 128, 30), "Wan 2.1 T2V 1.3B"),
        ("WanPipeline", (40, 128, 40), "Wan 2.1 T2V 14B"),
        ("WanDMDPipeline", (12, 128, 30), "FastWan 2.1 T2V 1.3B"),
        ("WanDMDPipeline", (40, 128, 40), "FastWan 2.1 T2V 14B"),
        ("WanPipeline", (2, 16, 2), "tiny-random:wan2.1"),
        ("WanPipeline", (12, 64, 30), "none"),
        ("OtherPipeline", (12, 128, 30), "none"),
    ],
)
def test_architecture_and_pipeline_decide(
    tmp_path: Path, pipeline: str, architecture: tuple[int, int, int], name: str
) -> None:
    """A directory of any name has the preset of its model."""
    assert find_preset(model(tmp_path / "m", pipeline, *architecture)).name == name


def test_presets_can_be_asked_for() -> None:
    """Every one is valid, and gives parameters and settings."""
    for preset in (*PRESETS, NO_PRESET):
        param = SamplingParam(**preset.sampling)
        check_size("height", param.height)
        check_size("width", param.width)
        check_num_frames(param.num_frames)


def test_the_preset_of_a_model_is_applied(tiny_model: Path, tmp_path: Path) -> None:
    """Parameters and settings come from it; unknown models have the defaults."""
    param = SamplingParam.from_pretrained(tiny_model)
    assert (param.height, param.width, param.num_frames, param.fps) == (64, 64, 9, 16)
    large = model(tmp_path / "m", "WanPipeline", 40, 128, 40)
    assert SamplingParam.from_pretrained(large).guidance_scale == 5.0
    assert PipelineConfig.from_pretrained(large).flow_shift == 5.0
    other = model(tmp_path / "n", "WanPipeline", 1, 2, 3)
    assert SamplingParam.from_pretrained(other) == SamplingParam()
    assert PipelineConfig.from_pretrained(other) == PipelineConfig()


def test_unknown_parameters_are_named() -> None:
    """All of them are listed, with the nearest name for the first."""
    param = SamplingParam()
    with pytest.raises(
        ConfigError, match=r"^hieght: unknown field \(as are b\)\. Did you mean 'height'"
    ):
        param.update({"hieght": 3, "b": 1})
    param.update({"seed": "7", "guidance_scale": 2})
    assert (param.seed, param.guidance_scale) == (7, 2.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"flow_shift": 0}, "pipeline_config.flow_shift: expected more than 0"),
        ({"dmd_denoising_steps": [500, 1000]}, "expected falling timesteps"),
        ({"dmd_denoising_steps": [1001]}, "expected falling timesteps"),
        ({"dmd_denoising_steps": []}, "expected falling timesteps"),
        ({"text_len": 0}, "pipeline_config.text_len"),
        ({"dit_precision": "fp8"}, r"dit_precision: expected one of \['fp32', 'bf16', 'fp16'\]"),
        ({"flwo_shift": 1}, "Did you mean 'flow_shift'"),
    ],
)
def test_settings_of_a_pipeline_are_checked(values: dict[str, Any], message: str) -> None:
    """The message names the field."""
    with pytest.raises(ConfigError, match=message):
        PipelineConfig().updated(values)


def test_the_table_of_the_documentation_is_that_of_the_code() -> None:
    """Every preset has its row, and no row is of another one."""
    page = Path(__file__).parents[2] / "docs" / "inference.md"
    table = page.read_text().partition("## Presets")[2].partition("## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    expected = []
    for preset in (*PRESETS, NO_PRESET):
        param, config = SamplingParam(**preset.sampling), preset.pipeline_config
        few = config.dmd_denoising_steps
        expected.append(
            [
                preset.name,
                f"{param.height}x{param.width}",
                str(param.num_frames),
                str(param.fps),
                ", ".join(map(str, few)) if few else str(param.num_inference_steps),
                f"{param.guidance_scale:g}",
                "the model's" if config.flow_shift is None else f"{config.flow_shift:g}",
            ]
        )
    assert rows[2:] == expected
