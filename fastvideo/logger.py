"""Loggers of the package: standard library logging, configured by programs and never by imports."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = "fastvideo"
_FORMAT = "%(levelname)s %(asctime)s [%(name)s] %(message)s"
_DATE_FORMAT = "%m-%d %H:%M:%S"


def init_logger(name: str) -> logging.Logger:
    """Returns the logger called ``name``; attaches nothing and sets no level.

    Args:
        name: Usually ``__name__``; names inside ``fastvideo`` share its configuration.
    """
    return logging.getLogger(name)


def configure_logging(
    level: str = "INFO", *, rank: int = 0, formatter: logging.Formatter | None = None
) -> None:
    """Makes the package's records visible on standard error. Only programs call this.

    Calling it again replaces the handler that an earlier call installed, so it is idempotent.

    Args:
        level: Name of the lowest level that is shown.
        rank: Global rank of this process; ranks other than 0 prefix their lines with it and
            show warnings and worse only, unless ``level`` is ``"DEBUG"``.
        formatter: Writes the lines; None: text with the level, the time and the logger's name.

    Raises:
        ValueError: ``level`` is not the name of a logging level.
    """
    resolved = logging.getLevelNamesMapping().get(level.upper())
    if resolved is None:
        names = ", ".join(sorted(logging.getLevelNamesMapping()))
        message = f"unknown log level {level!r}; expected one of {names}"
        raise ValueError(message)
    if rank != 0 and resolved > logging.DEBUG:
        resolved = max(resolved, logging.WARNING)
    prefix = f"[rank {rank}] " if rank else ""
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(_ROOT)
    handler.setFormatter(formatter or logging.Formatter(prefix + _FORMAT, _DATE_FORMAT))
    root = logging.getLogger(_ROOT)
    for old in [h for h in root.handlers if h.get_name() == _ROOT]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(resolved)
    root.propagate = False


@contextmanager
def errors_only() -> Iterator[None]:
    """Leaves out what the package logs below errors, where somebody else will say it again."""
    root = logging.getLogger(_ROOT)
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
