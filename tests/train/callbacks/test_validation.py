"""The settings of the validation callback, and its refusal to run."""

from __future__ import annotations

from typing import Any

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.callbacks import CallbackDict
from fastvideo.train.callbacks.validation import ValidationCallback

PIPELINE = "fastvideo.pipelines.basic.wan.wan_dmd_pipeline.WanDMDPipeline"


def make(**kwargs: Any) -> ValidationCallback:
    """Returns a callback with the two settings it needs."""
    settings = {"pipeline_target": PIPELINE, "dataset_file": "prompts.json", **kwargs}
    return ValidationCallback(**settings)


def test_settings_of_the_documented_run_file_are_understood() -> None:
    """The keys of the DMD2 run file, with numbers as text, come out typed."""
    callback = make(
        every_steps="50",
        run_at_start="false",
        sampling_steps=[4],
        sampling_timesteps="1000,750, 500,250",
        guidance_scale="6.0",
        num_frames="77",
        num_videos_per_prompt="2",
        metrics="sharpness",
        flow_shift=8,
    )
    assert (callback.every_steps, callback.run_at_start) == (50, False)
    assert callback.sampling_steps == [4]
    assert callback.sampling_timesteps == [1000, 750, 500, 250]
    assert (callback.guidance_scale, callback.num_frames) == (6.0, 77)
    assert callback.num_videos_per_prompt == 2
    assert callback.metrics == ["sharpness"]
    assert callback.pipeline_kwargs == {"flow_shift": 8}


def test_defaults() -> None:
    """What is not given has the documented value."""
    callback = make()
    assert (callback.every_steps, callback.run_at_start) == (100, True)
    assert (callback.sampling_steps, callback.sampling_timesteps) == ([40], None)
    assert (callback.guidance_scale, callback.num_frames, callback.output_dir) == (None, None, None)
    assert callback.num_videos_per_prompt == 1
    assert callback.metrics == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pipeline_target", "NoDots"),
        ("pipeline_target", "a..b"),
        ("dataset_file", " "),
        ("dataset_file", ["a"]),
        ("every_steps", "often"),
        ("every_steps", 1.5),
        ("run_at_start", "perhaps"),
        ("sampling_steps", []),
        ("sampling_steps", [0]),
        ("sampling_steps", "4,x"),
        ("sampling_timesteps", [1000, -1]),
        ("guidance_scale", "much"),
        ("num_frames", 0),
        ("num_videos_per_prompt", 0),
        ("num_videos_per_prompt", -2),
        ("output_dir", ""),
        ("keyboard_value_scale", "nan"),
        ("metrics", 3),
        ("metrics", [None]),
    ],
)
def test_a_wrong_setting_is_named(key: str, value: Any) -> None:
    """Every error is a ConfigError with the path of the key."""
    with pytest.raises(ConfigError, match=rf"callbacks\.validation\.{key}: expected"):
        make(**{key: value})


def test_asking_for_samples_is_refused_at_the_start() -> None:
    """The error says that sampling is not available and what to override."""
    callbacks = CallbackDict(
        {"validation": {"pipeline_target": PIPELINE, "dataset_file": "p.json", "every_steps": 50}},
        None,
    )
    expected = r"every_steps is 50.*not available.*--callbacks\.validation\.every_steps 0"
    with pytest.raises(ConfigError, match=expected):
        callbacks.on_train_start(object(), iteration=0)


@pytest.mark.parametrize("every", [0, -1])
def test_switched_off_it_never_runs(every: int) -> None:
    """With 0 or less all hooks pass."""
    callback = make(every_steps=every)
    method: Any = object()
    callback.on_train_start(method, iteration=0)
    callback.on_validation_begin(method, iteration=0)
    callback.on_validation_end(method, iteration=0)


def test_a_mistyped_key_is_suspected(caplog: pytest.LogCaptureFixture) -> None:
    """Any key goes to the pipeline, but one that is nearly known is named."""
    make(every_step=0, flow_shift=8)
    assert caplog.messages == [
        "callbacks.validation.every_step is passed to the pipeline. Did you mean 'every_steps'?"
    ]
