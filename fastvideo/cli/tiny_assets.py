"""`fastvideo tiny-assets`: a tiny random model, and data to try things on a CPU, offline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Writes a random Wan model of about 0.6 MB with the layout of a real checkpoint (DIR/model),
sixteen drawn clips encoded with it (DIR/t2v), their captions alone (DIR/text_only) and a
validation file (DIR/validation.json). The same seed gives the same model."""


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "tiny-assets",
        help="write a tiny random model and data for it, offline",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="decides every weight (default: 0)"
    )
    parser.add_argument(
        "--model-only", action="store_true", help="write only the model, to DIR itself"
    )


def run(args: argparse.Namespace) -> int:
    """Writes the files and says where they are.

    Args:
        args: The parsed options.

    Raises:
        DataError: A target exists and was not written by this command.
    """
    from fastvideo.dataset import tiny_assets  # noqa: PLC0415 - imports torch

    if args.model_only:
        written = {"model": tiny_assets.write_tiny_wan_model(args.out, seed=args.seed)}
    else:
        written = tiny_assets.write_tiny_assets(args.out, seed=args.seed)
    for name, path in written.items():
        sys.stdout.write(f"{name}: {path}\n")
    return 0
