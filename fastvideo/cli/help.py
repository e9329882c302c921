"""Help that is pleasant to read: tables and colour with rich, plain argparse text without."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, NoReturn, cast, final

from fastvideo.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import IO

    from _typeshed import SupportsWrite
    from rich.console import Console, RenderableType

MAX_WIDTH = 100
"""Columns beyond which help is not spread; long lines are hard to follow."""

_USAGE_ERROR = 2
_NAME_STYLE = "bold cyan"


@final
class HelpfulParser(argparse.ArgumentParser):
    """A parser whose help is drawn with rich and whose errors suggest the nearest word."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Prints the help; the plain text of argparse where rich is not installed.

        Args:
            file: Where to; standard output by default.
        """
        stream = sys.stdout if file is None else file
        if importlib.util.find_spec("rich") is None:
            stream.write(self.format_help())
        else:
            _draw_help(self, cast("IO[str]", stream))

    def error(self, message: str) -> NoReturn:
        """Reports a wrong command line in two lines and exits with status 2.

        Args:
            message: What argparse found.
        """
        hint = _suggest_command(self, message)
        self.exit(_USAGE_ERROR, f"error: {message}{hint}\nRun '{self.prog} --help' for help.\n")

    def error_of(self, args: argparse.Namespace, message: str) -> NoReturn:
        """Reports a wrong command line as the subcommand that was given, as `error` does.

        Args:
            args: What was parsed of it.
            message: What is wrong.
        """
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse's only handle
                given = action.choices.get(getattr(args, action.dest, None) or "")
                if isinstance(given, HelpfulParser):
                    given.error_of(args, message)
        self.error(message)


def show_help(parser: argparse.ArgumentParser) -> int:
    """Prints the help of a command that has commands of its own, where none of these is given.

    Args:
        parser: The parser of the command.

    Returns:
        The exit status of success.
    """
    parser.print_help()
    return 0


def make_console(stream: IO[str] | None = None, *, widest: int | None = MAX_WIDTH) -> Console:
    """Returns a rich console for what this command prints.

    Args:
        stream: Where to draw; standard output by default.
        widest: Columns at most; None: as many as the terminal has.

    Raises:
        ModuleNotFoundError: rich is not installed.
    """
    from rich.console import Console  # noqa: PLC0415 - optional, and only help needs it

    class OurConsole(Console):
        def on_broken_pipe(self) -> None:
            """Leaves it to the command line, where rich would exit with status 1."""
            raise BrokenPipeError

    console = OurConsole(file=stream, highlight=False)
    if widest is not None and console.width > widest:
        console = OurConsole(file=stream, highlight=False, width=widest)
    return console


def print_table(title: str, header: tuple[str, str], rows: Sequence[tuple[str, ...]]) -> None:
    """Prints a table of two columns: drawn with rich, or as lines with tabs where rich is missing.

    Args:
        title: One line above the table.
        header: Names of the columns.
        rows: The name of the row, which is never broken; the second cell; and optionally a line
            of explanation below the name.
    """
    if importlib.util.find_spec("rich") is None:
        sys.stdout.write("\n".join([title, *("\t".join(cells) for cells in (header, *rows)), ""]))
        return
    from rich import box  # noqa: PLC0415 - optional
    from rich.console import Group  # noqa: PLC0415 - optional
    from rich.padding import Padding  # noqa: PLC0415 - optional
    from rich.table import Table  # noqa: PLC0415 - optional
    from rich.text import Text  # noqa: PLC0415 - optional

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.title_style = "bold"
    longest = max((len(row[0]) for row in rows), default=0)
    table.add_column(header[0], min_width=longest)
    table.add_column(header[1], overflow="fold")
    for name, cell, *explanation in rows:
        below = (Padding(Text(line), (0, 0, 0, 2)) for line in explanation)
        table.add_row(Group(Text(name, style=_NAME_STYLE), *below), Text(cell))
    make_console().print(table)


def _draw_help(parser: argparse.ArgumentParser, stream: IO[str]) -> None:
    from rich.table import Table  # noqa: PLC0415 - optional
    from rich.text import Text  # noqa: PLC0415 - optional

    console = make_console(stream)
    words = parser.format_usage().removeprefix("usage:").split()
    usage = Table.grid(padding=(0, 2))
    usage.add_row(Text("Usage", style="bold"), Text(" ".join(words)))
    console.print(usage)
    for paragraph in _paragraphs(parser.description or ""):
        console.print("", Text(paragraph), sep="\n")
    for title, rows in _sections(parser):
        console.print("", _two_columns(title, rows), sep="\n")
    if parser.epilog:
        console.print("", Text(parser.epilog.rstrip()), sep="\n")


def _paragraphs(text: str) -> Iterator[str]:
    """Yields paragraphs as single lines, for the console to wrap; indented ones as they are."""
    for paragraph in text.strip().split("\n\n"):
        lines = paragraph.splitlines()
        indented = any(line.startswith(" ") for line in lines[1:])
        yield paragraph if indented else " ".join(lines)


def _two_columns(title: str, rows: list[tuple[str, str]]) -> RenderableType:
    from rich import box  # noqa: PLC0415 - optional
    from rich.panel import Panel  # noqa: PLC0415 - optional
    from rich.table import Table  # noqa: PLC0415 - optional
    from rich.text import Text  # noqa: PLC0415 - optional

    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style=_NAME_STYLE, no_wrap=True)
    grid.add_column(ratio=1)
    for name, text in rows:
        grid.add_row(Text(name), Text(text))
    return Panel(grid, title=title, title_align="left", box=box.ROUNDED, border_style="dim")


def _sections(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields a title and rows for each group of arguments that has any."""
    formatter = parser.formatter_class(prog=parser.prog)
    groups = list(parser._action_groups)  # noqa: SLF001 - argparse has no public way to list them
    groups.sort(key=lambda group: group is not parser._subparsers)  # noqa: SLF001 - commands first
    for group in groups:
        rows: list[tuple[str, str]] = []
        for action in group._group_actions:  # noqa: SLF001 - the same
            rows.extend(_rows(action, formatter))
        if rows:
            yield (group.title or "").capitalize(), rows


def _rows(
    action: argparse.Action,
    formatter: argparse.HelpFormatter,
) -> Iterator[tuple[str, str]]:
    if action.help == argparse.SUPPRESS:
        return
    if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse's only handle
        for choice in action._get_subactions():  # noqa: SLF001 - the same
            yield choice.dest, choice.help or ""
        return
    name = formatter._format_action_invocation(action)  # noqa: SLF001 - joins flags and metavar
    yield name, formatter._expand_help(action) if action.help else ""  # noqa: SLF001 - %(default)s


def _suggest_command(parser: argparse.ArgumentParser, message: str) -> str:
    """Returns a suggestion where argparse complains about an unknown command or option."""
    given = message.partition("invalid choice: ")[2].split(" ")[0].strip("'")
    if not given and "unrecognized arguments: " in message:
        given = message.partition("unrecognized arguments: ")[2].split(" ")[0].partition("=")[0]
    words: list[Any] = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list them
        words += [*action.option_strings, *(action.choices or ())]
    return did_you_mean(given, map(str, words)) if given else ""
