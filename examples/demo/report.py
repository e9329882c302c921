"""Prints what a run did and where to look: steps, trace segments, files to open.

Usage: python examples/demo/report.py RUN_DIR

``RUN_DIR`` is the run's ``training.checkpoint.output_dir``, with ``traces`` below it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


def read_lines(path: Path) -> list[Row]:
    """Returns the objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def number(value: float | None, digits: int = 3) -> str:
    """Returns a fixed-point number, or a dash when there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def milliseconds(seconds: float | None) -> str:
    """Returns seconds as milliseconds."""
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def steps_table(rows: list[Row]) -> Table:
    """Returns one line per step: its time, the wait for data, the losses."""
    table = Table(title="Steps (rank 0)", title_justify="left")
    for heading in ("step", "step ms", "dataloader ms", "wait %", "generator loss", "critic loss"):
        table.add_column(heading, justify="right")
    table.add_column("student updated")
    for row in rows:
        step_s, wait_s = row.get("step_time_sec"), row.get("dataloader_time_sec")
        share = 100 * wait_s / step_s if step_s and wait_s is not None else None
        updated = bool(row.get("update_student"))
        table.add_row(
            str(row["step"]),
            milliseconds(step_s),
            milliseconds(wait_s),
            number(share, 1),
            number(row.get("generator_loss")) if updated else "-",
            number(row.get("fake_score_loss")),
            "yes" if updated else "no",
        )
    return table


def segments_table(segments: list[Row]) -> Table:
    """Returns one line per trace segment of every rank."""
    table = Table(title="Kernel-trace segments", title_justify="left")
    table.add_column("rank", justify="right")
    table.add_column("region")
    for heading in ("wall ms", "stall ms", "KiB"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for row in segments:
        table.add_row(
            str(row["rank"]),
            row["region"],
            milliseconds(row["wall_s"]),
            milliseconds(row["stall_s"]),
            f"{row['bytes'] / 1024:.0f}",
            row["status"],
        )
    return table


def where_to_look(run: Path, segments: list[Row]) -> Table:
    """Returns what to open, and with what."""
    table = Table(title="Where to look", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    traces = run / "traces"
    if segments:
        first = segments[0]
        table.add_row("open in ui.perfetto.dev", str(traces / first["files"]["trace"]))
        table.add_row("operators by time", str(traces / first["files"]["summary_txt"]))
    table.add_row("all segments", str(traces / "segments_rank*.jsonl"))
    table.add_row("metrics of every step", str(run / "tracker" / "metrics.jsonl"))
    logs = sorted(run.glob("*.log"))
    if logs:
        table.add_row("log", str(logs[-1]))
    return table


def main() -> int:
    """Prints the tables of the run named on the command line."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and one argument
        print(__doc__, file=sys.stderr)
        return 2
    run = Path(sys.argv[1])
    metrics = run / "tracker" / "metrics.jsonl"
    if not metrics.is_file():
        print(f"{metrics} does not exist: is {run} the output_dir of a run?", file=sys.stderr)
        return 1
    segments = [
        row
        for index in sorted((run / "traces").glob("segments_rank*.jsonl"))
        for row in read_lines(index)
    ]
    console = Console()
    for table in (
        steps_table(read_lines(metrics)),
        segments_table(segments),
        where_to_look(run, segments),
    ):
        console.print()
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
