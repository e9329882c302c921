"""What a person sees while a run goes on: a live line on a terminal, a few log lines elsewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from rich.console import Console
    from rich.live import Live

logger = init_logger(__name__)

FIRST_INTERVAL_S: Final = 5.0
LONGEST_INTERVAL_S: Final = 60.0
_REFRESHES_PER_S: Final = 2.0
_SMOOTHING: Final = 0.1  # weight of the newest step in the step time that the ETA uses


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a run is.

    Attributes:
        step: The step that ended last.
        last_step: The step that ends the run.
        loss: ``total_loss`` of that step, if it has one.
        step_s: Seconds that the step took.
        wait_s: Seconds of it that were spent waiting for data, if measured.
        eta_s: Seconds to go, estimated from recent steps.
    """

    step: int
    last_step: int
    loss: float | None
    step_s: float
    wait_s: float | None
    eta_s: float


class Progress(Protocol):
    """Shows how far a run is; used as a context manager around the loop."""

    def update(self, step: int, scalars: Mapping[str, float]) -> None:
        """Takes note of a finished step; must cost next to nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class NoProgress(contextlib.AbstractContextManager["NoProgress"]):
    """Shows nothing: for ranks other than 0."""

    def update(self, step: int, scalars: Mapping[str, float]) -> None:
        """Does nothing."""

    def __exit__(self, *details: object) -> None:
        """Does nothing."""


class _Pace:
    """Turns a step's scalars into a snapshot; the end is estimated from a moving average."""

    def __init__(self, steps: range, clock: Callable[[], float]) -> None:
        self._last_step = steps[-1]
        self._clock = clock
        self._previous = clock()
        self._mean_s: float | None = None

    def snapshot(self, step: int, scalars: Mapping[str, float]) -> Snapshot:
        """Returns where the run is after ``step``, whose pace includes what lies between steps."""
        now = self._clock()
        spent, self._previous = now - self._previous, now
        mean = spent if self._mean_s is None else self._mean_s
        self._mean_s = mean + _SMOOTHING * (spent - mean)
        return Snapshot(
            step=step,
            last_step=self._last_step,
            loss=scalars.get("total_loss"),
            step_s=scalars.get("step_time_sec", spent),
            wait_s=scalars.get("dataloader_time_sec"),
            eta_s=self._mean_s * (self._last_step - step),
        )


class LogProgress(contextlib.AbstractContextManager["LogProgress"]):
    """Logs a line after the first step, after the last, and now and then between.

    The pause between lines doubles from 5 s up to a minute, so a short run shows something and a
    long one does not fill its log.

    Args:
        steps: The steps of the run.
        clock: Monotonic seconds.
        log: Where lines go.
    """

    def __init__(
        self,
        steps: range,
        *,
        clock: Callable[[], float] = monotonic,
        log: logging.Logger = logger,
    ) -> None:
        self._pace = _Pace(steps, clock)
        self._clock = clock
        self._log = log
        self._last_step = steps[-1]
        self._interval_s = FIRST_INTERVAL_S
        self._next_at = -float("inf")

    def update(self, step: int, scalars: Mapping[str, float]) -> None:
        """Logs the step if it is time to."""
        state = self._pace.snapshot(step, scalars)
        now = self._clock()
        if now < self._next_at and step != self._last_step:
            return
        if self._next_at > 0.0:
            self._interval_s = min(2.0 * self._interval_s, LONGEST_INTERVAL_S)
        self._next_at = now + self._interval_s
        self._log.info("%s", describe(state))

    def __exit__(self, *details: object) -> None:
        """Does nothing: every line is complete."""


class LiveProgress(contextlib.AbstractContextManager["LiveProgress"]):
    """Keeps one line of a terminal up to date.

    A thread draws it twice a second. The training thread only leaves the newest snapshot where the
    thread looks, so a step costs the same whatever the terminal does. Log lines appear above it.

    Args:
        steps: The steps of the run.
        console: The terminal; standard error if None.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        steps: range,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._steps = steps
        self._pace = _Pace(steps, clock)
        self._clock = clock
        self._console = console
        self._live: Live | None = None
        self._bar: Any = None
        self._state: Snapshot | None = None
        self._restore = contextlib.ExitStack()

    def update(self, step: int, scalars: Mapping[str, float]) -> None:
        """Leaves the step for the drawing thread."""
        self._state = self._pace.snapshot(step, scalars)

    def __enter__(self) -> Self:
        from rich.console import Console  # noqa: PLC0415 - an extra, and only for terminals
        from rich.live import Live  # noqa: PLC0415
        from rich.progress_bar import ProgressBar  # noqa: PLC0415

        self._bar = ProgressBar(total=len(self._steps), width=24)
        self._live = Live(
            console=self._console or Console(stderr=True),
            get_renderable=self._line,
            refresh_per_second=_REFRESHES_PER_S,
        )
        self._live.start(refresh=True)
        self._restore.enter_context(_log_through(sys.stderr))
        return self

    def __exit__(self, *details: object) -> None:
        """Draws the last state and gives the terminal back."""
        self._restore.close()
        if self._live is not None:
            self._live.stop()

    def _line(self) -> Any:  # noqa: ANN401 - a rich renderable
        from rich.columns import Columns  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415

        state = self._state
        done = 0 if state is None else state.step - self._steps[0] + 1
        self._bar.update(completed=done)
        text = "starting the first step" if state is None else describe(state)
        return Columns([self._bar, Text(text, no_wrap=True, overflow="ellipsis")])


def make_progress(steps: range, *, enabled: bool = True) -> Progress:
    """Returns what suits this process: a live line on a terminal, log lines otherwise.

    Args:
        steps: The steps of the run, at least one.
        enabled: False for a process that shows nothing.
    """
    if not enabled:
        return NoProgress()
    terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if terminal and importlib.util.find_spec("rich") is not None:
        return LiveProgress(steps)
    return LogProgress(steps)


def describe(state: Snapshot) -> str:
    """Returns a snapshot in one line."""
    parts = [f"step {state.step}/{state.last_step}"]
    if state.loss is not None:
        parts.append(f"loss {state.loss:.4g}")
    parts.append(f"{_seconds(state.step_s)}/step")
    if state.wait_s is not None:
        parts.append(f"waited for data {_seconds(state.wait_s)}")
    if state.step < state.last_step:
        parts.append(f"{_duration(state.eta_s)} left")
    return " · ".join(parts)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1.0 else f"{value * 1000:.1f} ms"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:  # noqa: PLR2004 - hours of a day
        return f"{hours // 24}d {hours % 24:02d}h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextlib.contextmanager
def _log_through(stream: Any) -> Iterator[None]:  # noqa: ANN401 - rich's stand-in for a stream
    """Makes the package's log handlers write to ``stream``: rich's, which knows about the line."""
    real = (sys.__stderr__, sys.__stdout__)
    moved = [
        (handler, handler.setStream(stream))
        for name in (None, "fastvideo")
        for handler in logging.getLogger(name).handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in real
    ]
    try:
        yield
    finally:
        for handler, old in moved:
            handler.setStream(old)
