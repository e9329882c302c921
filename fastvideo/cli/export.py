"""`fastvideo export`: from a training checkpoint to a model directory for diffusers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_DESCRIPTION = """\
Writes the model that a checkpoint holds, in the layout of diffusers: the model the role
was started from, with the weights of its transformer replaced. Nothing that is in the
checkpoint is executed."""


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "export",
        help="write a checkpoint as a model directory for diffusers",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="a checkpoint-<step>, or an output directory for its newest checkpoint",
    )
    parser.add_argument(
        "--output-dir", type=Path, required=True, metavar="DIR", help="where to write"
    )
    parser.add_argument(
        "--role", default="student", metavar="ROLE", help="whose weights (default: student)"
    )
    parser.add_argument(
        "--ema", action="store_true", help="take the moving average of the student's weights"
    )
    parser.add_argument(
        "--base-model",
        metavar="MODEL",
        help="directory or name of the model to put the weights into (default: the role's own)",
    )
    parser.add_argument(
        "--dtype",
        default="fp32",
        metavar="TYPE",
        help="type of the weights: fp32, bf16 or fp16 (default: fp32)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a model that is there already"
    )
    parser.add_argument(
        "--verify", action="store_true", help="load the result and compare every weight"
    )


def run(args: argparse.Namespace) -> int:
    """Exports, and says where to.

    Args:
        args: The parsed options.

    Raises:
        FastVideoError: The checkpoint cannot be exported as asked.
    """
    from fastvideo.train.checkpoint.export import (  # noqa: PLC0415 - imports torch
        ExportRequest,
        export_checkpoint,
    )

    written = export_checkpoint(
        ExportRequest(
            checkpoint=args.checkpoint,
            output_dir=args.output_dir.expanduser().absolute(),
            role=args.role,
            ema=args.ema,
            base_model=args.base_model,
            dtype=args.dtype,
            overwrite=args.overwrite,
            verify=args.verify,
        )
    )
    sys.stdout.write(f"model: {written}\n")
    return 0
