"""Names of video files."""

from __future__ import annotations

import errno
import itertools
import os
import re
from typing import TYPE_CHECKING

import pytest

from fastvideo.errors import ConfigError
from fastvideo.pipelines.output_path import check_output_path, make_output_folder, output_paths
from fastvideo.pipelines.video_file import VideoWriteError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("a red ball", "a red ball.mp4"),
        ('a/b\\c:d*e?f"g<h>i|j', "abcdefghij.mp4"),
        ("  many   spaces \n here. ", "many spaces here.mp4"),
        ("...", "output.mp4"),
        ("???", "output.mp4"),
        ("x" * 150, "x" * 100 + ".mp4"),
        ("雪" * 100, "雪" * 66 + ".mp4"),
        ("a\x7f\x9f\u202eb\x85c😀\udcff", "ab c😀.mp4"),
    ],
)
def test_a_folder_gets_files_named_after_prompts(tmp_path: Path, prompt: str, name: str) -> None:
    """Characters that file systems refuse are left out, and long names are cut."""
    path = next(output_paths(str(tmp_path), prompt))
    assert path == tmp_path / name
    path.touch()


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    """Numbers follow the name where it is taken, for folders and for files."""
    names = []
    for wanted in (str(tmp_path), str(tmp_path), str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")):
        path = next(output_paths(wanted, "a"))
        path.touch()
        names.append(path.name)
    assert names == ["a.mp4", "a_1.mp4", "a_2.mp4", "b.mp4"]
    further = itertools.islice(output_paths(str(tmp_path), "a"), 2)
    assert [path.name for path in further] == ["a_3.mp4", "a_4.mp4"]


def test_a_file_name_is_cleaned_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name that is used is said."""
    assert next(output_paths(str(tmp_path / "wh?t.mp4"), "x")).name == "wht.mp4"
    assert "'wh?t' has invalid characters; it becomes 'wht'" in caplog.text


def test_a_folder_may_end_like_a_video(tmp_path: Path) -> None:
    """If it is there."""
    folder = tmp_path / "run.mp4"
    folder.mkdir()
    assert next(output_paths(str(folder), "a")) == folder / "a.mp4"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("", "output_path: expected a folder, or a file that ends in .mp4, got ''"),
        ("outputs/.mp4", "output_path: expected a folder, or a file that ends in .mp4"),
        ("~no such user/v.mp4", "output_path: there is no such user in '~no such user/v.mp4'"),
    ],
)
def test_what_cannot_be_meant_is_refused(wanted: str, message: str) -> None:
    """An empty variable does not become the current directory."""
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_output_path("output_path", wanted)


def _refuse(*_: object) -> str:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_place_without_room_for_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beforehand: behind a file, in a folder that is read-only, in one that cannot be made.

    Where there is room, trying leaves nothing behind.
    """
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling"):
        with pytest.raises(VideoWriteError, match=rf"cannot be used: .*/{name} is no directory"):
            check_output_path("output_path", str(tmp_path / name / "new" / "v.mp4"))
    with pytest.raises(VideoWriteError, match=r"^output_path '/proc/new/v\.mp4' cannot be used: "):
        make_output_folder("output_path", "/proc/new/v.mp4")
    make_output_folder("output_path", str(tmp_path / "new" / "v.mp4"))
    assert (tmp_path / "new").is_dir()
    with pytest.raises(VideoWriteError, match=r"cannot be used: /proc cannot be written to"):
        check_output_path("output_path", "/proc/new")
    before = sorted(tmp_path.iterdir())
    check_output_path("output_path", str(tmp_path / "newer"))
    assert sorted(tmp_path.iterdir()) == before
    monkeypatch.setattr("tempfile.mkdtemp", _refuse)
    with pytest.raises(VideoWriteError, match=rf"{tmp_path} cannot be written to \(Read-only"):
        check_output_path("output_path", str(tmp_path / "newer"))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    """It would become a folder of that name; one that is there already is a folder."""
    for fine in ("outputs/", "a.mp4", "a.MP4", "run.2", str(tmp_path)):
        check_output_path("output_path", fine)
    wanted = tmp_path / "a.AVI"
    with pytest.raises(ConfigError, match=r"^output_path: expected a folder, or a file that ends"):
        check_output_path("output_path", str(wanted))
    wanted.mkdir()
    check_output_path("output_path", str(wanted))
