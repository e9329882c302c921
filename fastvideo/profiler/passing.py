"""Exceptions of the traced program that have to pass through telemetry.

A signal handler of the program runs in the middle of whatever its thread does, which can be a line
of a sink. What it raises is the program's, and must not be taken for a fault of the sink.
"""

from __future__ import annotations

from typing import Final

_MARK: Final = "__fastvideo_passes__"


def let_pass(error: BaseException) -> None:
    """Marks an exception of the program, which nobody here may keep."""
    setattr(error, _MARK, True)


def must_pass(error: BaseException) -> bool:
    """Tells whether ``error`` is the program's and has to reach it."""
    return getattr(error, _MARK, False) is True
