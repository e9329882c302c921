"""A checkpoint becomes a model directory that diffusers runs."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from diffusers import WanPipeline

from fastvideo.cli import main as cli
from fastvideo.dataset.encoders import load_transformer, load_vae
from fastvideo.dataset.model_files import resolve_model_path
from fastvideo.errors import ConfigError
from fastvideo.train.checkpoint import storage
from fastvideo.train.checkpoint.errors import CheckpointError, CheckpointNotFoundError
from fastvideo.train.checkpoint.export import EXPORT_FILE, ExportRequest, export_checkpoint
from fastvideo.train.checkpoint.manager import CheckpointConfig

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from fastvideo.distributed import RankGroup

MODEL = "tiny-random:wan2.1"


@pytest.fixture(scope="module")
def run(runs: ModuleType, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of three steps with EMA, saved after the last."""
    out = tmp_path_factory.mktemp("run")
    save = CheckpointConfig(save_steps=3)
    finished = runs.Run("finetune", data, out, ema=True, save=save).train(3)
    path = out / "checkpoint-3" / "metadata.json"
    content = json.loads(path.read_text())
    content["config"]["models"] = {"student": {"init_from": MODEL}}
    del content["metadata_sha256"]
    path.write_text(json.dumps(content))
    return finished


def _video(pipeline: WanPipeline) -> torch.Tensor:
    pipeline.set_progress_bar_config(disable=True)
    frames = pipeline(
        "a red ball",
        height=32,
        width=32,
        num_frames=5,
        num_inference_steps=2,
        output_type="pt",
        generator=torch.Generator().manual_seed(0),
    ).frames
    assert isinstance(frames, torch.Tensor)
    return frames


def _pipeline(directory: Path) -> WanPipeline:
    """Loads all of it as anybody would; without accelerate, two parts need our own loaders."""
    if importlib.util.find_spec("accelerate") is not None:
        return WanPipeline.from_pretrained(directory)
    return WanPipeline.from_pretrained(
        directory, transformer=load_transformer(directory), vae=load_vae(directory)
    )


@pytest.mark.parametrize("ema", [False, True])
def test_stock_pipeline_runs_what_was_trained(run: Any, tmp_path: Path, *, ema: bool) -> None:
    """The exported model makes the video that the weights of the run make."""
    target = tmp_path / "exported"
    words = ["export", "--checkpoint", str(run.out), "--output-dir", str(target), "--verify"]
    assert cli.main([*words, *(["--ema"] if ema else [])]) == 0
    trained = run.method.student.transformer
    weights = dict(run.trainer.callbacks.get("ema").student_ema.shadow if ema else {})
    expected = trained.state_dict() | weights
    pipeline = _pipeline(target)
    loaded = pipeline.transformer.state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    assert torch.equal(expected["proj_out.weight"], trained.proj_out.weight) is not ema
    transformer = load_transformer(resolve_model_path(MODEL))
    transformer.load_state_dict(expected)
    ours = WanPipeline.from_pretrained(
        resolve_model_path(MODEL), transformer=transformer, vae=load_vae(target)
    )
    # Diffusers' own loader keeps the rotary tables in another precision than ours.
    assert torch.allclose(_video(pipeline), _video(ours), atol=1e-4)
    about = json.loads((target / EXPORT_FILE).read_text())
    assert (about["step"], about["role"], about["ema"]) == (3, "student", ema)


@pytest.mark.parametrize(
    ("name", "callback"), [("dmd2", True), ("kd", True), ("nft", True), ("nft", False)]
)
def test_every_method_exports_its_average(
    runs: ModuleType, data: Path, tmp_path: Path, name: str, *, callback: bool
) -> None:
    """That of the callback, else the method's own; neither are the weights of the student."""
    save = CheckpointConfig(save_steps=4)  # the student of DMD2 moves in every second step
    run = runs.Run(name, data, tmp_path / "run", ema=callback, save=save).train(4)
    owner = run.trainer.callbacks.get("ema") if callback else run.method
    out = export_checkpoint(
        ExportRequest(str(run.out), tmp_path / "out", ema=True, base_model=MODEL, verify=True)
    )
    loaded = load_transformer(out).state_dict()
    trained = run.method.student.transformer.state_dict()
    average = owner.student_ema.shadow
    assert {n for n in average if not torch.equal(loaded[n], average[n])} == set()
    assert not torch.equal(average["proj_out.weight"], trained["proj_out.weight"])


def test_an_average_that_has_not_started_is_not_exported(
    runs: ModuleType, data: Path, tmp_path: Path
) -> None:
    """It would be the weights that the run began with."""
    save = CheckpointConfig(save_steps=1)
    runs.Run("finetune", data, tmp_path / "run", ema=True, save=save).train(1)  # starts at step 2
    request = ExportRequest(str(tmp_path / "run"), tmp_path / "out", ema=True, base_model=MODEL)
    with pytest.raises(ConfigError, match=r"checkpoint-1 has not started yet \(callbacks\.ema\.st"):
        export_checkpoint(request)
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_finite_are_said(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first names; also of checkpoints that do not say so themselves."""
    caplog.set_level("WARNING", "fastvideo")
    load = storage.load_tensors

    def with_nan(tensors: dict[str, torch.Tensor], path: Path, group: RankGroup) -> None:
        load(tensors, path, group)
        next(iter(tensors.values())).view(-1)[0] = torch.nan

    monkeypatch.setattr(storage, "load_tensors", with_nan)
    export_checkpoint(ExportRequest(str(run.out), tmp_path / "exported"))
    (record,) = caplog.records
    assert "checkpoint-3: 1 tensor holds NaN or infinite values (" in record.getMessage()
    assert record.getMessage().endswith("will be of no use; export an older checkpoint")


def test_weights_can_be_written_in_half_precision(run: Any, tmp_path: Path) -> None:
    """Rounded once, from what was trained; a path to the checkpoint itself is fine too."""
    export_checkpoint(
        ExportRequest(str(run.out / "checkpoint-3"), tmp_path / "half", dtype="bf16", verify=True)
    )
    loaded = load_transformer(tmp_path / "half", dtype=torch.bfloat16).state_dict()
    for name, tensor in run.method.student.transformer.state_dict().items():
        assert torch.equal(loaded[name], tensor.to(torch.bfloat16))


def test_a_model_is_replaced_only_if_asked_and_nothing_else_is(run: Any, tmp_path: Path) -> None:
    """A directory that holds no model stays, whatever is asked."""
    target = tmp_path / "exported"
    export_checkpoint(ExportRequest(str(run.out), target))
    (target / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="exists; give another one, or --overwrite"):
        export_checkpoint(ExportRequest(str(run.out), target))
    export_checkpoint(ExportRequest(str(run.out), target, overwrite=True))
    assert not (target / "mine.txt").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="holds no model"):
        export_checkpoint(ExportRequest(str(run.out), other, overwrite=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported", "other"]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"role": "critic"}, ConfigError, "--role critic: .* has the roles student"),
        ({"role": "critic", "base_model": MODEL}, ConfigError, "has the roles student"),
        ({"role": "critic", "ema": True}, ConfigError, "only the student has an average"),
        ({"dtype": "int4"}, ConfigError, "--dtype: expected one of fp32, bf16, fp16"),
        ({"checkpoint": "nowhere"}, CheckpointNotFoundError, "--checkpoint: there is no dir"),
        ({"checkpoint": ""}, ConfigError, "--checkpoint is empty"),
    ],
)
def test_mistakes_are_named(
    run: Any, tmp_path: Path, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """With the option that is wrong; nothing is written."""
    request = {"checkpoint": str(run.out), "output_dir": tmp_path / "exported", **changes}
    with pytest.raises(kind, match=message):
        export_checkpoint(ExportRequest(**request))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_without_an_average_says_so(
    runs: ModuleType, data: Path, tmp_path: Path
) -> None:
    """And a base model of another shape is not filled with what does not fit."""
    save = CheckpointConfig(save_steps=1)
    runs.Run("finetune", data, tmp_path / "run", save=save).train(1)
    request = {"checkpoint": str(tmp_path / "run"), "output_dir": tmp_path / "exported"}
    with pytest.raises(ConfigError, match=r"no average; the run needs callbacks\.ema"):
        export_checkpoint(ExportRequest(**request, ema=True, base_model=MODEL))
    base = resolve_model_path(MODEL)
    other = load_transformer(base)
    wider = type(other).from_config({**other.config, "num_layers": 1})
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model_index.json").write_text("{}")
    wider.save_pretrained(tmp_path / "base" / "transformer")
    with pytest.raises(CheckpointError, match=r"blocks\.1\.\S+ of .* is unknown to the base"):
        export_checkpoint(ExportRequest(**request, base_model=str(tmp_path / "base")))
