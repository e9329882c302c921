"""`fastvideo activations`: what activation tracing has written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fastvideo.cli.help import show_help
from fastvideo.errors import ConfigError

_DESCRIPTION = """\
FASTVIDEO_TRACE_ACTIVATIONS=1 writes statistics of what every layer returns, in training and in
inference."""

_DIFF = """\
Compares two traces of activations and names the first layer in which they part, in the order in
which the layers ran. Numbers are the same if |A - B| <= ATOL + RTOL x magnitude of the tensor.
What one trace was told to leave out (FASTVIDEO_TRACE_LAYERS, _STEPS) is no difference.

The exit status is 0 if both are the same, 1 if they differ, and 2 if a file cannot be used."""


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "activations",
        help="find the layer in which two runs part",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.set_defaults(run=lambda _: show_help(parser))
    actions = parser.add_subparsers(title="commands", metavar="ACTION", dest="action")
    _add_diff(actions)


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
        "--map",
        action="append",
        default=[],
        metavar="ROLE_A=ROLE_B",
        help="compare the model of one role in A with that of another in B, as in "
        "transformer=student, and no other models; may be repeated",
    )
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="compare what checkpointing did again in the backward pass, too",
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        default=20,
        metavar="N",
        help="show so many layers at most; 0: all (default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as one JSON object, of all layers",
    )


def _limit(text: str) -> int:
    if not text.isdecimal():
        message = f"expected a whole number of at least 0, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def run_diff(args: argparse.Namespace) -> int:
    """Compares, and prints what differs.

    Args:
        args: The parsed options.

    Returns:
        0 if the traces are the same, 1 if they differ.

    Raises:
        ConfigError: A tolerance or a pair of roles cannot be used.
        DataError: A file cannot be used, or the files have nothing in common.
    """
    from fastvideo.analysis import (  # noqa: PLC0415 - only this command needs it
        ActivationFile,
        Tolerances,
        diff_activations,
    )
    from fastvideo.cli.activation_json import json_report  # noqa: PLC0415 - as above
    from fastvideo.cli.activation_report import print_report  # noqa: PLC0415 - as above

    tolerances = Tolerances.parse(args.rtol, args.atol)
    roles = _roles(args.map)
    files = ActivationFile(args.a), ActivationFile(args.b)
    result = diff_activations(*files, tolerances, with_recompute=args.recompute, roles=roles)
    if args.json:
        sys.stdout.write(json_report(files, result))
    else:
        print_report(sys.stdout, files, result, limit=args.limit)
    return 0 if result.same else 1


def _roles(texts: list[str]) -> dict[str, str]:
    """Reads pairs of roles as they are typed.

    Raises:
        ConfigError: One is no pair, or a role is in two of them.
    """
    roles: dict[str, str] = {}
    for text in texts:
        ours, equals, theirs = text.partition("=")
        if not equals:
            message = f"--map {text}: expected two roles, as in --map transformer=student"
            raise ConfigError(message)
        if ours in roles or theirs in roles.values():
            message = f"--map {text}: each role may be compared with one other only"
            raise ConfigError(message)
        roles[ours] = theirs
    return roles
