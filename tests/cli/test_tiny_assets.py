"""The command `fastvideo tiny-assets`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fastvideo.cli.main import main
from fastvideo.dataset import get_parquet_files_and_length

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_everything_for_a_first_run_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints where the model, both data sets and the validation file are."""
    assert main(["tiny-assets", "--out", str(tmp_path / "tiny")]) == 0
    printed = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert set(printed) == {"model", "t2v", "text_only", "validation"}
    for name in ("t2v", "text_only"):
        assert sum(get_parquet_files_and_length(printed[name])[1]) == 16
    assert len(json.loads((tmp_path / "tiny" / "validation.json").read_text())["data"]) == 2


def test_the_model_alone_goes_to_the_directory_itself(tmp_path: Path) -> None:
    """With --model-only, DIR is the model."""
    assert main(["tiny-assets", "--out", str(tmp_path / "m"), "--model-only", "--seed", "3"]) == 0
    assert (tmp_path / "m" / "model_index.json").is_file()
    assert json.loads((tmp_path / "m" / "tiny_assets.json").read_text())["seed"] == 3


def test_a_foreign_directory_is_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What somebody else put there is not overwritten."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    assert main(["tiny-assets", "--out", str(tmp_path)]) == 2
    assert "was not written by fastvideo tiny-assets" in capsys.readouterr().err
    assert (tmp_path / "model" / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
