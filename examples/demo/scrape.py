"""Scrapes the ranks of a run while it goes on, and keeps the last answer of each.

Usage: python examples/demo/scrape.py TARGETS_DIR --out DIR

Finds the endpoints as Prometheus does, through the target files that the ranks write, and saves
``metrics_rank<N>.txt`` in DIR. Runs until it is ended.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from pathlib import Path

INTERVAL_S = 0.25
TIMEOUT_S = 2.0


def scrape(target_file: Path) -> str:
    """Returns the metrics of the endpoint that a target file names."""
    (group,) = json.loads(target_file.read_text())
    url = f"{group['labels']['__scheme__']}://{group['targets'][0]}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # noqa: S310 - ours
        return str(response.read().decode())


def main() -> None:
    """Scrapes until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    while True:
        for file in sorted(arguments.targets.glob("*.json")):
            rank = file.stem.rpartition("_rank")[2]
            try:
                text = scrape(file)
            except (OSError, ValueError):
                continue  # a rank that is starting or ending
            saved = arguments.out / f"metrics_rank{rank}.txt"
            partial = saved.with_suffix(".tmp")
            partial.write_text(text)
            partial.replace(saved)
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main()
