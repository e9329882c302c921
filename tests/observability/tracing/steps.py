"""Entries, steps and identities as the hot path makes them, for the tests of spans."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.tracing.ids import step_trace_id
from fastvideo.observability.tracing.records import StepSpans

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

UNIX_NS = 1_700_000_000_000_000_000
"""A wall-clock time."""

STEP = "training_train_one_step"


@dataclass(eq=False)
class Entry:
    """One entry of a region."""

    region: str
    start_ns: int
    end_ns: int
    parent: Entry | None = None
    error: type[BaseException] | None = None
    attributes: dict[str, object] | None = None
    span_id: int = 0
    segment: str | None = None
    device_ms: float | None = None
    foreign_parent: SpanContext | None = None

    @property
    def drawn_id(self) -> int:
        """Id that was drawn before the span is built, or 0."""
        return self.span_id


def make_identity(**changes: Any) -> RunIdentity:
    """Returns the identity of a rank."""
    values: dict[str, Any] = {
        "run_id": "run-1",
        "attempt": "0-abcd",
        "run_name": "tiny",
        "rank": 0,
        "world_size": 1,
        "local_rank": 0,
        "host_name": "node-0",
        "host_id": "0123456789abcdef",
        "sampler_ratio": 1.0,
        "traceparent": None,
    }
    return RunIdentity(**{**values, **changes})


def make_step(
    step: int = 0,
    *,
    children: int = 3,
    identity: RunIdentity | None = None,
    anchor_unix_ns: int = UNIX_NS,
    **changes: Any,
) -> StepSpans:
    """Returns a step of 100 ms whose children follow each other; times are from 1 s on."""
    identity = identity or make_identity()
    start_ns, length_ns = 1_000_000_000, 100_000_000
    root = Entry(STEP, start_ns, start_ns + length_ns, attributes={"step": step})
    share = length_ns // max(1, children)
    entries = [
        Entry("training_forward", start_ns + i * share, start_ns + (i + 1) * share, parent=root)
        for i in range(children)
    ]
    values: dict[str, Any] = {
        "step": step,
        "step_kind": None,
        "trace_id": step_trace_id(identity.run_id, identity.attempt, step),
        "anchor_unix_ns": anchor_unix_ns,
        "anchor_perf_ns": start_ns,
        "root": root,
        "entries": [*entries, root],
        "error": None,
    }
    return StepSpans(**{**values, **changes})


class Counts:
    """Counts spans by what became of them, and lets tests wait for it."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()
        self._changed = threading.Condition()

    def __call__(self, outcome: str, reason: str, spans: int) -> None:
        with self._changed:
            self.seen[outcome, reason] += spans
            self._changed.notify_all()

    def total(self, outcome: str) -> int:
        """Returns how many spans had an outcome, for whatever reason."""
        with self._changed:
            return sum(n for (what, _), n in self.seen.items() if what == outcome)

    def wait_for(self, outcome: str, spans: int, timeout_s: float = 10.0) -> bool:
        """Waits until so many spans had an outcome."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            return self._changed.wait_for(
                lambda: sum(n for (what, _), n in self.seen.items() if what == outcome) >= spans,
                max(0.0, deadline - time.monotonic()),
            )
