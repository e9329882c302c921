"""Dashboards as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo.dashboards import all_dashboards
from fastvideo.dashboards.files import dashboard_files, stale_files, write_dashboards

if TYPE_CHECKING:
    from pathlib import Path


def test_one_file_for_each_dashboard(tmp_path: Path) -> None:
    """All are written to a new directory, under their uids, and are then up to date."""
    directory = tmp_path / "new" / "dashboards"
    names = [f"{board.uid}.json" for board in all_dashboards()]
    assert [path.name for path in write_dashboards(directory)] == names
    assert stale_files(directory) == []


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    """A file that is right is left alone."""
    write_dashboards(tmp_path)
    assert write_dashboards(tmp_path) == []
    changed = tmp_path / "fastvideo-data.json"
    changed.write_text("{}")
    assert write_dashboards(tmp_path) == [changed]
    assert changed.read_text() == dashboard_files()["fastvideo-data.json"]


def test_what_differs_is_named(tmp_path: Path) -> None:
    """A missing file, a changed one, and one that no dashboard makes."""
    write_dashboards(tmp_path)
    (tmp_path / "fastvideo-data.json").unlink()
    (tmp_path / "fastvideo-step.json").write_text("{}")
    (tmp_path / "mine.json").write_text("{}")
    assert stale_files(tmp_path) == [
        "fastvideo-data.json: missing",
        "fastvideo-step.json: differs from what the code makes",
        "mine.json: no dashboard has this name",
    ]
