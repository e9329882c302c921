"""The span worker: builds and encodes spans, a few at a time, and passes them on."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from fastvideo.logger import init_logger
from fastvideo.observability.tracing import wire
from fastvideo.observability.tracing.budget import TraceBudget
from fastvideo.observability.tracing.builder import StepBuilder
from fastvideo.observability.tracing.fan_out import ERROR, FanOut
from fastvideo.observability.tracing.ledger import Ledger
from fastvideo.observability.tracing.records import LATE, SpanRecord, span_count
from fastvideo.observability.tracing.run_spans import run_start_context
from fastvideo.observability.tracing.sender import DROPPED

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.observability.identity import RunIdentity
    from fastvideo.observability.tracing.inbox import Inbox
    from fastvideo.observability.tracing.records import StepSpans
    from fastvideo.observability.tracing.sender import Count
    from fastvideo.observability.tracing.settings import TraceSettings

logger = init_logger(__name__)

BUDGET: Final = "trace_budget"

_SHORTEST_DELAY_S: Final = 0.1
_SPANS_AT_ONCE: Final = 64
_REST_S: Final = 0.0005

_Result = TypeVar("_Result")


class BuildThread:
    """Turns what the inbox holds into spans of the fan-out.

    Args:
        settings: What is sent where.
        identity: Of this process.
        count: Told what became of spans.
        inbox: Where the training thread leaves them.
    """

    def __init__(
        self, settings: TraceSettings, identity: RunIdentity, count: Count, inbox: Inbox
    ) -> None:
        self._inbox = inbox
        self._ledger = Ledger(count)
        self._delay_s = max(_SHORTEST_DELAY_S, settings.batch.delay_s)
        self._fan_out = FanOut(settings, identity, self._ledger)
        self._builder = StepBuilder(identity.rank, run_start_context(identity), settings.limits)
        self._budget = TraceBudget(
            max_bytes=settings.trace_max_bytes,
            world_size=identity.world_size,
            rank=identity.rank,
            local_rank=identity.local_rank,
            local_world_size=settings.local_world_size,
            overhead=self._fan_out.overhead,
        )
        self._pace = Pace()
        self._reported = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="fastvideo-spans", daemon=True)

    def start(self) -> None:
        """Starts the threads.

        Raises:
            RuntimeError: The process cannot have another thread.
        """
        self._fan_out.start()
        self._thread.start()

    def abandon(self) -> None:
        """Gives up what is not sent yet, and counts it; the threads end by themselves."""
        self._abandoned = True
        self._ledger.close()
        self._fan_out.abandon()

    def leave_parent(self) -> None:
        """Becomes inert in a forked child, which has no copy of the threads."""
        self._abandoned = True
        self._fan_out.leave_parent()

    def _run(self) -> None:
        while not self._abandoned:
            request = self._inbox.wait(self._delay_s)
            self._pace.rests = request is None
            self._drain()
            if request is None:
                self._guard(self._fan_out.emit, 0)
                continue
            flush = partial(self._fan_out.flush, request.deadline, ends=request.ends)
            delivered = self._guard(flush, 0) is True
            if request.ends:
                self._ledger.close()
            request.done.put(delivered)
            if request.ends:
                return

    def _drain(self) -> None:
        """Builds everything that is queued."""
        while not self._abandoned and (item := self._inbox.take()) is not None:
            spans = span_count(item)
            self._ledger.expect(spans)
            made = self._guard(partial(self._make, item), spans)
            if made is not None:
                records, encoded = made
                self._ledger.expect(len(records) - spans)
                self._guard(partial(self._fan_out.add, records, encoded), 0)

    def _make(self, item: StepSpans | SpanRecord) -> tuple[list[SpanRecord], list[bytes]]:
        """Returns the spans of an item, and each encoded where anything wants them so."""
        if isinstance(item, SpanRecord):
            return [item], self._encode([item]) if self._fan_out.takes_protobuf else []
        self._drop(LATE, item.leave_out_late())
        records, drawn = self._builder.build(item, self._pace)
        if not self._fan_out.takes_protobuf and self._budget.holds(
            [wire.size_bound(record) for record in records]
        ):
            return records, []
        encoded = self._encode(records)
        chosen = self._budget.choose(records, [len(span) for span in encoded], drawn)
        left_out = len(records) - len(chosen)
        if not left_out:
            return records, encoded
        self._drop(BUDGET, left_out)
        if chosen:
            encoded[chosen[0]] = wire.encode_span(records[chosen[0]])  # says what is missing
        return [records[i] for i in chosen], [encoded[i] for i in chosen]

    def _drop(self, reason: str, spans: int) -> None:
        """Counts spans that are expected and will not be among those that are made."""
        self._ledger.expect(spans)
        self._ledger.settle(DROPPED, reason, spans)

    def _encode(self, records: list[SpanRecord]) -> list[bytes]:
        encoded: list[bytes] = []
        for first in range(0, len(records), _SPANS_AT_ONCE):
            some = records[first : first + _SPANS_AT_ONCE]
            encoded.extend([wire.encode_span(record) for record in some])
            self._pace(len(some))
        return encoded

    def _guard(self, work: Callable[[], _Result], spans: int) -> _Result | None:
        """Does some work; an error costs the spans concerned and nothing else."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - the worker goes on whatever one step holds
            self._ledger.settle(DROPPED, ERROR, spans)
            if not self._reported:
                self._reported = True
                logger.warning(
                    "spans of a step could not be built (%s); later ones are counted only",
                    type(error).__name__,
                )
            return None


class Pace:
    """Rests after every few spans, so that the training thread gets the interpreter lock back.

    A thread that wants the lock otherwise waits for the switch interval, five milliseconds.

    Attributes:
        rests: Whether there is time for it; not while somebody waits for a flush.
    """

    def __init__(self) -> None:
        self.rests = True
        self._spans = 0

    def __call__(self, spans: int) -> None:
        """Notes the work of so many spans."""
        self._spans += spans
        if self._spans >= _SPANS_AT_ONCE:
            self._spans = 0
            if self.rests:
                time.sleep(_REST_S)
