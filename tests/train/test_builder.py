"""From a run configuration to objects."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from fastvideo.train.builder import build_from_config
from fastvideo.train.instantiate import resolve_target
from fastvideo.train.run_config import RunConfig, load_run_config

TARGET = "_target_"
CONFIGS = Path(__file__).parents[2] / "examples" / "train" / "configs"


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Loads a run file with a student and a teacher, changed by overrides."""

    def write_and_load(*overrides: str) -> RunConfig:
        role = {TARGET: "toy_run.ToyModel", "init_from": "base"}
        content = {
            "models": {"student": role, "teacher": role | {"trainable": False}},
            "method": {TARGET: "toy_run.ToyMethod"},
            "training": {},
        }
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return load_run_config(path, list(overrides))

    return write_and_load


def test_roles_and_method_are_built(load: Any) -> None:
    """Roles get the training section; loader and start come from the student afterwards."""
    cfg = load("--training.data.seed=4")
    training, method, dataloader, start_step = build_from_config(cfg)
    assert training is cfg.training
    assert method.training_config is cfg.training
    assert method.student.training_config is cfg.training
    assert method.student.init_from == "base"
    assert sorted(method.role_modules) == ["student", "teacher"]
    assert dataloader is method.student.dataloader
    assert len(dataloader) == 3
    assert start_step == 0


def test_pipeline_shift_is_the_default_of_roles(load: Any) -> None:
    """A role that says its own shift keeps it; the others get the pipeline's."""
    cfg = load("--pipeline.flow_shift=8", "--models.teacher.flow_shift=5")
    _, method, _, _ = build_from_config(cfg)
    shifts = {role: model.flow_shift for role, model in method._role_models.items()}
    assert shifts == {"student": 8.0, "teacher": 5}


def test_without_a_pipeline_shift_roles_keep_their_own_default(load: Any) -> None:
    """An empty pipeline section changes nothing."""
    _, method, _, _ = build_from_config(load("--pipeline={}"))
    assert method.student.flow_shift == 3.0


def test_student_is_required(load: Any) -> None:
    """Without a student nothing is built, and a similar role is suggested."""
    cfg = load("--models.studnt={_target_: toy_run.ToyModel}")
    del cfg.models["student"]
    with pytest.raises(ValueError, match=r"models\.student is required.*Did you mean 'studnt'"):
        build_from_config(cfg)


def test_roles_must_be_models(load: Any) -> None:
    """Something else at a role is a TypeError that names the role and what was made."""
    with pytest.raises(TypeError, match=r"models\.teacher: .*got toy_run\.NotAModel"):
        build_from_config(load("--models.teacher._target_=toy_run.NotAModel"))


@pytest.mark.parametrize("target", ["toy_run.ToyModel", "toy_run.os"])
def test_method_must_be_a_method_class(load: Any, target: str) -> None:
    """Anything but a TrainingMethod class is a TypeError, before any model is built."""
    cfg = load(f"--method._target_={target}", "--models.student._target_=no.such.Model")
    with pytest.raises(TypeError, match=r"method\._target_: .*TrainingMethod class"):
        build_from_config(cfg)


def test_errors_of_a_role_say_which(load: Any) -> None:
    """An exception while building carries a note with the role."""
    with pytest.raises(ImportError) as caught:
        build_from_config(load("--models.teacher._target_=toy_run.ToyModl"))
    assert caught.value.__notes__ == ["while building models.teacher (toy_run.ToyModl)"]
    assert "Did you mean 'ToyModel'" in str(caught.value)


def test_unknown_model_keys_are_one_warning(load: Any) -> None:
    """A key of another version is dropped and named."""
    cfg = load("--models.student.flow_shfit=8")
    with pytest.warns(UserWarning, match="did you mean 'flow_shift'"):
        build_from_config(cfg)


def test_unknown_method_keys_are_named_with_the_nearest(
    load: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A method that declares its keys warns of others; one that does not takes any."""
    cfg = load("--method.fail_att=9")
    build_from_config(cfg)
    assert caplog.messages == []
    method = import_module("toy_run").ToyMethod
    monkeypatch.setattr(method, "known_keys", frozenset({"fail_at", "sigterm_at"}))
    build_from_config(cfg)
    assert caplog.messages == ["unknown key method.fail_att is ignored. Did you mean 'fail_at'?"]


def test_shipped_methods_know_the_keys_of_their_run_files() -> None:
    """No shipped run file causes a warning."""
    for path in sorted(CONFIGS.rglob("*.yaml")):
        section = load_run_config(path).method
        method = resolve_target(section.pop(TARGET))
        assert method.known_keys is not None
        assert set(section) <= method.known_keys


def test_building_leaves_the_config_alone(load: Any) -> None:
    """What goes to the tracker later is what was loaded."""
    cfg = load("--pipeline.flow_shift=8")
    before = cfg.resolved_config()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_from_config(cfg)
    assert cfg.resolved_config() == before


def test_a_role_that_is_not_used_is_one_warning(
    load: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes memory for nothing; a method that names no roles accepts any."""
    cfg = load()
    cfg.models["studnt"] = dict(cfg.models["student"])
    build_from_config(cfg)
    assert "does not use it" not in caplog.text
    toys = import_module(cfg.method["_target_"].rpartition(".")[0])
    monkeypatch.setattr(toys.ToyMethod, "known_roles", frozenset({"student", "teacher"}))
    build_from_config(cfg)
    lines = [r.getMessage() for r in caplog.records if "does not use it" in r.getMessage()]
    expected = (
        "models.studnt is loaded, but the method does not use it; its roles are student, teacher. "
        "Did you mean 'student'?"
    )
    assert lines == [expected]
