"""How long denoising steps take, and what a person sees of them."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import torch

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable


logger = init_logger(__name__)


class StepClock:
    """Notes when each denoising step ends, without making the host wait for the device.

    Args:
        device: Where the steps run. On CUDA, events are recorded and read later.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._moments: list[Any] = []

    def note(self) -> None:
        """Notes the present moment of the device."""
        if self._cuda:
            event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._moments.append(event)
        else:
            self._moments.append(perf_counter())

    def durations_s(self) -> list[float]:
        """Returns the times between the moments, in seconds; waits for the device."""
        if not self._cuda:
            return [after - before for before, after in pairwise(self._moments)]
        if self._moments:
            self._moments[-1].synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(self._moments)]


class StepBar:
    """A bar over the denoising steps of several requests, on a terminal; elsewhere lines of log.

    Args:
        enabled: Whether there is one; None: where standard error is a terminal and rich is there.

    Attributes:
        is_shown: Whether there is one.
    """

    def __init__(self, *, enabled: bool | None = None) -> None:
        if enabled is None:
            enabled = sys.stderr.isatty() and importlib.util.find_spec("rich") is not None
        self.is_shown = enabled
        self._progress = _new_progress() if enabled else None

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        if self._progress is not None:
            self._progress.__exit__(*details)

    def request(self, prompt: str, number: int, total: int) -> Callable[[int, int], None]:
        """Begins the bar of a request.

        Args:
            prompt: Its prompt.
            number: Which request it is, from 1.
            total: Of how many.

        Returns:
            What to call with the steps that are done and all steps.
        """
        progress = self._progress
        if progress is None:
            logger.info("prompt %d of %d begins: %s", number, total, shortened(prompt, 40))
            return _show_nothing
        task = progress.add_task(f"[{number}/{total}] {shortened(prompt, 40)}", total=None)
        return lambda done, of: progress.update(task, completed=done, total=of)


def shortened(text: str, longest: int = 100) -> str:
    """Returns the beginning of a text on one line, for people.

    Args:
        text: A prompt, perhaps of many lines.
        longest: Characters to return at most.
    """
    line = " ".join(text[: 10 * longest].split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _show_nothing(done: int, of: int) -> None:
    del done, of


def _new_progress() -> Any:  # noqa: ANN401 - rich is optional
    from rich.console import Console  # noqa: PLC0415 - optional
    from rich.progress import (  # noqa: PLC0415 - optional
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
    )
