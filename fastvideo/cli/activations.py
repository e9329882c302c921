"""`fastvideo activations`: what activation tracing has written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
FASTVIDEO_TRACE_ACTIVATIONS=1 writes statistics of what every layer returns, in training and in
inference."""

_DIFF = """\
Compares two traces of activations and names the first layer in which they part, in the order in
which the layers ran. Numbers are the same if |A - B| <= ATOL + RTOL x magnitude of the tensor.

The exit status is 0 if both are the same, 1 if they differ, and 2 if a file cannot be used."""


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "activations",
        help="find the layer in which two runs part",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.set_defaults(run=lambda _: _show_help(parser))
    actions = parser.add_subparsers(title="commands", metavar="ACTION", dest="action")
    _add_diff(actions)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 0


def _add_diff(actions: Any) -> None:  # noqa: ANN401 - argparse's type is private
    parser = actions.add_parser(
        "diff", help="compare two traces", description=_DIFF, allow_abbrev=False
    )
    parser.set_defaults(run=run_diff)
    parser.add_argument("a", type=Path, metavar="A", help="the trace that is right")
    parser.add_argument("b", type=Path, metavar="B", help="the trace that is compared with it")
    parser.add_argument(
        "--rtol",
        action="append",
        default=[],
        metavar="[TYPE=]X",
        help="relative tolerance, for all types or for one, as in bf16=1e-2; may be repeated "
        "(default: fp64=1e-9, fp32=1e-5, fp16=1e-3, bf16=8e-3)",
    )
    parser.add_argument(
        "--atol",
        action="append",
        default=[],
        metavar="[TYPE=]X",
        help="absolute tolerance of an element, likewise (default: 1e-8)",
    )
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="compare what checkpointing did again in the backward pass, too",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help="show so many layers at most; 0: all (default: %(default)s)",
    )


def run_diff(args: argparse.Namespace) -> int:
    """Compares, and prints what differs.

    Args:
        args: The parsed options.

    Returns:
        0 if the traces are the same, 1 if they differ.

    Raises:
        ConfigError: A tolerance cannot be used.
        DataError: A file cannot be used, or the files have nothing in common.
    """
    from fastvideo.analysis import (  # noqa: PLC0415 - only this command needs it
        ActivationFile,
        Tolerances,
        diff_activations,
    )
    from fastvideo.cli.activation_report import print_report  # noqa: PLC0415 - as above

    tolerances = Tolerances.parse(args.rtol, args.atol)
    files = ActivationFile(args.a), ActivationFile(args.b)
    result = diff_activations(*files, tolerances, with_recompute=args.recompute)
    print_report(sys.stdout, files, result, limit=args.limit)
    return 0 if result.same else 1
