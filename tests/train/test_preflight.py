"""What is refused before processes start."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fastvideo.errors import ConfigError, DataError
from fastvideo.train import preflight
from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.config import TrainingConfig
from fastvideo.train.run_config import RunConfig

if TYPE_CHECKING:
    from pathlib import Path


def _run_config() -> RunConfig:
    training = TrainingConfig()
    training.loop.max_train_steps = 1
    return RunConfig(models={}, method={}, training=training, callbacks={}, raw={})


def test_checking_imports_nothing_heavy() -> None:
    """The launcher checks before torch is imported."""
    program = (
        "import sys, fastvideo.train.preflight, fastvideo.train.launcher;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'diffusers', 'pyarrow')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_run_without_steps_is_refused_by_key() -> None:
    """A missing length is no success with nothing done, and a dry run says so as well."""
    cfg = _run_config()
    cfg.training.loop.max_train_steps = 0
    for dry_run in (False, True):
        with pytest.raises(ConfigError, match=r"max_train_steps: .* got 0 .* Set --training\.loop"):
            preflight.check_run(cfg, dry_run=dry_run)


def test_validation_needs_prompts_and_a_place_for_videos(tmp_path: Path) -> None:
    """Both are looked for by key; custom callbacks decide for themselves."""
    cfg = _run_config()
    cfg.callbacks["validation"] = {}
    with pytest.raises(
        ConfigError, match=r"dataset_file: it is required and missing\. Name a file"
    ):
        preflight.check_run(cfg, dry_run=True)
    cfg.callbacks["validation"] = {"dataset_file": str(tmp_path / "none.json")}
    with pytest.raises(
        ConfigError, match=r"validation\.dataset_file: there is no file .*none\.json"
    ):
        preflight.check_run(cfg, dry_run=False)
    cfg.callbacks["validation"]["_target_"] = "mine.Validation"
    preflight.check_run(cfg, dry_run=False)
    cfg.callbacks["validation"] = {"every_steps": 0, "dataset_file": str(tmp_path / "none.json")}
    preflight.check_run(cfg, dry_run=False)
    (tmp_path / "prompts.json").touch()
    cfg.callbacks["validation"] = {"dataset_file": str(tmp_path / "prompts.json")}
    with pytest.raises(ConfigError, match=r"Set --callbacks\.validation\.output_dir DIR"):
        preflight.check_run(cfg, dry_run=False)
    cfg.training.checkpoint.output_dir = str(tmp_path)
    preflight.check_run(cfg, dry_run=False)


def test_unknown_trackers_are_refused() -> None:
    """The nearest name is suggested."""
    cfg = _run_config()
    cfg.training.tracker.trackers = ["jsnl"]
    with pytest.raises(ConfigError, match="Did you mean 'jsonl'"):
        preflight.check_run(cfg, dry_run=False)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("FASTVIDEO_STRICT_MESH", "maybe", "expected 0 or 1, got 'maybe'"),
        ("FASTVIDEO_LOG_LEVEL", "loud", "'loud': expected DEBUG, INFO"),
    ],
)
def test_variables_are_checked(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    """The message names the variable."""
    preflight.check_environment()
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name}=.*{expected}"):
        preflight.check_environment()


def test_saving_needs_a_place_to_save_to() -> None:
    """The message names both keys."""
    cfg = _run_config()
    cfg.training.checkpoint.training_state_checkpointing_steps = 20
    with pytest.raises(ConfigError, match=r"output_dir is empty, but .* every 20 steps"):
        preflight.check_run(cfg, dry_run=False)
    cfg.training.checkpoint.output_dir = "outputs"
    preflight.check_run(cfg, dry_run=False)


def test_a_file_is_no_output_directory(tmp_path: Path) -> None:
    """Neither itself nor as a parent; directories that can be made are fine."""
    cfg = _run_config()
    (tmp_path / "file").touch()
    cfg.training.checkpoint.output_dir = str(tmp_path / "new" / "run")
    preflight.check_run(cfg, dry_run=False)
    cfg.training.checkpoint.output_dir = str(tmp_path / "file")
    key = r"training\.checkpoint\.output_dir"
    with pytest.raises(ConfigError, match=rf"{key}: .*/file is a file; .* Set --{key} DIR"):
        preflight.check_run(cfg, dry_run=True)
    cfg.training.checkpoint.output_dir = str(tmp_path / "file" / "run" / "1")
    with pytest.raises(ConfigError, match=rf"{key}: .*/1 is below .*/file, which is a file"):
        preflight.check_run(cfg, dry_run=False)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    cfg.training.checkpoint.output_dir = str(tmp_path / "dangling")
    with pytest.raises(ConfigError, match=key):
        preflight.check_run(cfg, dry_run=False)


def test_an_output_directory_must_be_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory that refuses is named."""
    cfg = _run_config()
    cfg.training.checkpoint.output_dir = str(tmp_path / "run")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=f"may not write into {tmp_path}"):
        preflight.check_run(cfg, dry_run=False)


def test_models_are_looked_for_by_key(tmp_path: Path) -> None:
    """Directories must hold a model; names on the hub, tiny models and others' roles pass."""
    cfg = _run_config()
    wan = {"_target_": "fastvideo.train.models.wan.WanModel"}
    for name in ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "tiny-random:wan2.1"):
        cfg.models = {"student": {**wan, "init_from": name}, "x": {"_target_": "mine.Model"}}
        preflight.check_models(cfg)
    cfg.models["critic"] = {**wan, "init_from": str(tmp_path)}
    with pytest.raises(
        DataError, match=rf"^models\.critic\.init_from: {tmp_path} holds no model_i"
    ):
        preflight.check_models(cfg)
    (tmp_path / "model_index.json").touch()
    with pytest.raises(DataError, match=f"{tmp_path} has no transformer/ folder"):
        preflight.check_models(cfg)
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text("{}")
    preflight.check_models(cfg)
    cfg.training.model_path = "tiny-random:wan"
    with pytest.raises(ConfigError, match="unknown tiny model 'tiny-random:wan'"):
        preflight.check_models(cfg)


def test_classes_of_this_package_must_be_there(tmp_path: Path) -> None:
    """A callback's, and a pipeline's where validation is on."""
    cfg = _run_config()
    cfg.callbacks["mine"] = {"_target_": "fastvideo.train.callbacks.ema.EMACalback"}
    with pytest.raises(ImportError, match=r"callbacks\.mine\._target_ .* mean 'EMACallback'\?"):
        preflight.check_run(cfg, dry_run=True)
    pipeline = "fastvideo.pipelines.basic.wan.wan_pipelin.WanPipeline"
    cfg.callbacks = {"validation": {"pipeline_target": pipeline, "every_steps": 0}}
    preflight.check_run(cfg, dry_run=False)
    cfg.callbacks["validation"]["every_steps"] = 5
    with pytest.raises(ImportError, match=r"validation\.pipeline_target .* mean 'wan_pipeline'"):
        preflight.check_run(cfg, dry_run=False)


def test_restarts_need_something_to_go_on_from() -> None:
    """Otherwise they would begin from the start and write over what was done."""
    checkpoint = TrainingConfig().checkpoint
    preflight.check_restarts(checkpoint, 0)
    with pytest.raises(ConfigError, match="nothing is saved that a restart could go on from"):
        preflight.check_restarts(checkpoint, 2)
    checkpoint.training_state_checkpointing_steps = 5
    with pytest.raises(ConfigError, match=r"begin from the start again.*_checkpoint latest"):
        preflight.check_restarts(checkpoint, 2)
    checkpoint.resume_from_checkpoint = "latest"
    preflight.check_restarts(checkpoint, 2)
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        preflight.check_restarts(checkpoint, -1)


def test_sparse_attention_is_refused_by_name() -> None:
    """A run that asks for sparse attention does not quietly train with dense attention."""
    training = TrainingConfig()
    training.vsa.sparsity = 0.8
    with pytest.raises(ConfigError, match=r"training\.vsa\.sparsity: .*got 0\.8\. Set --training"):
        preflight.reject_unavailable(training)


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Before processes start; `latest` starts afresh where there is none."""
    cfg = _run_config()
    cfg.training.checkpoint.output_dir = str(tmp_path)
    cfg.training.checkpoint.resume_from_checkpoint = "latest"
    preflight.check_run(cfg, dry_run=False)
    cfg.training.checkpoint.resume_from_checkpoint = str(tmp_path / "checkpoint-9")
    with pytest.raises(FileNotFoundError, match=r"there is no directory .*checkpoint-9"):
        preflight.check_run(cfg, dry_run=False)


def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    """Before processes start, where the method is one of ours: others may derive from it."""
    dcp = tmp_path / "checkpoint-3" / "dcp"
    dcp.mkdir(parents=True)
    (dcp / ".metadata").touch()
    methods = "fastvideo.train.methods"
    saved = {"method": {"target": f"{methods}.moved.DMD2Method", "roles": ["critic", "student"]}}
    (dcp.parent / "metadata.json").write_text(json.dumps(saved))
    cfg = _run_config()
    checkpoint = cfg.training.checkpoint
    checkpoint.output_dir = str(tmp_path)
    checkpoint.resume_from_checkpoint = "latest"
    for target in ("mine.Method", f"{methods}.distribution_matching.DMD2Method"):
        cfg.method["_target_"] = target
        preflight.check_run(cfg, dry_run=False)
    cfg.method["_target_"] = f"{methods}.fine_tuning.FineTuneMethod"
    refused = "saved by DMD2Method with the roles critic, student, and this run's method is FineTu"
    for resume in ("latest", str(tmp_path)):
        checkpoint.resume_from_checkpoint = resume
        with pytest.raises(CheckpointError, match=f"resume_from_checkpoint: .*{refused}"):
            preflight.check_run(cfg, dry_run=False)
    checkpoint.resume_from_checkpoint = ""
    preflight.check_run(cfg, dry_run=False)
    checkpoint.training_state_checkpointing_steps = 1
    with pytest.raises(CheckpointError, match=f"output_dir: .*{refused}"):
        preflight.check_run(cfg, dry_run=False)
    metadata = {"method": {"target": cfg.method["_target_"]}}
    (dcp.parent / "metadata.json").write_text(json.dumps(metadata))
    refused = "has checkpoints of an earlier run, up to checkpoint-3, and this run would begin from"
    with pytest.raises(CheckpointError, match=f"output_dir: .* {refused} the start"):
        preflight.check_run(cfg, dry_run=False)
    preflight.check_run(cfg, dry_run=True)
    for resume in ("latest", str(tmp_path), str(dcp)):
        checkpoint.resume_from_checkpoint = resume
        preflight.check_run(cfg, dry_run=False)
    (dcp.parent / "metadata.json").write_text(json.dumps(metadata | {"step": 4}))
    with pytest.raises(CheckpointError, match=r"checkpoint-3 is named after step 3, .* step 4\."):
        preflight.check_run(cfg, dry_run=False)
