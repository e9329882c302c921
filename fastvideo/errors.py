"""The exception tree of the package, and the words its messages share.

Every error a user can cause is a :class:`FastVideoError` and also the built-in exception that
people already catch for it (``ValueError``, ``ImportError``), so callers need not know us.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType


class FastVideoError(Exception):
    """Base class of every error this package raises on purpose."""


class ConfigError(FastVideoError, ValueError):
    """A setting (YAML, command line or environment) has a value that cannot be used."""


class DataError(FastVideoError, ValueError):
    """A data file is missing, damaged or of another shape than it should be."""


class MissingExtraError(FastVideoError, ImportError):
    """An optional dependency is needed and is not installed."""


def import_extra(module: str, *, extra: str) -> ModuleType:
    """Imports an optional dependency.

    Args:
        module: Dotted name of the module, such as ``"pyarrow.parquet"``.
        extra: The extra of this distribution that installs it, such as ``"train"``.

    Returns:
        The imported module.

    Raises:
        MissingExtraError: The module cannot be found; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        wanted = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != wanted:
            raise
        message = (
            f"{module!r} is not installed; it belongs to the extra {extra!r}: "
            f"run  pip install '.[{extra}]'  in fastvideo's source tree"
        )
        raise MissingExtraError(message, name=module) from error


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as ``1 process`` or ``2 processes``.

    Args:
        number: How many there are.
        noun: The word for one of them; its plural ends in s, or in es after an s.
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def yaml_mistake(error: Exception) -> str:
    """Returns what is wrong with a YAML text in one line, with line and column where it has them.

    Args:
        error: What the parser raised.
    """
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    context, begin = getattr(error, "context", None), getattr(error, "context_mark", None)
    since = f" in what begins in line {begin.line + 1}" if begin is not None else ""
    about = f" ({context}{since})" if context else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{about}"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Returns the candidate that looks most like ``name``, or None if none is close."""
    matches = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Returns ``" Did you mean 'x'?"`` for the nearest candidate, or an empty string."""
    match = nearest(name, candidates)
    return f" Did you mean {match!r}?" if match is not None else ""
