"""`fastvideo regions`: the profiler regions that can be traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastvideo.cli.help import print_table

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "regions",
        help="list the regions that FASTVIDEO_TORCH_PROFILE_REGIONS may name",
        description="Lists the built-in profiler regions and what each of them covers.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table.

    Args:
        args: Not used.
    """
    del args
    from fastvideo.profiler import list_profiler_regions  # noqa: PLC0415 - imports torch

    rows = [(region.short_name, region.description) for region in list_profiler_regions()]
    print_table("Profiler regions", ("region", "what it covers"), rows)
    return 0
