"""`fastvideo envs`: every environment variable of the package and its value here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from fastvideo import envs
from fastvideo.cli.help import print_table

if TYPE_CHECKING:
    import argparse

_HIDDEN = "(set, not shown)"


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "envs",
        help="list the environment variables and their values here",
        description="Lists every FASTVIDEO_* variable. Values of secrets are never shown. "
        "Names that are set and almost those of variables are named on standard error.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table.

    Args:
        args: Not used.
    """
    del args
    rows = [
        (variable.name, describe_value(variable), variable.help)
        for variable in envs.VARIABLES.values()
    ]
    print_table("Environment variables", ("variable", "value"), rows)
    sys.stdout.flush()
    for given, meant in envs.misspelled_variables().items():
        sys.stderr.write(f"warning: {given} is set, but is no variable: is {meant} meant?\n")
    return 0


def describe_value(variable: envs.EnvVar) -> str:
    """Returns the value in force, for a person; a secret's value is never part of it.

    Args:
        variable: The declaration.
    """
    text = os.environ.get(variable.name, "")
    if not text:
        default = "0" if variable.default is False else str(variable.default)
        return f"{default} (default)" if default else "(not set)"
    if variable.secret:
        return _HIDDEN
    try:
        variable.read()
    except ValueError:
        return f"{text} (not a value of type {variable.kind})"
    return text
