"""Where finished spans go besides a collector: files, standard output, the host's provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastvideo.observability.tracing.records import SpanRecord


class SpanSink(Protocol):
    """Takes spans on the span worker. May raise: its spans are then counted as dropped."""

    @property
    def name(self) -> str:
        """One word for counters, and for the log."""

    @property
    def target(self) -> str:
        """Where to, for people; holds no secret."""

    def write(self, records: Sequence[SpanRecord]) -> None:
        """Takes a batch of spans."""

    def flush(self, timeout_s: float) -> bool:
        """Sees that what was written arrives; returns whether it did in time."""
