"""Where the process is now: the step that runs, and the innermost sampled region."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastvideo.observability.entries import SampledEntry

innermost: ContextVar[SampledEntry | None] = ContextVar("fastvideo_region", default=None)
"""The innermost open region of the sampled trace, in this thread or task."""


class _Now:
    """What holds for the whole process. Written by the thread that steps, read by any.

    Attributes:
        step: Number of the step that runs, of the last one between steps, or None.
        root: The entry that opened the sampled trace, or None while none is open.
        trace_id: The trace of the step that runs, sampled or not; 0 for none.
        context: The OpenTelemetry context that is current in a sampled trace's own regions.
    """

    __slots__ = ("context", "root", "step", "trace_id")

    def __init__(self) -> None:
        self.step: int | None = None
        self.root: SampledEntry | None = None
        self.trace_id = 0
        self.context: object = None


now = _Now()


def current_step() -> int | None:
    """Returns the number of the step that runs, of the last one between steps, or None."""
    return now.step


def current_trace() -> tuple[str | None, str | None]:
    """Returns trace id and span id of the innermost region of the sampled trace.

    Returns:
        Two lower-case hexadecimal texts of 32 and 16 digits, or two times None.
    """
    root = now.root
    if root is None:
        return None, None
    entry = innermost_since(root)
    return f"{now.trace_id:032x}", f"{entry.span_id:016x}"


def innermost_since(root: SampledEntry) -> SampledEntry:
    """Returns the innermost open region of the trace that ``root`` opened, in this thread or task.

    What a past trace has left behind is none of it: a task that was begun there, or a generator
    that is closed now, has regions of that trace around it.
    """
    entry = innermost.get()
    if entry is None or getattr(entry, "start_ns", root.start_ns) < root.start_ns:
        return root
    return entry
