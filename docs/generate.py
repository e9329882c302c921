"""Writes the reference tables from the code: ``python docs/generate.py`` (``--check`` compares)."""

from __future__ import annotations

import sys
from pathlib import Path

from fastvideo import envs
from fastvideo.profiler.catalogue import BUILT_IN

REFERENCE = Path(__file__).parent / "reference"


def environment_page() -> str:
    """Returns the page on environment variables."""
    rows = []
    for variable in envs.VARIABLES.values():
        default = variable.default
        shown = int(default) if isinstance(default, bool) else default
        cell = "(empty)" if shown == "" else f"`{shown}`"
        rows.append(f"| `{variable.name}` | {variable.kind} | {cell} | {variable.help} |")
    return "\n".join(
        [
            "# Environment variables",
            "",
            "Every variable that this package reads. A variable that is set to nothing counts as",
            "unset. `fastvideo envs` prints the same table with the values of your shell.",
            "",
            "| variable | type | default | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def regions_page() -> str:
    """Returns the page on the built-in regions."""
    rows = [f"| `{name}` | {text} |" for name, text in BUILT_IN.items()]
    return "\n".join(
        [
            "# Regions",
            "",
            "The built-in regions, in the order in which a reader of a run meets them. Wherever",
            "a person types a name, the prefix `profiler_region_` is optional. Regions of",
            "validation, checkpoints and inference are registered already; the code that enters",
            "them comes with those features (see the changelog).",
            "",
            "| region | covers |",
            "|---|---|",
            *rows,
            "",
        ]
    )


PAGES = {"environment.md": environment_page, "regions.md": regions_page}


def main(arguments: list[str]) -> int:
    """Writes the pages, or with ``--check`` reports those that differ from the code."""
    stale = []
    for name, build in PAGES.items():
        path = REFERENCE / name
        if "--check" not in arguments:
            path.write_text(build())
        elif not path.is_file() or path.read_text() != build():
            stale.append(name)
    if stale:
        sys.stderr.write(f"not up to date: {', '.join(stale)}; run python docs/generate.py\n")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
