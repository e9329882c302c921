"""What is refused before models are loaded, by the classes that would refuse it later."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastvideo.errors import ConfigError, FastVideoError
from fastvideo.train.builder import build_from_config
from fastvideo.train.callbacks import CallbackDict
from fastvideo.train.callbacks.callback_dict import CallbackExitError
from fastvideo.train.models.wan import WanModel
from fastvideo.train.run_config import load_run_config
from fastvideo.train.settings_check import check_settings

if TYPE_CHECKING:
    from fastvideo.train.run_config import RunConfig

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "examples" / "train" / "configs"
FILES = {
    "finetune": CONFIGS / "fine_tuning/wan/t2v_tiny.yaml",
    "validated": CONFIGS / "fine_tuning/wan/t2v.yaml",
    "dmd": CONFIGS / "distribution_matching/wan/dmd2_t2v_tiny.yaml",
    "kd": CONFIGS / "knowledge_distillation/wan/t2v.yaml",
    "nft": CONFIGS / "rl/wan/diffusion_nft_t2v.yaml",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of eight rows, of which nothing but their number is looked at."""
    path = tmp_path_factory.mktemp("data")
    pq.write_table(pa.table({"id": [str(number) for number in range(8)]}), path / "0.parquet")
    return path


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run files name their prompts relative to the repository."""
    monkeypatch.chdir(ROOT)


def _load(method: str, data: Path, *overrides: str) -> RunConfig:
    words = [
        f"--training.data.data_path={data}",
        "--training.tracker.trackers=[none]",
        "--training.checkpoint.output_dir=out",
    ]
    return load_run_config(FILES[method], [*words, *overrides])


@pytest.mark.parametrize("method", FILES)
def test_shipped_files_pass(method: str, data: Path) -> None:
    """Nothing is written for it."""
    before = sorted(data.rglob("*"))
    check_settings(_load(method, data))
    assert sorted(data.rglob("*")) == before
    assert not (ROOT / "out").exists()


@pytest.mark.parametrize(
    ("method", "override", "expected"),
    [
        ("finetune", "--training.optimizer.learning_rate=0", r"training\.optimizer\.learning_rate"),
        ("finetune", "--training.optimizer.lr_scheduler=piecewise_constant", "lr_step_rules"),
        ("finetune", "--training.data.data_path=", r"training\.data\.data_path is empty"),
        ("finetune", "--training.data.data_path=docs", r"no \*\.parquet file found"),
        ("finetune", "--training.data.train_batch_size=99", "fewer than one batch"),
        ("finetune", "--training.data.preprocessed_data_type=text_only", "needs latents"),
        ("finetune", "--training.data.num_height=65", r"num_height: .* 16 such as 64, got 65"),
        ("finetune", "--training.data.num_frames=10", r"num_frames: .* such as 9, got 10"),
        ("finetune", "--models.student.trainable=false", r"models\.student\.trainable is false"),
        ("finetune", "--models.student.trainable=perhaps", r"models\.student\.trainable: expected"),
        ("dmd", "--method.dmd_denoising_steps=[250, 500]", r"method\.dmd_denoising_steps"),
        ("dmd", "--method.generator_update_interval=often", r"method\.generator_update_interval"),
        ("dmd", "--method.fake_score_lr_scheduler=cosin", "'cosin'; .* Did you mean 'cosine'"),
        ("dmd", "--models.teacher.trainable=true", r"models\.teacher\.trainable must be false"),
        (
            "dmd",
            "--training.data.num_height=24",
            r"num_height: .* multiple of 16 such as .* got 24",
        ),
        ("dmd", "--training.data.num_height=4", r"num_height: .* multiple of 16 such as 16, got 4"),
        ("dmd", "--training.data.num_width=0", r"training\.data\.num_width must be set"),
        ("kd", "--method.t_list=[0, 999]", r"method\.t_list"),
        ("kd", "--models.teacher.trainable=true", r"models\.teacher\.trainable must be false"),
        ("nft", "--method.samples_per_prompt=1", r"method\.samples_per_prompt"),
        ("nft", "--method.rewards={}", r"method\.rewards must name at least one reward"),
        ("nft", "--models.old.trainable=true", r"models\.old\.trainable must be false"),
        ("nft", "--training.data.num_latent_t=0", r"training\.data\.num_latent_t must be set"),
        ("finetune", "--method._target_=os.system", r"os\.system to be a TrainingMethod class"),
        ("finetune", "--callbacks.ema.decay=2", r"callbacks\.ema\.decay must be from 0 to 1"),
        ("finetune", "--callbacks.grad_clip.max_grad_norm=abc", r"callbacks\.grad_clip\.max_grad"),
        ("finetune", "--callbacks.x._target_=builtins.int", r"callbacks\.x: expected a Callback"),
        ("finetune", "--callbacks.x._target_=toy_run.Absent", r"callbacks\.x\._target_ .*Absent"),
        ("finetune", "--callbacks.x._target_=toy_run.DieOnce", r"toy_run\.DieOnce needs 'rank', "),
        ("finetune", "--callbacks.validation.sampling_steps=0", r"validation\.sampling_steps"),
        ("finetune", "--callbacks.validation.guidance_scale=abc", r"validation\.guidance_scale"),
        ("finetune", "--callbacks.validation.metrics=[sharp]", r"there is no metric 'sharp'"),
        ("finetune", "--callbacks.validation.num_frames=10", r"validation\.num_frames: .* got 10"),
        (
            "validated",
            "--callbacks.validation.dataset_file=docs/index.md",
            "validation file ends in",
        ),
        ("finetune", "--training.tracker.trackers=[swanlab]", "'swanlab', which is not installed"),
    ],
)
def test_mistakes_are_named(
    monkeypatch: pytest.MonkeyPatch, data: Path, method: str, override: str, expected: str
) -> None:
    """All of them are one line of the launcher, and come before a model is loaded in a rank."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setitem(sys.modules, "swanlab", None)
    cfg = _load(method, data, override)

    def load(*args: Any, **kwargs: Any) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(WanModel, "__init__", load)
    with pytest.raises(FastVideoError, match=expected):
        build_from_config(cfg)


@pytest.mark.parametrize("role", ["student", "teacher", "critic"])
def test_missing_roles_are_named(data: Path, role: str) -> None:
    """By the method that needs them."""
    cfg = _load("dmd", data)
    del cfg.models[role]
    with pytest.raises(ConfigError, match=rf"models\.{role} is (required and )?missing"):
        check_settings(cfg)


def test_what_other_packages_accept_is_theirs_to_say(
    monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    """With a model of another package, nothing is asked of the method or the data."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    overrides = ["--models.*._target_=toy_run.ToyModel", "--training.optimizer.learning_rate=0"]
    check_settings(_load("finetune", data, "--training.data.data_path=", *overrides))


def test_a_broken_package_of_a_tracker_is_one_message(
    monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path
) -> None:
    """Whatever it raises; the message says what, and what to do."""
    (tmp_path / "wandb.py").write_text("raise ImportError('no protobuf')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(FastVideoError, match=r"'wandb' cannot be used.*ImportError: no protobuf"):
        check_settings(_load("finetune", data, "--training.tracker.trackers=[wandb]"))


@pytest.mark.parametrize("code", [0, None, 3])
def test_a_callback_cannot_end_the_run_without_a_word(code: int | None) -> None:
    """Python's way to end a program would look like the end of the training."""
    callbacks = CallbackDict({"ema": {}}, None)
    callback = callbacks.get("ema")
    assert callback is not None

    def leave(*args: Any) -> None:
        sys.exit(code)

    callback.on_train_end = leave  # type: ignore[method-assign]
    with pytest.raises(CallbackExitError, match=rf"callbacks\.ema\.on_train_end .*{code}"):
        callbacks.on_train_end(None)
