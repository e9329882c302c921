"""Starting and stopping a profiler: one thread at a time, and never in the middle of another.

It holds against signal handlers too, which run on the thread that they interrupt, and against the
interrupts that they raise at any point.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ROOM: Final = 150
"""Calls that may be nested in a start or stop: torch's, and those of logging."""


class Moves:
    """The right to start or stop a profiler, which one thread has at a time."""

    def __init__(self) -> None:
        # Unlike a plain lock, this one knows its owner from the very moment it is taken.
        self._lock = threading.RLock()
        self._afterwards: list[tuple[int, Callable[[], None]]] = []

    def under_way_here(self) -> bool:
        """Tells whether this thread is in the middle of a start or stop."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # noqa: SLF001

    @contextlib.contextmanager
    def taken(self, timeout_s: float = 0.0) -> Iterator[bool]:
        """Takes the right for the body of a ``with`` statement.

        Args:
            timeout_s: How long to wait for another thread, in seconds.

        Yields:
            Whether it was to be had. Within a move of the same thread it is not.
        """
        if self.under_way_here():
            yield False
            return
        try:
            yield self._lock.acquire(timeout=timeout_s)
        finally:
            if self.under_way_here():
                self._lock.release()
            self._catch_up()

    def when_settled(self, action: Callable[[], None]) -> None:
        """Runs ``action`` now, or as soon as this thread is through with its move."""
        if self.under_way_here():
            self._afterwards.append((threading.get_ident(), action))
        else:
            action()

    def _catch_up(self) -> None:
        """Runs what was put off, all of it, even if one raises."""
        if not self._afterwards:
            return
        thread = threading.get_ident()
        with contextlib.ExitStack() as actions:
            for entry in reversed([entry for entry in self._afterwards if entry[0] == thread]):
                self._afterwards.remove(entry)
                actions.callback(entry[1])


def require_stack() -> None:
    """Makes sure that a move is not begun where it could not be finished.

    Raises:
        RecursionError: The program has nested calls almost to Python's limit.
    """
    _dive(_ROOM)


def _dive(levels: int) -> None:
    if levels:
        _dive(levels - 1)
