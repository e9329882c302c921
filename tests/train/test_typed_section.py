"""From mappings to dataclasses."""

from __future__ import annotations

import logging

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.config import TrainingConfig
from fastvideo.train.typed_section import build_section


def _build(**sections: object) -> TrainingConfig:
    return build_section(TrainingConfig, sections, where="training")


def test_nothing_means_all_defaults() -> None:
    """No mapping, an empty mapping and null sections are the defaults."""
    assert build_section(TrainingConfig, None, where="training") == TrainingConfig()
    assert _build(data=None, optimizer={}) == TrainingConfig()


def test_values_are_cast_to_the_field_type() -> None:
    """Text that holds a number becomes one, and lists become tuples."""
    config = _build(
        optimizer={"learning_rate": "2e-6", "betas": "0,0.999", "min_lr_ratio": 0},
        data={"seed": 3.0, "preprocessed_data_type": " Text_Only "},
        tracker={"trackers": "jsonl, wandb", "run_name": 7},
        performance={"peak_tflops_per_gpu": 989},
    )
    assert config.optimizer.learning_rate == 2e-6
    assert config.optimizer.betas == (0.0, 0.999)
    assert config.optimizer.min_lr_ratio == 0.0
    assert config.data.seed == 3
    assert config.data.preprocessed_data_type == "text_only"
    assert config.tracker.trackers == ["jsonl", "wandb"]
    assert config.tracker.run_name == "7"
    assert config.performance.peak_tflops_per_gpu == 989.0


def test_null_means_the_default() -> None:
    """A null leaf is the default, so `resume_from_checkpoint: null` is no path."""
    config = _build(
        checkpoint={"resume_from_checkpoint": None},
        optimizer={"betas": None, "min_lr_ratio": None},
    )
    assert config == TrainingConfig()


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a:2,b:1", "a:2,b:1"), (["a", "b"], ["a", "b"]), ({"a": "2", "b": 0}, {"a": 2, "b": 0})],
)
def test_data_path_takes_three_forms(value: object, expected: object) -> None:
    """A path, a list of paths, and a mapping from path to repeat."""
    assert _build(data={"data_path": value}).data.data_path == expected


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": [1]}, "Expected mapping at training.data"),
        ({"data": {"seed": -1}}, "training.data.seed: expected a number of at least 0"),
        (
            {"data": {"training_cfg_rate": 1.5}},
            "training.data.training_cfg_rate: expected a number of at least 0.0 and at most 1.0",
        ),
        ({"data": {"preprocessed_data_type": "t2i"}}, "one of t2v, t2va, text_only, got 't2i'"),
        ({"data": {"data_path": 3}}, "training.data.data_path: expected a path"),
        ({"data": {"data_path": {"a": "often"}}}, r"training.data.data_path.a: expected a whole"),
        ({"loop": {"max_train_steps": True}}, "training.loop.max_train_steps: expected a whole"),
        ({"loop": {"gradient_accumulation_steps": 0}}, "at least 1, got 0"),
        ({"optimizer": {"lr_scheduler": "cosin"}}, "Did you mean 'cosine'"),
        ({"optimizer": {"betas": [1]}}, "training.optimizer.betas: expected two numbers"),
        ({"tracker": {"trackers": 3}}, "training.tracker.trackers: expected a list of names"),
        ({"model": {"moba_config": "x"}}, "Expected mapping at training.model.moba_config"),
        ({"dit_precision": "fp8"}, "training.dit_precision: expected one of fp32, fp16, bf16"),
        ({"nonfinite_loss": "explode"}, "training.nonfinite_loss: expected one of raise"),
    ],
)
def test_wrong_values_name_path_expected_and_given(
    sections: dict[str, object], message: str
) -> None:
    """Every refusal is a ValueError that starts at the YAML path."""
    with pytest.raises(ValueError, match=message) as caught:
        _build(**sections)
    assert isinstance(caught.value, ConfigError)


def test_unknown_keys_are_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    """A key this version does not know is named with the nearest one, and the file still loads."""
    with caplog.at_level(logging.WARNING):
        config = _build(optimizer={"learning_rat": 1.0}, later_feature={"on": True})
    assert config == TrainingConfig()
    assert [record.getMessage() for record in caplog.records] == [
        "unknown key training.optimizer.learning_rat is ignored. Did you mean 'learning_rate'?",
        "unknown key training.later_feature is ignored.",
    ]


def test_keys_without_effect_are_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    """Files of other versions may have them; leaving them out, or null, is quiet."""
    with caplog.at_level(logging.WARNING):
        _build(vsa={"cache_tile_buf": True}, model={"moba_config": None})
    assert [record.getMessage() for record in caplog.records] == [
        "training.vsa.cache_tile_buf has no effect in this version"
    ]


def test_derived_fields_are_no_keys(caplog: pytest.LogCaptureFixture) -> None:
    """What the loader fills in cannot be written under `training`."""
    with caplog.at_level(logging.WARNING):
        assert _build(pipeline_config={"flow_shift": 3}).pipeline_config is None
    assert "unknown key training.pipeline_config" in caplog.text
