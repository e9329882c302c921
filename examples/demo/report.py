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
SLOWEST = 5


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
    headings = ("step", "step ms", "data ms", "wait %", "generator loss", "critic loss")
    for heading in (*headings, "student"):
        table.add_column(heading, justify="right", no_wrap=True)
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
            "updated" if updated else "",
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


def read_metrics(path: Path) -> dict[str, float]:
    """Returns the samples of a scrape, by name and labels as they were written."""
    lines = path.read_text().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def total(samples: dict[str, float], name: str) -> float:
    """Returns the sum of a metric over all its series."""
    return sum(value for key, value in samples.items() if key.partition("{")[0] == name)


def scraped_table(samples: dict[str, float]) -> Table:
    """Returns what the last scrape of rank 0 says: mean step, wait, the slowest regions."""
    table = Table(title="Scraped from rank 0", title_justify="left")
    for heading in ("", "mean ms", "% of the steps"):
        table.add_column(heading, justify="right" if heading else "left")
    step = "fastvideo_training_step_duration_seconds"
    wait = "fastvideo_training_dataloader_time_seconds"
    steps_s, steps = total(samples, f"{step}_sum"), total(samples, f"{step}_count")
    if not steps:
        return table
    waited_s = total(samples, f"{wait}_sum")
    table.add_row("one step", milliseconds(steps_s / steps), "")
    table.add_row(
        "wait for data", milliseconds(waited_s / steps), number(100 * waited_s / steps_s, 1)
    )
    sums = {
        key.partition('region="')[2].partition('"')[0]: value
        for key, value in samples.items()
        if key.startswith("fastvideo_region_duration_seconds_sum")
    }
    outer = {"training_train", "training_train_one_step", "model_loading"}
    slowest = sorted(set(sums) - outer, key=lambda name: -sums[name])[:SLOWEST]
    for name in slowest:
        table.add_row(name, milliseconds(sums[name] / steps), number(100 * sums[name] / steps_s, 1))
    return table


def where_to_look(run: Path, segments: list[Row]) -> list[tuple[str, str]]:
    """Returns what to open, and why, with paths below ``run``."""
    places = []
    if segments:
        files = segments[0]["files"]
        places.append(("open in ui.perfetto.dev", f"traces/{files['trace']}"))
        places.append(("operators by time", f"traces/{files['summary_txt']}"))
    places.append(("all segments", "traces/segments_rank*.jsonl"))
    places.append(("metrics of every step", "tracker/metrics.jsonl"))
    if (run / "metrics_rank0.txt").is_file():
        places.append(("last scrape", "metrics_rank*.txt"))
    if (run / "spans").is_dir():
        places.append(("spans (OTLP-JSON lines)", "spans/spans_rank*.jsonl"))
    places.extend(("log", log.name) for log in sorted(run.glob("*.log"))[-1:])
    return places


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
    tables = [steps_table(read_lines(metrics)), segments_table(segments)]
    scrape = run / "metrics_rank0.txt"
    if scrape.is_file():
        tables.append(scraped_table(read_metrics(scrape)))
    for table in tables:
        console.print()
        console.print(table)
    console.print(f"\nWhere to look, in [bold]{run}[/bold]", soft_wrap=True)
    for purpose, place in where_to_look(run, segments):
        console.print(f"  {purpose:<24} [bold]{place}[/bold]", soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
