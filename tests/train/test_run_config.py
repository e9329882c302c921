"""Loading run files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from fastvideo.errors import ConfigError
from fastvideo.train.config import PipelineSettings
from fastvideo.train.run_config import RunConfig, load_run_config

CONFIGS = Path(__file__).parents[2] / "examples" / "train" / "configs"
RUN_FILES = sorted(CONFIGS.rglob("*.yaml"))

MINIMAL: dict[str, Any] = {
    "models": {"student": {"_target_": "pkg.Model", "init_from": "base"}},
    "method": {"_target_": "pkg.Method"},
    "training": {},
}


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Writes a mapping as a run file and loads it."""

    def write_and_load(content: object, *overrides: str) -> RunConfig:
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return load_run_config(path, list(overrides))

    return write_and_load


def test_minimal_file_gets_all_defaults(load: Any) -> None:
    """Three sections are enough."""
    cfg = load(MINIMAL)
    assert cfg.models == MINIMAL["models"]
    assert cfg.method == MINIMAL["method"]
    assert cfg.callbacks == {}
    assert cfg.raw == MINIMAL
    assert cfg.training.pipeline_config is None
    assert cfg.training.model_path == "base"
    assert cfg.training.tracker.trackers == ["wandb"]
    assert cfg.training.distributed.hsdp_shard_dim == 1


@pytest.mark.parametrize("missing", ["models", "method", "training"])
def test_required_sections(load: Any, missing: str) -> None:
    """A missing section is named."""
    content = {key: value for key, value in MINIMAL.items() if key != missing}
    with pytest.raises(ValueError, match=f"no section '{missing}'"):
        load(content)


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("models", [1], "Expected mapping at models"),
        ("models", {}, "models: at least one role"),
        ("models", {"student": "x"}, "Expected mapping at models.student"),
        ("models", {"student": {}}, r"models\.student\._target_ must name"),
        ("models", {"student": {"_target": "a.B"}}, "Did you mean '_target'"),
        ("method", "x", "Expected mapping at method"),
        ("method", {}, r"method\._target_ must name"),
        ("method", {"_target_": 3}, "got 3"),
        ("training", None, "Expected mapping at training"),
        ("training", [], "Expected mapping at training"),
        ("callbacks", [], "Expected mapping at callbacks"),
        ("callbacks", {"ema": 3}, "Expected mapping at callbacks.ema"),
        ("pipeline", 3, "Expected mapping at pipeline"),
        ("pipeline", {"flow_shift": "much"}, "pipeline.flow_shift: expected a finite number"),
        ("observability", [], "Expected mapping at observability"),
    ],
)
def test_sections_of_the_wrong_kind(load: Any, section: str, value: object, message: str) -> None:
    """Each is a ValueError that says where."""
    with pytest.raises(ValueError, match=message) as caught:
        load(MINIMAL | {section: value})
    assert isinstance(caught.value, ConfigError)


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    """A missing file, a directory and an empty file are told apart."""
    with pytest.raises(FileNotFoundError):
        load_run_config(tmp_path / "absent.yaml")
    with pytest.raises(ValueError, match="is a directory"):
        load_run_config(tmp_path)
    (tmp_path / "empty.yaml").touch()
    with pytest.raises(ValueError, match="Expected mapping at the top of"):
        load_run_config(tmp_path / "empty.yaml")


def test_overrides_are_in_raw_and_typed(load: Any) -> None:
    """What ran is what `raw` shows, before typing; the typed section has it too."""
    cfg = load(MINIMAL, "--training.optimizer.learning_rate", "1e-3", "--models.*.init_from=tiny")
    assert cfg.raw["training"] == {"optimizer": {"learning_rate": 0.001}}
    assert cfg.raw["models"]["student"]["init_from"] == "tiny"
    assert cfg.training.optimizer.learning_rate == 0.001
    assert cfg.training.model_path == "tiny"


def test_typed_defaults_do_not_leak_into_raw(load: Any) -> None:
    """`raw` holds what was written and nothing more."""
    cfg = load(MINIMAL)
    cfg.models["student"]["init_from"] = "changed"
    cfg.training.data.seed = 9
    assert cfg.raw == MINIMAL


@pytest.mark.parametrize(
    ("override", "suggestion"),
    [
        ("--training.loop.max_train_step=1", "--training.loop.max_train_steps"),
        ("--training.data.seed.deep=1", "--training.data.seed"),
        ("--training.*.seed=1", "--training.data.seed"),
        ("--model.student.init_from=x", "--models.student.init_from"),
        ("--callback.ema.decay=1", "--callbacks.ema.decay"),
        ("--max-train-steps=1", "--training.loop.max_train_steps"),
        ("--training.pipeline_config=1", None),
    ],
)
def test_unknown_typed_override_is_an_error(
    load: Any, override: str, suggestion: str | None
) -> None:
    """A path that does not exist ends the run with the nearest match."""
    with pytest.raises(ValueError, match="unknown override") as caught:
        load(MINIMAL, override)
    if suggestion is not None:
        assert str(caught.value).endswith(f"Did you mean {suggestion}?")


def test_free_sections_and_whole_sections_accept_overrides(load: Any) -> None:
    """Any key of a free section, a typed section whole, and keys below a free mapping."""
    cfg = load(
        MINIMAL,
        "--models.critic._target_=pkg.Model",
        "--method.anything=[1, 2]",
        "--callbacks.grad_clip={max_grad_norm: 1.0}",
        "--pipeline.flow_shift=8",
        "--training.data={seed: 4, data_path: x}",
        "--training.model.moba_config.chunk=3",
    )
    assert cfg.models["critic"] == {"_target_": "pkg.Model"}
    assert cfg.method["anything"] == [1, 2]
    assert cfg.callbacks == {"grad_clip": {"max_grad_norm": 1.0}}
    assert cfg.training.pipeline_config == PipelineSettings(flow_shift=8.0)
    assert (cfg.training.data.seed, cfg.training.data.data_path) == (4, "x")
    assert cfg.training.model.moba_config == {"chunk": 3}


def test_aliases_set_their_keys(load: Any) -> None:
    """The flags of older scripts are no longer silently ignored."""
    cfg = load(MINIMAL, "--resume-from-checkpoint", "latest", "--override-output-dir=out")
    assert cfg.training.checkpoint.resume_from_checkpoint == "latest"
    assert cfg.training.checkpoint.output_dir == "out"


def test_names_that_look_like_numbers_stay_names(load: Any) -> None:
    """A run called 2e5 is not called 200000.0."""
    cfg = load(MINIMAL, "--training.tracker.run_name", "2e5")
    assert cfg.training.tracker.run_name == "2e5"
    assert cfg.raw["training"]["tracker"]["run_name"] == "2e5"


def test_unknown_sections_are_a_warning(load: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A section of another version does not stop the run."""
    with caplog.at_level(logging.WARNING):
        load(MINIMAL | {"callback": {}})
    assert [r.getMessage() for r in caplog.records] == [
        "unknown section callback is ignored. Did you mean 'callbacks'?"
    ]


def test_observability_is_kept_for_telemetry(load: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The section reaches the configuration as it is; telemetry itself reads it at start."""
    with caplog.at_level(logging.WARNING):
        cfg = load(MINIMAL | {"observability": {"metrics": True}})
    assert cfg.observability == {"metrics": True}
    assert cfg.resolved_config()["observability"] == {"metrics": True}
    assert caplog.records == []


def test_null_sections_that_are_optional(load: Any) -> None:
    """An optional section with nothing in it is no section, a null callback has no options."""
    cfg = load(MINIMAL | {"callbacks": None, "pipeline": None, "observability": None})
    assert (cfg.callbacks, cfg.training.pipeline_config, cfg.observability) == ({}, None, {})
    assert load(MINIMAL | {"callbacks": {"ema": None}}).callbacks == {"ema": {}}


def test_pipeline_from_mapping_and_json(load: Any, tmp_path: Path) -> None:
    """`{}` is the model's defaults; a path is read as JSON; other keys are kept."""
    assert load(MINIMAL | {"pipeline": {}}).training.pipeline_config == PipelineSettings()
    path = tmp_path / "pipeline.json"
    path.write_text(json.dumps({"flow_shift": 5, "vae_tiling": True}), encoding="utf-8")
    expected = PipelineSettings(flow_shift=5.0, options={"vae_tiling": True})
    assert load(MINIMAL | {"pipeline": str(path)}).training.pipeline_config == expected


def test_pipeline_json_that_cannot_be_read(load: Any, tmp_path: Path) -> None:
    """A missing and a broken file are told apart."""
    with pytest.raises(FileNotFoundError, match="pipeline: the file"):
        load(MINIMAL | {"pipeline": str(tmp_path / "absent.json")})
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        load(MINIMAL | {"pipeline": str(tmp_path / "broken.json")})


@pytest.mark.parametrize("key", ["sp_size", "tp_size"])
def test_model_parallelism_is_refused(load: Any, key: str) -> None:
    """A size above 1 is an error at loading."""
    with pytest.raises(ConfigError, match=f"training.distributed.{key}"):
        load(MINIMAL, f"--training.distributed.{key}=2")


def test_shard_dim_defaults_to_all_gpus(load: Any) -> None:
    """Without a shard dimension the weights are sharded over the configured GPUs."""
    cfg = load(MINIMAL | {"training": {"distributed": {"num_gpus": 4}}})
    assert cfg.training.distributed.hsdp_shard_dim == 4


def test_no_tracker_without_a_project(load: Any) -> None:
    """An empty project name means no tracker, and named trackers are kept."""
    assert load(MINIMAL, "--training.tracker.project_name=").training.tracker.trackers == []
    cfg = load(MINIMAL, "--training.tracker.trackers=[jsonl]")
    assert cfg.training.tracker.trackers == ["jsonl"]


def test_resolved_config_is_plain_and_complete(load: Any) -> None:
    """Everything with its defaults, as values that JSON can hold; callables are dropped."""
    cfg = load(MINIMAL | {"pipeline": {"flow_shift": 8}})
    cfg.method["hook"] = print
    cfg.method["steps"] = (1, print, 2)
    resolved = json.loads(json.dumps(cfg.resolved_config(), allow_nan=False))
    assert resolved["training"]["optimizer"]["betas"] == [0.9, 0.999]
    assert resolved["training"]["distributed"]["num_gpus"] == 1
    assert resolved["method"] == {"_target_": "pkg.Method", "steps": [1, 2]}
    assert resolved["pipeline"] == {"flow_shift": 8.0, "options": {}}
    assert resolved["models"] == MINIMAL["models"]


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.stem)
def test_shipped_run_files_load_without_a_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every run file of the repository uses known keys only."""
    with caplog.at_level(logging.WARNING):
        cfg = load_run_config(path)
    assert caplog.records == []
    validation = cfg.callbacks.get("validation")
    if validation is not None:
        prompts = json.loads((CONFIGS.parents[2] / validation["dataset_file"]).read_text())
        assert len(prompts["data"]) == 4


def test_dmd2_run_file_holds_the_documented_values() -> None:
    """The values are what people of the FastVideo project expect."""
    cfg = load_run_config(CONFIGS / "distribution_matching" / "wan" / "dmd2_t2v.yaml")
    training = cfg.training
    assert {role: spec["trainable"] for role, spec in cfg.models.items()} == {
        "student": True,
        "teacher": False,
        "critic": True,
    }
    assert {spec["init_from"] for spec in cfg.models.values()} == {
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
    }
    assert [r for r, s in cfg.models.items() if s.get("disable_custom_init_weights")] == [
        "teacher",
        "critic",
    ]
    assert cfg.method == {
        "_target_": "fastvideo.train.methods.distribution_matching.dmd2.DMD2Method",
        "rollout_mode": "simulate",
        "generator_update_interval": 5,
        "real_score_guidance_scale": 4.5,
        "dmd_denoising_steps": [1000, 750, 500, 250],
        "fake_score_learning_rate": 8e-6,
        "fake_score_betas": [0.0, 0.999],
        "fake_score_lr_scheduler": "constant",
    }
    mesh, data = training.distributed, training.data
    assert (mesh.num_gpus, mesh.hsdp_replicate_dim, mesh.hsdp_shard_dim) == (4, 1, 4)
    assert data.data_path == "data/Wan-Syn_77x448x832_600k"
    assert (data.num_latent_t, data.num_height, data.num_width, data.num_frames) == (
        (20, 448, 832, 77)
    )
    assert (data.dataloader_num_workers, data.train_batch_size, data.seed) == (4, 1, 1000)
    assert (training.optimizer.learning_rate, training.optimizer.betas) == (2e-6, (0.0, 0.999))
    assert (training.optimizer.weight_decay, training.loop.max_train_steps) == (0.01, 4000)
    checkpoint = training.checkpoint
    assert checkpoint.output_dir == "outputs/wan2.1_dmd2_4steps"
    assert (checkpoint.training_state_checkpointing_steps, checkpoint.checkpoints_total_limit) == (
        (20, 3)
    )
    assert training.tracker.project_name == "distillation_wan"
    assert training.model.enable_gradient_checkpointing_type == "full"
    assert cfg.callbacks["grad_clip"] == {"max_grad_norm": 1.0}
    assert cfg.callbacks["ema"] == {"decay": 0.98, "start_iter": 0}
    validation = cfg.callbacks["validation"]
    assert (validation["every_steps"], validation["guidance_scale"]) == (50, 6.0)
    assert validation["sampling_timesteps"] == [1000, 750, 500, 250]
    assert training.pipeline_config == PipelineSettings(flow_shift=8.0)


def test_finetune_run_file_holds_the_documented_values() -> None:
    """The values are what people of the FastVideo project expect."""
    cfg = load_run_config(CONFIGS / "fine_tuning" / "wan" / "t2v.yaml")
    training = cfg.training
    mesh, checkpoint = training.distributed, training.checkpoint
    assert list(cfg.models) == ["student"]
    assert (mesh.num_gpus, mesh.hsdp_replicate_dim, mesh.hsdp_shard_dim) == (8, 8, 1)
    assert (training.optimizer.learning_rate, training.optimizer.betas) == (1e-6, (0.9, 0.999))
    assert (checkpoint.training_state_checkpointing_steps, checkpoint.checkpoints_total_limit) == (
        (100, 3)
    )
    assert checkpoint.resume_from_checkpoint == "latest"
    validation = cfg.callbacks["validation"]
    assert (validation["every_steps"], validation["sampling_steps"]) == (100, [50])
    assert validation["guidance_scale"] == 5.0
    assert training.pipeline_config == PipelineSettings(flow_shift=3.0)
