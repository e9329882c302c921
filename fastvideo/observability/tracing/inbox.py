"""Where the training thread leaves spans: bounded, without a lock, whole steps at a time."""

from __future__ import annotations

import queue
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.records import span_count
from fastvideo.observability.tracing.sender import Flush

if TYPE_CHECKING:
    from fastvideo.observability.tracing.records import SpanRecord, StepSpans
    from fastvideo.observability.tracing.settings import BatchSettings

_MARGIN_S: Final = 0.05


class Inbox:
    """Queue of spans from any threads to one.

    It holds one element per span, so that its length is what is queued: a step, and behind it as
    many Nones as it has further spans. Extending a deque by a list is one step for the
    interpreter, so neither another thread nor a signal handler comes between; two threads that
    put at the same time may both find room for their own, which is a step too many at worst.

    Args:
        settings: How much it holds, and at how much the reader is woken.
    """

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._queue: deque[StepSpans | SpanRecord | None] = deque()
        # The methods of a SimpleQueue may be interrupted by a signal handler that calls them.
        self._requests: queue.SimpleQueue[Flush | None] = queue.SimpleQueue()
        self._woken = False

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, item: StepSpans | SpanRecord, spans: int) -> bool:
        """Takes an item that stands for ``spans`` spans; returns False where it has no room."""
        waiting = len(self._queue)
        if not self._settings.has_room(waiting, spans):
            return False
        self._queue.extend([item, *[None] * (spans - 1)])
        if waiting + spans >= self._settings.max_batch and not self._woken:
            self._woken = True
            self.wake()
        return True

    def take(self) -> StepSpans | SpanRecord | None:
        """Returns the oldest item, or None where there is none. For the one reader."""
        while True:
            try:
                item = self._queue.popleft()
            except IndexError:  # looking first would not help: another thread may empty it
                return None
            if item is not None:
                return item

    def clear(self) -> int:
        """Empties the queue; returns how many spans in it were not taken.

        What the reader took is the reader's to count, though it is in the queue until it asks for
        the next.
        """
        spans = 0
        while (item := self.take()) is not None:
            spans += span_count(item)
        return spans

    def wake(self) -> None:
        """Ends the reader's wait."""
        self._requests.put(None)

    def wait(self, timeout_s: float) -> Flush | None:
        """Waits to be woken, at most ``timeout_s`` seconds; returns a request to flush or None."""
        try:
            request = self._requests.get(timeout=timeout_s)
        except queue.Empty:
            request = None
        self._woken = False
        return request

    def ask(self, timeout_s: float, *, ends: bool) -> bool:
        """Asks the reader to flush and waits for the answer.

        Args:
            timeout_s: Longest wait, in seconds.
            ends: Whether the reader ends afterwards.

        Returns:
            Whether everything was sent, in time.
        """
        done: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._requests.put(Flush(time.monotonic() + timeout_s - _MARGIN_S, done, ends))
        try:
            return done.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return False

    def leave_parent(self) -> None:
        """Forgets what the parent of a forked child has queued, and its locks."""
        self._queue = deque()
        self._requests = queue.SimpleQueue()
