"""`fastvideo COMMAND …`: collects the commands and runs one.

Each command is a module with `add_parser(subparsers)`, which sets `run` on its parser. Nothing
heavy is imported before a command runs, so help appears at once.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

import fastvideo
from fastvideo.cli import (
    activations,
    dashboards,
    export,
    generate,
    preprocess,
    show_envs,
    show_regions,
    tiny_assets,
    train,
)
from fastvideo.cli.help import HelpfulParser
from fastvideo.errors import FastVideoError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = (
    train,
    generate,
    export,
    preprocess,
    tiny_assets,
    show_envs,
    show_regions,
    dashboards,
    activations,
)
"""The modules of the commands, in the order help lists them."""

_DESCRIPTION = "Train video diffusion models and see where every step's time goes."
_EPILOG = "Each command has its own help: fastvideo COMMAND --help"
_USAGE_ERROR = 2
_BROKEN_PIPE = 128 + 13  # as a shell reports a program that SIGPIPE ended
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def build_parser() -> HelpfulParser:
    """Returns the parser of the whole command line."""
    parser = HelpfulParser(
        prog="fastvideo", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"fastvideo {fastvideo.__version__}")
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", parser_class=HelpfulParser
    )
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        argv: The words after `fastvideo`; by default this process's.

    Returns:
        The exit status: 0 for success, 2 for a mistake of the caller or a file that cannot be read
        or written, which is one line on standard error; 130 after Ctrl-C, and 141 where nobody
        reads the output any more. Anything unexpected leaves as an exception
        with its traceback.
    """
    _escape_what_cannot_be_printed()
    parser = build_parser()
    args, rest = parser.parse_known_args(sys.argv[1:] if argv is None else list(argv))
    if args.command is None:
        parser.print_help()
        return 0
    if rest and not getattr(args, "takes_overrides", False):
        parser.error_of(args, f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    try:
        status = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        return _BROKEN_PIPE
    except (FastVideoError, FileNotFoundError) as error:
        sys.stderr.write(f"error: {error}\n")
        return _USAGE_ERROR
    except OSError as error:
        if error.filename is None and error.errno not in _DISK_ERRORS:
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        sys.stderr.write(f"error: {place}{error.strerror}\n")
        return _USAGE_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    return status


def _escape_what_cannot_be_printed() -> None:
    """Lets no name of a file or layer end a command in a terminal of another encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """Lets the interpreter flush its output in peace, which nobody reads any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
