"""`fastvideo dashboards`: the Grafana dashboards that watch a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastvideo.cli.draw_dashboards import add_draw
from fastvideo.cli.help import print_table, show_help
from fastvideo.errors import DataError, import_extra

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

DIRECTORY: Final = Path("deploy/grafana/dashboards")
"""Where the source tree has them, and Grafana's provisioning looks."""

_DESCRIPTION = """\
Nine dashboards of the metrics that every run serves, for Grafana 10.4 or later. They are written
in Python and stand as JSON in deploy/grafana/dashboards; whoever changes one writes them anew."""


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "dashboards",
        help="list, write, check or draw the Grafana dashboards",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.set_defaults(run=lambda _: show_help(parser))
    actions = parser.add_subparsers(title="commands", metavar="ACTION", dest="action")
    _add_list(actions)
    _add_write(actions)
    _add_lint(actions)
    add_draw(actions)


def _add_list(actions: Any) -> None:  # noqa: ANN401 - argparse's type is private
    parser = actions.add_parser(
        "list",
        help="list the dashboards and what each is for",
        description="Lists the dashboards: their uid, which is their id in links, and what each "
        "is for.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run_list)


def _add_write(actions: Any) -> None:  # noqa: ANN401 - argparse's type is private
    parser = actions.add_parser(
        "write",
        help="write them as JSON for Grafana",
        description="Writes a JSON file for each dashboard, and prints which files have changed.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run_write)
    _add_directory(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with status 1 if a file is missing or differs",
    )


def _add_lint(actions: Any) -> None:  # noqa: ANN401 - argparse's type is private
    parser = actions.add_parser(
        "lint",
        help="check the files for mistakes that Grafana would not tell",
        description="Checks dashboards: queries, metric names, units, layout, variables, links. "
        "Exit status 1 if anything is wrong. Needs the extra dev.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=run_lint)
    _add_directory(parser)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=DIRECTORY,
        metavar="DIR",
        help=f"directory of the files (default: {DIRECTORY})",
    )


def run_list(args: argparse.Namespace) -> int:
    """Prints the table of dashboards.

    Args:
        args: Not used.
    """
    del args
    from fastvideo.dashboards import all_dashboards  # noqa: PLC0415 - only this command needs it

    rows = [
        (board.uid, f"{board.title}: {board.question.partition('?')[0]}?")
        for board in all_dashboards()
    ]
    print_table("Grafana dashboards", ("uid", "what it answers"), rows)
    return 0


def run_write(args: argparse.Namespace) -> int:
    """Writes the files, or compares them.

    Args:
        args: The parsed options.
    """
    from fastvideo.dashboards.files import stale_files, write_dashboards  # noqa: PLC0415 - as above

    if args.check:
        problems = stale_files(args.out)
        for problem in problems:
            sys.stdout.write(f"{args.out}/{problem}\n")
        return 1 if problems else 0
    written = write_dashboards(args.out)
    for path in written:
        sys.stdout.write(f"wrote {path}\n")
    if not written:
        sys.stdout.write(f"{args.out} is up to date\n")
    return 0


def run_lint(args: argparse.Namespace) -> int:
    """Prints what is wrong with the files.

    Args:
        args: The parsed options.

    Raises:
        DataError: There is no dashboard, or a file is no JSON.
        MissingExtraError: The parser of PromQL is not installed.
    """
    import_extra("promql_parser", extra="dev")
    from fastvideo.dashboards.lint import lint_all  # noqa: PLC0415 - needs the extra

    boards = [_read(path) for path in sorted(args.out.glob("*.json"))]
    if not boards:
        message = (
            f"no dashboard in {args.out}: run 'fastvideo dashboards write', or name another "
            "directory with --out"
        )
        raise DataError(message)
    problems = lint_all(boards)
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    if not problems:
        sys.stdout.write(f"{len(boards)} dashboards, nothing wrong\n")
    return 1 if problems else 0


def _read(path: Path) -> Mapping[str, Any]:
    try:
        board: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        message = f"{path} is no JSON: {error}"
        raise DataError(message) from error
    return board
