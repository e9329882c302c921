"""What activation tracing is asked to do, read from the environment once, when it begins."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastvideo import envs
from fastvideo.errors import ConfigError, did_you_mean
from fastvideo.logger import init_logger
from fastvideo.profiler.ranks import current_rank, current_world_size
from fastvideo.profiler.writable import why_unwritable

logger = init_logger(__name__)

STATISTICS: Final = ("abs_mean", "sum", "min", "max", "mean", "std", "shape", "dtype")
"""What can be asked for; ``shape`` and ``dtype`` are always recorded."""

_SWITCH: Final = "FASTVIDEO_TRACE_ACTIVATIONS"
_OUTPUT: Final = "FASTVIDEO_TRACE_OUTPUT"
_STEPS: Final = "FASTVIDEO_TRACE_STEPS"
_STATS: Final = "FASTVIDEO_TRACE_STATS"
_LAYERS: Final = "FASTVIDEO_TRACE_LAYERS"


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Which activations are recorded, how, and where to.

    Attributes:
        layers: Searched in the names of modules; None: all modules.
        statistics: Numbers to record of every tensor, some of :data:`STATISTICS`.
        steps: Ranges of steps, both ends included; empty: all, and what is outside of steps.
        path: The file of this process.
    """

    layers: re.Pattern[str] | None
    statistics: tuple[str, ...]
    steps: tuple[tuple[int, int], ...]
    path: Path

    @classmethod
    def from_env(cls) -> TraceSettings | None:
        """Reads the ``FASTVIDEO_TRACE_*`` variables.

        Settings without the switch are named in a warning, once.

        Returns:
            The settings; None where activations are not to be traced, or no statistic is known.

        Raises:
            ConfigError: A variable cannot be used; the message names it.
        """
        if not _is_on():
            idle = tuple(
                name for name in (_LAYERS, _STATS, _STEPS, _OUTPUT) if os.environ.get(name)
            )
            if idle and not os.environ.get(_SWITCH) and current_rank() == 0:
                _warn_of_idle(idle)
            return None
        statistics = _statistics(envs.FASTVIDEO_TRACE_STATS)
        if not statistics:
            return None
        return cls(
            layers=_pattern(envs.FASTVIDEO_TRACE_LAYERS),
            statistics=statistics,
            steps=_steps(envs.FASTVIDEO_TRACE_STEPS),
            path=_path(envs.FASTVIDEO_TRACE_OUTPUT),
        )

    def selects_module(self, name: str) -> bool:
        """Tells whether a module is traced.

        Args:
            name: Its name in the model; the model itself, whose name is empty, never is.
        """
        return bool(name) and (self.layers is None or self.layers.search(name) is not None)

    def selects_step(self, step: int | None) -> bool:
        """Tells whether a step is traced.

        Args:
            step: Its number; None outside of steps.
        """
        if not self.steps:
            return True
        return step is not None and any(first <= step <= last for first, last in self.steps)


def check_trace_variables() -> None:
    """Refuses what would be refused when tracing begins, which is after models were loaded.

    Nothing is written, and warnings are left to the beginning of tracing.

    Raises:
        ConfigError: A ``FASTVIDEO_TRACE_*`` variable cannot be used; the message names it.
    """
    if not _is_on():
        return
    _pattern(envs.FASTVIDEO_TRACE_LAYERS)
    _steps(envs.FASTVIDEO_TRACE_STEPS)
    path = _path(envs.FASTVIDEO_TRACE_OUTPUT, quiet=True)
    if path.is_dir():
        reason = f"{path} is a directory"
    elif path.exists():
        reason = "" if os.access(path, os.W_OK) else f"{path} cannot be written to"
    else:
        reason = why_unwritable(path.parent)
    if reason:
        message = (
            f"environment variable {_OUTPUT}={envs.FASTVIDEO_TRACE_OUTPUT!r}: expected a file that "
            f"can be written, but {reason}"
        )
        raise ConfigError(message)


def _is_on() -> bool:
    try:
        return bool(envs.FASTVIDEO_TRACE_ACTIVATIONS)
    except ValueError as error:
        raise ConfigError(str(error)) from error


@functools.cache
def _warn_of_idle(names: tuple[str, ...]) -> None:
    logger.warning(
        "%s: set, but no activations are traced without %s=1; set that to 0 if it is meant so",
        ", ".join(names),
        _SWITCH,
    )


def _statistics(text: str) -> tuple[str, ...]:
    asked = [part.strip() for part in text.split(",") if part.strip()]
    for name in asked:
        if name not in STATISTICS:
            logger.warning(
                "%s: there is no statistic %r, which is left out; there are %s.%s",
                _STATS,
                name,
                ", ".join(STATISTICS),
                did_you_mean(name, STATISTICS),
            )
    found = tuple(name for name in STATISTICS if name in asked)
    if not found:
        logger.warning("%s=%r has no statistic: activations are not traced", _STATS, text)
    return found


def _pattern(text: str) -> re.Pattern[str] | None:
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        message = f"environment variable {_LAYERS}={text!r} is no regular expression: {error}"
        raise ConfigError(message) from error


def _steps(text: str) -> tuple[tuple[int, int], ...]:
    ranges = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        try:
            begin, end = int(first), int(last if dash else first)
        except ValueError:
            begin, end = 1, 0
        if begin > end:
            message = (
                f"environment variable {_STEPS}={text!r}: expected steps such as 0,5 or 10-12, "
                f"got {part!r}"
            )
            raise ConfigError(message)
        ranges.append((begin, end))
    return tuple(ranges)


def _path(text: str, *, quiet: bool = False) -> Path:
    """Returns the file of this process; ranks never share one."""
    rank, pid = str(current_rank()), str(os.getpid())
    template = text or str(Path(tempfile.gettempdir(), "fv_trace_<pid>.jsonl"))
    try:
        path = Path(template.replace("<rank>", rank).replace("<pid>", pid)).expanduser().absolute()
    except RuntimeError as error:
        message = f"environment variable {_OUTPUT}={text!r}: there is no such user"
        raise ConfigError(message) from error
    if current_world_size() > 1 and "<rank>" not in template and "<pid>" not in template:
        path = path.with_name(f"{path.stem}_rank{rank}{path.suffix}")
        if not quiet:
            logger.warning("%s=%s has no <rank>: this rank writes %s", _OUTPUT, text, path)
    return path
