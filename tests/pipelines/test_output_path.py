"""Names of video files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastvideo.errors import ConfigError
from fastvideo.pipelines.output_path import check_output_path, output_path

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
    ],
)
def test_a_folder_gets_files_named_after_prompts(tmp_path: Path, prompt: str, name: str) -> None:
    """Characters that file systems refuse are left out, and long names are cut."""
    path = output_path(str(tmp_path / "new" / "videos"), prompt)
    assert path == tmp_path / "new" / "videos" / name
    path.touch()


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    """Numbers follow the name where it is taken, for folders and for files."""
    names = []
    for wanted in (str(tmp_path), str(tmp_path), str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")):
        path = output_path(wanted, "a")
        path.touch()
        names.append(path.name)
    assert names == ["a.mp4", "a_1.mp4", "a_2.mp4", "b.mp4"]


def test_a_file_name_is_cleaned_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The name that is used is said."""
    assert output_path(str(tmp_path / "wh?t.mp4"), "x").name == "wht.mp4"
    assert "'wh?t' has invalid characters; it becomes 'wht'" in caplog.text


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    """It would become a folder of that name; one that is there already is a folder."""
    for fine in ("outputs/", "a.mp4", "a.MP4", "run.2", str(tmp_path)):
        check_output_path("output_path", fine)
    wanted = tmp_path / "a.AVI"
    with pytest.raises(ConfigError, match=r"^output_path: expected a folder, or a file that ends"):
        check_output_path("output_path", str(wanted))
    wanted.mkdir()
    check_output_path("output_path", str(wanted))
