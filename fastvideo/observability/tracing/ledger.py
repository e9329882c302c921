"""The account of spans: each is exported or dropped, once, whatever becomes of the threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fastvideo.observability.tracing.sender import DROPPED, SHUTDOWN

if TYPE_CHECKING:
    from fastvideo.observability.tracing.sender import Count


class Ledger:
    """Spans that were taken and of which nobody has said yet what became of them.

    A destination may hang for ever, and the thread that writes to it is then given up. What it
    held is counted at that moment, and nothing that it says afterwards counts.

    Args:
        count: Told what became of spans, by one thread at a time.
    """

    def __init__(self, count: Count) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._open = 0
        self._closed = False

    def expect(self, spans: int) -> None:
        """Notes spans that will be settled; less than 0: as many that will not.

        Those that come after :meth:`close` are lost, and counted at once.
        """
        with self._lock:
            if not self._closed:
                self._open += spans
            elif spans > 0:
                self._count(DROPPED, SHUTDOWN, spans)

    def settle(self, outcome: str, reason: str, spans: int) -> None:
        """Counts what became of spans, unless they were counted by :meth:`close`."""
        with self._lock:
            if not self._closed and spans:
                self._open -= spans
                self._count(outcome, reason, spans)

    def close(self) -> None:
        """Counts everything that is not settled as dropped; a second time changes nothing."""
        with self._lock:
            left, self._open = self._open, 0
            if not self._closed and left > 0:
                self._count(DROPPED, SHUTDOWN, left)
            self._closed = True
