"""Classes that run files name are looked for before processes start."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fastvideo.train.config import TrainingConfig
from fastvideo.train.run_config import RunConfig
from fastvideo.train.targets import (
    check_own_target,
    import_foreign_targets,
    is_own,
    named_targets,
)

if TYPE_CHECKING:
    from pathlib import Path

WAN = "fastvideo.train.models.wan.WanModel"


def _run_config(**sections: dict[str, object]) -> RunConfig:
    given: dict[str, dict[str, object]] = {"models": {}, "method": {}, "callbacks": {}, **sections}
    return RunConfig(training=TrainingConfig(), raw={}, **given)  # type: ignore[arg-type]


def test_every_target_of_a_run_file_is_found() -> None:
    """Roles, the method, rewards and callbacks; entries without one are left out."""
    cfg = _run_config(
        models={"student": {"_target_": WAN}},
        method={"_target_": "a.Method", "rewards": {"x": {"_target_": "a.Reward"}, "y": None}},
        callbacks={"ema": {"decay": 0.9}, "mine": {"_target_": "a.Callback"}},
    )
    assert named_targets(cfg) == {
        "models.student._target_": WAN,
        "method._target_": "a.Method",
        "method.rewards.x._target_": "a.Reward",
        "callbacks.mine._target_": "a.Callback",
    }
    assert [is_own(target) for target in (WAN, "fastvideo_mine.X", None)] == [True, False, False]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (WAN.replace("wan", "wam"), "there is no module 'fastvideo.train.models.wam'. Did you"),
        (WAN.replace("train", "trian"), "there is no module 'fastvideo.trian'. Did you mean 'trai"),
        (f"{WAN}.deeper.Class", "there is no module 'fastvideo.train.models.wan.WanModel'."),
        (WAN.replace("WanM", "Wan2M"), "'fastvideo.train.models.wan' has no attribute 'Wan2Model'"),
    ],
)
def test_what_is_not_in_this_package_is_named(target: str, message: str) -> None:
    """The message has the key, the path, and the nearest name."""
    with pytest.raises(ImportError, match=re.escape(f"models.critic._target_ {target!r}: ")) as at:
        check_own_target(target, where="models.critic._target_")
    assert message in str(at.value)


def test_looking_imports_nothing() -> None:
    """Classes are found in the files; also those that a package takes from its modules."""
    program = f"""
import sys
from fastvideo.train.targets import check_own_target
for target in ({WAN!r}, "fastvideo.train.methods.rl.rewards.SharpnessReward"):
    check_own_target(target, where="here")
sys.exit(any(name in sys.modules for name in ("torch", "diffusers", "fastvideo.train.models")))
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_others_classes_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not exist is named with its key, and so is whatever an import raises."""
    (tmp_path / "foreign_class.py").write_text("class Fine: pass\n")
    (tmp_path / "foreign_fault.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_foreign_targets(_run_config(method={"_target_": "foreign_class.Fine"}))
    for target, message in {
        "foreign_class.Fin": r"method\._target_ .* has no attribute 'Fin'\. Did you mean 'Fine'",
        "foreign_fault.Any": r"method\._target_ 'foreign_fault.Any': .* ZeroDivisionError: d",
        "foreign_none.Any": r"method\._target_ 'foreign_none.Any': cannot import module",
        "Any": r"method\._target_ must be a dotted path",
    }.items():
        with pytest.raises((ImportError, ValueError), match=message):
            import_foreign_targets(_run_config(method={"_target_": target}))
