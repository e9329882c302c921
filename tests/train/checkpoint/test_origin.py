"""Which method saved a checkpoint, and which ones may go on from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.checkpoint.origin import (
    MethodNames,
    Origin,
    describe_method,
    read_origin,
    refuse_mixing,
    refuse_other_method,
)

if TYPE_CHECKING:
    from pathlib import Path


class Base:
    """A method."""


class Derived(Base):
    """One that changes a detail of it."""


def _checkpoint(output_dir: Path, step: int, metadata: dict[str, Any]) -> Path:
    path = output_dir / f"checkpoint-{step}"
    (path / "dcp").mkdir(parents=True)
    (path / "dcp" / ".metadata").touch()
    (path / "metadata.json").write_text(json.dumps(metadata))
    return path


def test_what_is_kept_of_a_method_comes_back(tmp_path: Path) -> None:
    """With the models of the run file; the class comes before the run file's name for it."""
    config = {
        "method": {"_target_": "make.base"},
        "models": {"student": {"init_from": "base"}, "teacher": {}},
    }
    method = describe_method(Base(), ["student", "critic"], {"student": [], "critic": ()})
    path = _checkpoint(tmp_path, 1, {"method": method, "config": config})
    assert read_origin(path) == Origin(
        f"{__name__}.Base",
        ("critic", "student"),
        {"critic": "tuple", "student": "list"},
        {"student": "base"},
    )


@pytest.mark.parametrize(
    "metadata", [{}, {"method": None, "config": None}, {"config": {"method": [], "models": 3}}]
)
def test_a_checkpoint_that_says_nothing_is_anybody_s(
    tmp_path: Path, metadata: dict[str, Any]
) -> None:
    """Its tensors decide."""
    path = _checkpoint(tmp_path, 1, metadata)
    assert refuse_other_method(path, MethodNames.of(Base())) == Origin()
    (path / "metadata.json").unlink()
    assert read_origin(path) == Origin()


def test_derived_and_moved_methods_go_on() -> None:
    """A base does not go on from what was derived from it, nor does an unrelated method."""
    derived, base = MethodNames.of(Derived()), MethodNames.of(Base())
    assert derived.can_go_on_from(Origin("elsewhere.Base"))
    assert derived.can_go_on_from(Origin("elsewhere.Derived"))
    assert not base.can_go_on_from(Origin(f"{__name__}.Derived"))
    assert not base.can_go_on_from(Origin("elsewhere.object"))
    made = MethodNames.of(Base(), {"method": {"_target_": "make.base"}})
    assert made.can_go_on_from(Origin("make.base"))
    assert made.can_go_on_from(Origin("elsewhere.Base"))


def test_the_newest_whole_checkpoint_says_whose_a_directory_is(tmp_path: Path) -> None:
    """Older and unfinished ones do not count; an empty directory is anybody's."""
    base = MethodNames.of(Base())
    assert refuse_mixing(tmp_path / "none", base) is None
    assert refuse_mixing("", base) is None
    _checkpoint(tmp_path, 1, {"method": {"target": "a.Other"}})
    with pytest.raises(CheckpointError, match=r"output_dir: .*checkpoint-1: it was saved by Other"):
        refuse_mixing(tmp_path, base)
    newer = _checkpoint(tmp_path, 2, {"method": {"target": "a.Base"}})
    (tmp_path / "checkpoint-3").mkdir()
    assert refuse_mixing(tmp_path, base) == newer
