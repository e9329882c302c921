"""Every run file that is shipped loads, builds its models and data, and trains at a tiny size."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fastvideo.dataset.tiny_assets import write_tiny_assets
from fastvideo.train.builder import build_from_config
from fastvideo.train.mesh import reconcile_mesh
from fastvideo.train.preflight import check_run
from fastvideo.train.run_config import RunConfig, load_run_config
from fastvideo.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "examples" / "train" / "configs").rglob("*.yaml"))
RECIPES = [path for path in CONFIGS if "On one CPU core" in path.read_text()]

TINY = {
    "models.*.init_from": "tiny-random:wan2.1",
    "training.data.num_height": 64,
    "training.data.num_width": 64,
    "training.data.num_latent_t": 3,
    "training.data.num_frames": 9,
    "training.data.dataloader_num_workers": 0,
    "training.tracker.trackers": "[none]",
}
ONLY = {
    "callbacks": {"validation": {"every_steps": 0}},
    "method": {"rewards": {"prompt": "null"}},
}


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the tiny model out of the user's cache, and relative paths in the repository."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTVIDEO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(ROOT)
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `fastvideo tiny-assets` writes."""
    return write_tiny_assets(tmp_path_factory.mktemp("tiny"), rows=2)


def _named(section: Any, keys: dict[str, Any]) -> dict[str, Any]:
    """Returns overrides for those of the keys that the file has."""
    found = {}
    for key, value in keys.items():
        if isinstance(section, dict) and key in section:
            inner = _named(section[key], value) if isinstance(value, dict) else {"": value}
            found |= {f"{key}.{rest}".rstrip("."): v for rest, v in inner.items()}
    return found


def _overrides(path: Path, tiny: dict[str, Path], out: Path) -> list[str]:
    raw = yaml.safe_load(path.read_text())
    kind = raw["training"]["data"].get("preprocessed_data_type", "t2v")
    values = {
        **TINY,
        **_named(raw, ONLY),
        "training.data.data_path": tiny[kind],
        "training.checkpoint.output_dir": out,
    }
    if "teacher_path_cache" in raw["method"]:
        values["method.teacher_path_cache"] = out / "trajectories"
    return [f"--{key}={value}" for key, value in values.items()]


def _build(path: Path, overrides: list[str]) -> tuple[RunConfig, Any, Any]:
    cfg = load_run_config(str(path), overrides)
    check_run(cfg, dry_run=True)
    reconcile_mesh(cfg.training.distributed, 1)
    _, method, loader, start = build_from_config(cfg)
    assert start == 0
    return cfg, method, loader


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_file_can_be_built(
    path: Path, tiny: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a dry run does, with the tiny model in every role; no key is unknown."""
    cfg, method, loader = _build(path, _overrides(path, tiny, tmp_path))
    Trainer(cfg.training, callback_configs=cfg.callbacks).tracker.finish()
    assert len(loader) == 2 // cfg.training.data.train_batch_size
    assert method.get_optimizers(1)
    assert "unknown key" not in caplog.text


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_command_for_a_cpu_in_a_file_trains(
    path: Path, tiny: dict[str, Path], tmp_path: Path
) -> None:
    """The command as the file's comment has it; only where it writes is changed."""
    comment = path.read_text().partition("On one CPU core")[2].partition("\n\n")[0]
    command = re.sub(r"\\?\n#", " ", comment).split("run.sh ")[1]
    config, *words = shlex.split(command.replace("outputs/tiny", str(tiny["t2v"].parent)))
    assert ROOT / config == path
    more = [
        *("--training.checkpoint.output_dir", str(tmp_path)),
        *("--training.checkpoint.training_state_checkpointing_steps", "0"),
        *("--training.tracker.trackers", "[none]"),
    ]
    cfg, method, loader = _build(path, words + more)
    losses: list[float] = []
    trainer = Trainer(cfg.training, callback_configs=cfg.callbacks)
    trainer.tracker.log = lambda metrics, step: losses.append(metrics.get("total_loss", 0.0))  # type: ignore[method-assign]
    steps = cfg.training.loop.max_train_steps
    trainer.run(method, dataloader=loader, max_steps=steps)
    assert sum(loss != 0 for loss in losses) == steps


def test_the_table_of_recipes_says_what_the_files_say() -> None:
    """Both directions: every file that is not tiny has a row, with its method and its roles."""
    page = (ROOT / "docs" / "training.md").read_text()
    rows = re.findall(r"^\| `(\w+Method)` \| (.*?) \| `(.*?)` \|", page, re.MULTILINE)
    stated = {path: (method, re.findall(r"`(\w+)`", roles)) for method, roles, path in rows}
    folder = ROOT / "examples" / "train" / "configs"
    raw = {str(path.relative_to(folder)): yaml.safe_load(path.read_text()) for path in CONFIGS}
    assert stated == {
        path: (file["method"]["_target_"].rpartition(".")[2], list(file["models"]))
        for path, file in raw.items()
        if "tiny" not in path
    }


def test_knowledge_distillation_needs_no_videos(tiny: dict[str, Path], tmp_path: Path) -> None:
    """With captions alone, trajectories have the size that the run file states."""
    path = next(path for path in RECIPES if "knowledge_distillation" in str(path))
    more = [
        "--training.data.preprocessed_data_type=text_only",
        f"--training.data.data_path={tiny['text_only']}",
        "--method.teacher_inference_steps=12",
        "--training.loop.max_train_steps=1",
        "--training.checkpoint.training_state_checkpointing_steps=0",
    ]
    cfg, method, loader = _build(path, [*_overrides(path, tiny, tmp_path), *more])
    Trainer(cfg.training).run(method, dataloader=loader, max_steps=1)
    assert method.cache.read(1)["real"].shape == (3, 16, 8, 8)
