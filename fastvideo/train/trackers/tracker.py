"""The tracker that a run holds: any number of backends, none of which can end the run."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

logger = init_logger(__name__)

Scalar = float | int | str


class TrackerBackend(Protocol):
    """Where metrics end up. Methods may raise; the :class:`Tracker` in front reports it."""

    name: str

    def log(self, metrics: Mapping[str, Scalar], step: int) -> None:
        """Records the scalars of a step; several calls with one step add up."""
        ...

    def log_artifacts(self, artifacts: Mapping[str, Any], step: int) -> None:
        """Records richer objects, such as what :meth:`video` returned, or lists of them."""
        ...

    def log_file(self, path: Path, name: str) -> None:
        """Keeps a copy of a file with the run."""
        ...

    def video(self, data: Any, *, caption: str | None, fps: int, format: str) -> Any | None:  # noqa: A002, ANN401 - the public keyword
        """Wraps a video for :meth:`log_artifacts`; None where videos are not supported."""
        ...

    def finish(self, exit_code: int) -> None:
        """Writes what is pending and closes; ``exit_code`` 0 marks a successful run."""
        ...


@dataclass(frozen=True, slots=True)
class TrackedVideo:
    """A video as each backend wants it.

    Attributes:
        parts: The backend's own object, by position of the backend in the tracker.
    """

    parts: Mapping[int, Any]


class Tracker:
    """Logs to its backends one after the other.

    A backend that raises is reported once and tried again next time, since a full disk or a lost
    connection may come back; how often it failed is said at the end.

    Args:
        backends: Where to log; none at all makes every call do nothing.
    """

    def __init__(self, backends: Sequence[TrackerBackend] = ()) -> None:
        self.backends = tuple(backends)
        self._failures = dict.fromkeys(range(len(self.backends)), 0)
        self._timed: dict[str, float] = {}
        self._finished = False

    @property
    def active(self) -> bool:
        """Whether anything that is logged goes anywhere."""
        return bool(self.backends) and not self._finished

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Logs scalars; steps must not go backwards, as some services drop those.

        Args:
            metrics: Numbers, one-element tensors, or short texts; anything else is logged as an
                artifact.
            step: The training step.
        """
        if not self.active:
            return
        timed, self._timed = self._timed, {}
        scalars: dict[str, Scalar] = {**timed}
        artifacts: dict[str, Any] = {}
        for name, value in metrics.items():
            if isinstance(value, (float, int, str)):
                scalars[name] = value
            elif getattr(value, "size", None) == 1 or _has_one_element(value):
                scalars[name] = float(value)
            else:
                artifacts[name] = value
        if scalars:
            self._each(lambda _, backend: backend.log(scalars, step))
        if artifacts:
            self.log_artifacts(artifacts, step)

    def log_artifacts(self, artifacts: Mapping[str, Any], step: int) -> None:
        """Logs objects that are no scalars, on the backends that support them.

        Args:
            artifacts: By name, what :meth:`video` returned, or lists of it.
            step: The training step.
        """

        def log_own(position: int, backend: TrackerBackend) -> None:
            own = {name: _own_part(value, position) for name, value in artifacts.items()}
            own = {name: value for name, value in own.items() if value is not None}
            if own:
                backend.log_artifacts(own, step)

        self._each(log_own)

    def log_file(self, path: str | Path, name: str | None = None) -> None:
        """Keeps a copy of a file with the run.

        Args:
            path: The file.
            name: Its name in the run; by default its own.
        """
        source = Path(path)
        target = Path(name).name if name else source.name
        self._each(lambda _, backend: backend.log_file(source, target))

    def video(
        self,
        data: Any,  # noqa: ANN401 - a path or an array, as the services accept
        *,
        caption: str | None = None,
        fps: int = 16,
        format: str = "mp4",  # noqa: A002 - the public keyword
    ) -> TrackedVideo | None:
        """Prepares a video for :meth:`log_artifacts`.

        Args:
            data: Path of a video file, or frames ``[T, C, H, W]`` as uint8.
            caption: Text below the video.
            fps: Frames per second, for frames.
            format: Container, for frames.

        Returns:
            The video, or None if no backend supports videos.
        """
        parts: dict[int, Any] = {}

        def wrap(position: int, backend: TrackerBackend) -> None:
            part = backend.video(data, caption=caption, fps=fps, format=format)
            if part is not None:
                parts[position] = part

        self._each(wrap)
        return TrackedVideo(parts) if parts else None

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measures the body in seconds and adds it to the next :meth:`log` under ``name``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._timed[name] = self._timed.get(name, 0.0) + time.perf_counter() - start

    def finish(self, exit_code: int = 0) -> None:
        """Closes all backends; a second call does nothing.

        Args:
            exit_code: 0 for a run that ended well.
        """
        if self._finished:
            return
        self._each(lambda _, backend: backend.finish(exit_code))
        self._finished = True
        for position, count in self._failures.items():
            if count > 1:
                logger.warning(
                    "tracker %s failed %d times in all", self.backends[position].name, count
                )

    def _each(self, call: Callable[[int, TrackerBackend], None]) -> None:
        if self._finished:
            return
        for position, backend in enumerate(self.backends):
            try:
                call(position, backend)
            except Exception as error:
                self._failures[position] += 1
                if self._failures[position] == 1:
                    logger.warning(
                        "tracker %s failed (%s: %s); training goes on, and later failures are only "
                        "counted",
                        *(backend.name, type(error).__name__, error),
                        exc_info=not isinstance(error, OSError),  # a full disk is explained by it
                    )


def _has_one_element(value: Any) -> TypeGuard[Any]:  # noqa: ANN401 - duck-typed tensors
    numel = getattr(value, "numel", None)
    return callable(numel) and numel() == 1


def _own_part(value: Any, position: int) -> Any | None:  # noqa: ANN401 - backends' own objects
    """Returns what one backend is to log of an artifact; None for nothing."""
    if isinstance(value, TrackedVideo):
        return value.parts.get(position)
    if isinstance(value, (list, tuple)):
        own = [part for part in (_own_part(item, position) for item in value) if part is not None]
        return own or None
    return value
