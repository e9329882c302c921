"""Which directories count as checkpoints, and what each way of naming one leads to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.checkpoint.errors import CheckpointError, CheckpointNotFoundError
from fastvideo.train.checkpoint.layout import (
    checkpoint_step,
    latest_checkpoint,
    list_checkpoints,
    resolve_checkpoint,
    what_is_missing,
)

if TYPE_CHECKING:
    from pathlib import Path


def _make(output_dir: Path, name: str, *, rank_file: str | None = "rank") -> Path:
    """Makes a checkpoint of names and sizes only."""
    path = output_dir / name
    (path / "dcp").mkdir(parents=True)
    (path / "dcp" / ".metadata").write_text("index")
    files = {"dcp/.metadata": 5, "rng_state_rank0.pt": 4}
    if rank_file is not None:
        (path / "rng_state_rank0.pt").write_text(rank_file)
    (path / "metadata.json").write_text(json.dumps({"step": 1, "files": files}))
    return path


def test_only_names_with_a_plain_number_are_checkpoints(tmp_path: Path) -> None:
    """They come in the order of their steps, not of their letters."""
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-best", "checkpoint-007", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-11").write_text("a file")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    assert checkpoint_step(tmp_path / "checkpoint-0") == 0
    assert list_checkpoints("") == list_checkpoints(tmp_path / "none") == []


def test_latest_is_the_newest_that_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken ones are passed over with a warning each, which says what is wrong with them."""
    caplog.set_level("WARNING", "fastvideo")
    _make(tmp_path, "checkpoint-2")
    whole = _make(tmp_path, "checkpoint-4")
    _make(tmp_path, "checkpoint-6", rank_file=None)
    _make(tmp_path, "checkpoint-8", rank_file="ra")
    (tmp_path / "checkpoint-10" / "dcp").mkdir(parents=True)
    (_make(tmp_path, "checkpoint-12") / "metadata.json").write_text("{")
    (_make(tmp_path, "checkpoint-14") / "metadata.json").write_text('{"files": 3}')
    (tmp_path / ".tmp-checkpoint-16-1").mkdir()
    assert latest_checkpoint(tmp_path) == whole
    assert [record.getMessage().rpartition("/")[2] for record in caplog.records][-3:] == [
        ".metadata",
        "checkpoint-8: rng_state_rank0.pt has 2 bytes instead of 4",
        "checkpoint-6: rng_state_rank0.pt is missing",
    ]
    assert len(caplog.records) == 5


def test_a_checkpoint_without_our_description_is_asked_for_its_weights_only(tmp_path: Path) -> None:
    """Other programs write no list of files."""
    path = _make(tmp_path, "checkpoint-2", rank_file=None)
    (path / "metadata.json").unlink()
    assert what_is_missing(path) is None


def test_every_way_of_naming_a_checkpoint_leads_to_it(tmp_path: Path) -> None:
    """Its directory, its weights, the run's directory, and `latest`."""
    older, newest = _make(tmp_path, "checkpoint-2"), _make(tmp_path, "checkpoint-4")
    assert resolve_checkpoint(str(older)) == older
    assert resolve_checkpoint(f"{older}/dcp/") == older
    assert resolve_checkpoint(str(tmp_path)) == newest
    assert resolve_checkpoint("latest", tmp_path) == newest
    assert resolve_checkpoint("latest", tmp_path / "none") is None
    assert resolve_checkpoint("latest", "") is None
    assert resolve_checkpoint("", tmp_path) is None


def test_what_cannot_be_resolved_says_what_there_is(tmp_path: Path) -> None:
    """Missing, without weights, without checkpoints, damaged: four messages."""
    _make(tmp_path, "checkpoint-2")
    with pytest.raises(CheckpointNotFoundError, match=r"no directory .*-3; .* has checkpoint-2"):
        resolve_checkpoint(str(tmp_path / "checkpoint-3"))
    (tmp_path / "checkpoint-4").mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"no complete checkpoint: it has no dcp/\.metadata"
    ):
        resolve_checkpoint(str(tmp_path / "checkpoint-4"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="--checkpoint: Could not resolve"):
        resolve_checkpoint(str(tmp_path / "empty"), option="--checkpoint")
    _make(tmp_path, "checkpoint-6", rank_file=None)
    with pytest.raises(CheckpointError, match=r"is damaged: rng_state_rank0\.pt is missing"):
        resolve_checkpoint(str(tmp_path / "checkpoint-6"))
