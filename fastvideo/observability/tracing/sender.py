"""Sends encoded spans on a thread of its own: retries, deadlines, a bounded backlog."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.delivery_log import DeliveryLog
from fastvideo.observability.tracing.transport import REJECTED, Outcome

if TYPE_CHECKING:
    from fastvideo.observability.tracing.settings import BatchSettings
    from fastvideo.observability.tracing.transport import Transport

Count = Callable[[str, str, int], None]
"""Told what became of spans: ``"exported"`` or ``"dropped"``, where to or why, and how many."""

QUEUE_FULL: Final = "queue_full"
SHUTDOWN: Final = "shutdown"
EXPORTED: Final = "exported"
DROPPED: Final = "dropped"

_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
_LAST_WAIT_S: Final = 0.2
_MARGIN_S: Final = 0.1
_NOT_FOUND: Final = "HTTP 404"


@dataclass(frozen=True, slots=True)
class Batch:
    """One request, encoded.

    Attributes:
        body: The request.
        spans: How many spans it holds.
    """

    body: bytes
    spans: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Asks for everything to be sent now.

    Attributes:
        deadline: By ``time.monotonic``; nothing is tried after it.
        done: Receives whether everything was sent.
        ends: Whether the thread ends afterwards.
    """

    deadline: float
    done: queue.SimpleQueue[bool]
    ends: bool


class Sender:
    """Sends batches one after the other, in order, and tries again what failed for the moment.

    Hands over through a ``SimpleQueue``, whose methods may be interrupted by a signal handler that
    calls them again.

    Args:
        transport: What sends.
        timeout_s: Longest time for one request, in seconds.
        settings: The size of the backlog, and for how long a batch is tried.
        count: Told what became of spans.
    """

    def __init__(
        self, transport: Transport, timeout_s: float, settings: BatchSettings, count: Count
    ) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._settings = settings
        self._count = count
        self._log = DeliveryLog(transport.target)
        self._inbox: queue.SimpleQueue[Batch | Flush] = queue.SimpleQueue()
        self._backlog: deque[Batch] = deque()
        self._submitted = 0
        self._finished = 0
        self._failures = 0
        self._next_attempt = 0.0
        self._give_up_at: float | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="fastvideo-spans-out", daemon=True)

    def start(self) -> None:
        """Starts the thread.

        Raises:
            RuntimeError: The process cannot have another thread.
        """
        self._thread.start()

    def submit(self, *batches: Batch) -> None:
        """Takes batches, or counts their spans as dropped when the backlog has no room for all.

        They belong together: spans of one are parents of spans of another.
        """
        spans = sum(batch.spans for batch in batches)
        if not self._settings.has_room(self._submitted - self._finished, spans):
            self._count(DROPPED, QUEUE_FULL, spans)
            return
        self._submitted += spans
        for batch in batches:
            self._inbox.put(batch)

    def flush(self, request: Flush) -> None:
        """Asks for everything to be sent; the answer goes to ``request.done``."""
        self._inbox.put(request)

    def abandon(self) -> None:
        """Gives up what is not sent yet, and counts it; the thread ends by itself."""
        self._abandoned = True
        left = self._submitted - self._finished
        if left:
            self._count(DROPPED, SHUTDOWN, left)
        self._transport.abort()

    def leave_parent(self) -> None:
        """Becomes inert in a forked child."""
        self._abandoned = True
        self._transport.leave_parent()

    def _run(self) -> None:
        while not self._abandoned:
            request = self._receive()
            if request is not None:
                delivered = self._finish(request)
                request.done.put(delivered)
                if request.ends:
                    self._drop_rest()
                    break
            elif self._backlog and time.monotonic() >= self._next_attempt:
                self._attempt(self._timeout_s)
        self._transport.close()

    def _receive(self) -> Flush | None:
        """Waits until there is something to do; a flush request is returned."""
        wait_s: float | None = None
        if self._backlog:
            wait_s = max(0.0, self._next_attempt - time.monotonic())
        try:
            item = self._inbox.get(timeout=wait_s)
        except queue.Empty:
            return None
        if isinstance(item, Flush):
            return item
        self._backlog.append(item)
        return None

    def _finish(self, request: Flush) -> bool:
        """Sends what there is before a deadline; returns whether everything was sent."""
        was_failing = self._failures > 0
        clean = True
        retried = False
        while self._backlog and not self._abandoned:
            left = request.deadline - time.monotonic() - _MARGIN_S
            if left <= 0:
                return False
            outcome = self._attempt(min(self._timeout_s, left))
            clean = clean and not outcome.reason
            if outcome.reason and outcome.retryable:
                # Once more, in case it was a moment's weakness. What has failed before is not
                # waited for: nobody's exit should be late because a collector is gone.
                wait_s = outcome.retry_after_s or _LAST_WAIT_S
                if retried or was_failing or wait_s > _LAST_WAIT_S:
                    return False
                retried = True
                time.sleep(min(wait_s, max(0.0, left)))
        return clean

    def _attempt(self, timeout_s: float) -> Outcome:
        """Sends the oldest batch once."""
        batch = self._backlog[0]
        try:
            outcome = self._transport.send(batch.body, timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever a library does, the thread goes on
            outcome = Outcome(REJECTED, detail=type(error).__name__)
        if self._abandoned:
            return outcome
        if not outcome.reason:
            self._delivered(batch, outcome)
        elif not outcome.retryable:
            hint = ""
            if outcome.detail == _NOT_FOUND:
                hint = (
                    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is used as it is and needs the path, "
                    "usually /v1/traces."
                )
            self._log.failed(outcome.detail, hint)
            self._take_off(batch, DROPPED, outcome.reason)
        else:
            self._failed(batch, outcome)
        return outcome

    def _delivered(self, batch: Batch, outcome: Outcome) -> None:
        self._failures = 0
        self._next_attempt = 0.0
        refused = min(outcome.rejected_spans, batch.spans)
        if refused:
            self._count(DROPPED, REJECTED, refused)
            self._log.lost(refused, "refused by the collector")
        self._log.delivered()
        self._take_off(batch, EXPORTED, "otlp", batch.spans - refused)

    def _failed(self, batch: Batch, outcome: Outcome) -> None:
        """Decides when a batch is tried again, or that it is not."""
        now = time.monotonic()
        self._failures += 1
        self._log.failed(outcome.detail)
        if self._give_up_at is None:
            self._give_up_at = now + self._settings.export_timeout_s
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(self._failures - 1, 10))
        wait_s *= _jitter.uniform(0.8, 1.2)
        if outcome.retry_after_s is not None:
            wait_s = max(wait_s, outcome.retry_after_s)
        # A collector may ask for any wait; past the time a batch is tried there is no point.
        self._next_attempt = now + min(wait_s, self._settings.export_timeout_s)
        if now >= self._give_up_at:
            self._log.lost(batch.spans, outcome.detail)
            self._take_off(batch, DROPPED, outcome.reason)

    def _take_off(self, batch: Batch, outcome: str, reason: str, spans: int | None = None) -> None:
        self._backlog.popleft()
        self._finished += batch.spans
        self._give_up_at = None
        counted = batch.spans if spans is None else spans
        if counted:
            self._count(outcome, reason, counted)

    def _drop_rest(self) -> None:
        """Counts what cannot be sent any more."""
        if self._abandoned:
            return
        left = self._submitted - self._finished
        self._finished = self._submitted
        self._backlog.clear()
        if left:
            self._count(DROPPED, SHUTDOWN, left)


_jitter: Final = random.SystemRandom()
