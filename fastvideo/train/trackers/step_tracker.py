"""One log call per step, however many parts of the program have something to say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fastvideo.train.metrics import Deferred, to_host

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from fastvideo.train.trackers.tracker import TrackedVideo, Tracker


class StepTracker:
    """A tracker that collects what is logged about the current step and logs it at its end.

    The method and the callbacks of a run hold this one. Scalars that are still on a device are
    not read when they are logged: the trainer reads them together with the losses, in one
    transfer. Outside a step, and for other steps, everything passes through at once.

    Args:
        tracker: Where to log.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._step: int | None = None
        self._values: dict[str, Any] = {}
        self._deferred: list[Deferred] = []

    @property
    def active(self) -> bool:
        """Whether anything that is logged goes anywhere."""
        return self._tracker.active

    def begin(self, step: int) -> None:
        """Collects from now on what is logged for ``step``."""
        self._step = step
        self._values = {}
        self._deferred = []

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Adds to the current step's values; a later value of a name replaces an earlier one.

        Args:
            metrics: As for :meth:`Tracker.log`.
            step: The training step.
        """
        if step != self._step:
            self._tracker.log(metrics, step)
            return
        for name, value in metrics.items():
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                self.defer(name, value)
            else:
                self._values[name] = value

    def defer(self, name: str, value: torch.Tensor, *, drop_zero: bool = False) -> None:
        """Adds a scalar that is read from its device later.

        Args:
            name: Name of the scalar.
            value: One element, not to be changed until the end of the step.
            drop_zero: Log nothing if it turns out to be exactly 0.
        """
        if self.active:
            self._deferred.append(Deferred(name, value.detach(), drop_zero))

    def take_deferred(self) -> list[Deferred]:
        """Returns the scalars that wait to be read, and forgets them."""
        waiting, self._deferred = self._deferred, []
        return waiting

    def end(self) -> None:
        """Logs the step; scalars deferred since the last transfer cost one more."""
        waiting = self.take_deferred()
        for item, value in zip(waiting, to_host([item.value for item in waiting]), strict=True):
            if value != 0.0 or not item.drop_zero:
                self._values[item.name] = value
        self._flush()

    def abandon(self) -> None:
        """Logs what is known of a step that failed, without touching a device."""
        self._deferred = []
        self._flush()

    def _flush(self) -> None:
        values, step = self._values, self._step
        self._step = None
        self._values = {}
        if values and step is not None:
            self._tracker.log(values, step)

    def log_artifacts(self, artifacts: Mapping[str, Any], step: int) -> None:
        """See :meth:`Tracker.log_artifacts`."""
        self._tracker.log_artifacts(artifacts, step)

    def log_file(self, path: str | Path, name: str | None = None) -> None:
        """See :meth:`Tracker.log_file`."""
        self._tracker.log_file(path, name)

    def video(self, data: Any, **options: Any) -> TrackedVideo | None:  # noqa: ANN401 - passed on
        """See :meth:`Tracker.video`."""
        return self._tracker.video(data, **options)

    def timed(self, name: str) -> AbstractContextManager[None]:
        """See :meth:`Tracker.timed`."""
        return self._tracker.timed(name)

    def finish(self, exit_code: int = 0) -> None:
        """See :meth:`Tracker.finish`."""
        self._tracker.finish(exit_code)
