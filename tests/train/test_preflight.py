"""What is refused before processes start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train import preflight
from fastvideo.train.config import TrainingConfig
from fastvideo.train.run_config import RunConfig, load_run_config

CONFIGS = Path(__file__).parents[2] / "examples" / "train" / "configs"


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
    """A missing length is no success with nothing done; a dry run needs none."""
    cfg = _run_config()
    cfg.training.loop.max_train_steps = 0
    with pytest.raises(ConfigError, match=r"training\.loop\.max_train_steps: .* got 0 .* Set --"):
        preflight.check_run(cfg, dry_run=False)
    preflight.check_run(cfg, dry_run=True)


@pytest.mark.parametrize("settings", [{}, {"every_steps": 50}, {"every_steps": "50"}])
def test_validation_is_refused_before_the_start(settings: dict[str, object]) -> None:
    """So is one that is on because the key is missing; custom callbacks decide for themselves."""
    cfg = _run_config()
    cfg.callbacks["validation"] = dict(settings)
    with pytest.raises(ConfigError, match=r"--callbacks\.validation\.every_steps 0"):
        preflight.check_run(cfg, dry_run=False)
    cfg.callbacks["validation"]["_target_"] = "mine.Validation"
    preflight.check_run(cfg, dry_run=False)
    cfg.callbacks["validation"] = {"every_steps": 0}
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


def test_saving_checkpoints_is_refused_by_name() -> None:
    """The message names the override that lets the run start."""
    training = TrainingConfig()
    training.checkpoint.training_state_checkpointing_steps = 20
    with pytest.raises(ConfigError) as caught:
        preflight.reject_unavailable(training)
    assert str(caught.value) == (
        "training.checkpoint.training_state_checkpointing_steps: saving checkpoints is not "
        "available in this version, got 20. "
        "Set --training.checkpoint.training_state_checkpointing_steps 0"
    )


def test_full_run_file_says_what_to_switch_off() -> None:
    """The full-size run file ends at once, and with two overrides it would start."""
    path = CONFIGS / "distribution_matching/wan/dmd2_t2v.yaml"
    with pytest.raises(ConfigError, match="checkpointing_steps 0"):
        preflight.reject_unavailable(load_run_config(path).training)
    override = "--training.checkpoint.training_state_checkpointing_steps=0"
    preflight.reject_unavailable(load_run_config(path, [override]).training)


def test_sparse_attention_is_refused_by_name() -> None:
    """A run that asks for sparse attention does not quietly train with dense attention."""
    training = TrainingConfig()
    training.vsa.sparsity = 0.8
    with pytest.raises(ConfigError, match=r"training\.vsa\.sparsity: .*got 0\.8\. Set --training"):
        preflight.reject_unavailable(training)


def test_resuming_is_refused_unless_there_is_nothing_to_resume(tmp_path: Path) -> None:
    """`latest` starts afresh in an empty directory and is refused where a checkpoint lies."""
    training = TrainingConfig()
    training.checkpoint.output_dir = str(tmp_path)
    preflight.reject_unavailable(training)
    training.checkpoint.resume_from_checkpoint = "latest"
    (tmp_path / "checkpoint-9").mkdir()
    (tmp_path / "checkpoint-best" / "dcp").mkdir(parents=True)
    preflight.reject_unavailable(training)
    for step in ("10", "9"):
        (tmp_path / f"checkpoint-{step}" / "dcp").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"got 'latest', which is .*checkpoint-10\. Start afresh"):
        preflight.reject_unavailable(training)
    training.checkpoint.resume_from_checkpoint = str(tmp_path / "checkpoint-9")
    with pytest.raises(ConfigError, match="resume_from_checkpoint null"):
        preflight.reject_unavailable(training)
