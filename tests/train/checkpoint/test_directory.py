"""Directories that are whole or not there, and which of them stay."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fastvideo.train.checkpoint.directory import (
    begin_directory,
    check_writable,
    complete_directory,
    keep_newest,
    remove_directory,
    remove_leftovers,
    telling_of_files,
)
from fastvideo.train.checkpoint.errors import CheckpointWriteError
from fastvideo.train.checkpoint.layout import latest_checkpoint, list_checkpoints


def _write(output_dir: Path, step: int, text: str = "weights") -> Path:
    path = begin_directory(output_dir, step)
    (path / "dcp").mkdir()
    (path / "dcp" / ".metadata").write_text(text)
    return path


def test_a_checkpoint_counts_when_it_is_complete(tmp_path: Path) -> None:
    """Until then `latest` does not see it; its description lists its files."""
    path = _write(tmp_path / "out", 4)
    assert latest_checkpoint(tmp_path / "out") is None
    done = complete_directory(path, 4, {"config": {"a": Path("b")}})
    assert latest_checkpoint(tmp_path / "out") == done
    content = json.loads((done / "metadata.json").read_text())
    assert (content["step"], content["config"]) == (4, {"a": "b"})
    assert content["files"] == {"dcp/.metadata": 7}
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["checkpoint-4"]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    """As in a run that went back and came to the same step again."""
    complete_directory(_write(tmp_path, 4, "old"), 4, {})
    _write(tmp_path, 4, "cut off")  # of a run that was killed, with the same process id
    done = complete_directory(_write(tmp_path, 4, "new"), 4, {})
    assert (done / "dcp" / ".metadata").read_text() == "new"
    assert list(tmp_path.iterdir()) == [done]


@pytest.mark.parametrize(("count", "kept"), [(0, [2, 4, 6, 8]), (1, [4]), (2, [4, 8])])
def test_the_newest_stay_and_the_one_that_was_just_saved(
    tmp_path: Path, count: int, kept: list[int]
) -> None:
    """Other names are left alone, and nothing half removed looks like a checkpoint."""
    saved = {step: complete_directory(_write(tmp_path, step), step, {}) for step in (2, 4, 6, 8)}
    (tmp_path / "checkpoint-best").mkdir()
    keep_newest(tmp_path, count, always=saved[4])
    assert list_checkpoints(tmp_path) == [saved[step] for step in kept]
    assert len(list(tmp_path.iterdir())) == len(kept) + 1


def test_a_removal_that_fails_is_said_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half that is left has another name."""
    caplog.set_level("WARNING", "fastvideo")
    saved = [complete_directory(_write(tmp_path, step), step, {}) for step in (2, 4)]

    def fail(path: Path) -> None:
        raise OSError(5, "no", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        keep_newest(tmp_path, 1, always=saved[1])
    assert list_checkpoints(tmp_path) == [saved[1]]
    assert "cannot remove" in caplog.text
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [saved[1]]
    remove_directory(tmp_path / "none")
    assert caplog.text.count("cannot remove") == 2


def test_a_place_that_takes_no_files_is_found_before_training(tmp_path: Path) -> None:
    """The directory is made if it can be, and nothing stays in it."""
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointWriteError, match=r"output_dir: cannot write to .*/file/c: Not a"):
        check_writable(tmp_path / "file" / "c")


def test_errors_of_the_disk_say_how_much_is_free(tmp_path: Path) -> None:
    """Also for a path that does not exist yet."""
    with (
        pytest.raises(CheckpointWriteError) as caught,
        telling_of_files("cannot write", tmp_path / "x"),
    ):
        raise OSError(28, os.strerror(28))
    assert f"cannot write {tmp_path}/x: No space left on device; " in str(caught.value)
    assert str(caught.value).endswith(" MiB are free there")


def test_a_copy_that_fails_for_many_files_names_the_first(tmp_path: Path) -> None:
    """Shutil's error tells of each of them, in one endless line."""
    full = f"[Errno 28] {os.strerror(28)}"
    failed = [(f"a/{name}", f"b/{name}", f"{full}: 'a/{name}' -> 'b/{name}'") for name in "xyz"]
    with (
        pytest.raises(CheckpointWriteError) as caught,
        telling_of_files("cannot write", tmp_path),
    ):
        raise shutil.Error(failed)
    message = str(caught.value)
    assert message.startswith(f"cannot write {tmp_path}: {full}: 'a/x' -> 'b/x'; ")
    assert "a/y" not in message
