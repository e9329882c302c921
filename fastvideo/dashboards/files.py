"""The dashboards as files, which Grafana provisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo.dashboards.catalogue import all_dashboards
from fastvideo.dashboards.grafana_json import to_text

if TYPE_CHECKING:
    from pathlib import Path


def dashboard_files() -> dict[str, str]:
    """Returns the text of each dashboard by the name of its file."""
    return {f"{board.uid}.json": to_text(board) for board in all_dashboards()}


def write_dashboards(directory: Path) -> list[Path]:
    """Writes all dashboards; files that are as they should be are left alone.

    Args:
        directory: Where to; made if it is not there.

    Returns:
        The files that were written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in dashboard_files().items():
        path = directory / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written


def stale_files(directory: Path) -> list[str]:
    """Compares a directory with the dashboards.

    Args:
        directory: Where they should be.

    Returns:
        A line for each file that is missing, differs, or is no dashboard of this package; none
        where all is as :func:`write_dashboards` leaves it.
    """
    wanted = dashboard_files()
    found = {path.name: path for path in sorted(directory.glob("*.json"))}
    problems = [f"{name}: missing" for name in wanted if name not in found]
    for name, path in found.items():
        if name not in wanted:
            problems.append(f"{name}: no dashboard has this name")
        elif path.read_text(encoding="utf-8") != wanted[name]:
            problems.append(f"{name}: differs from what the code makes")
    return problems
