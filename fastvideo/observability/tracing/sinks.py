"""Where finished spans go besides a collector: files, standard output, the host's provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastvideo.observability.tracing.records import SpanRecord


NOWHERE: Final = "no_destination"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Spans of a batch that a sink did not take.

    Attributes:
        reason: One word for the counter.
        spans: How many.
        detail: What the log says about it; empty where that is nothing to speak of.
    """

    reason: str
    spans: int
    detail: str = ""


class SpanSink(Protocol):
    """Takes spans on the span worker. May raise: its spans are then counted as dropped."""

    @property
    def name(self) -> str:
        """One word for counters, and for the log."""

    @property
    def target(self) -> str:
        """Where to, for people; holds no secret."""

    def write(self, records: Sequence[SpanRecord]) -> Sequence[Refusal]:
        """Takes a batch of spans; returns what of it was not taken."""

    def flush(self, timeout_s: float) -> bool:
        """Sees that what was written arrives; returns whether it did in time."""
