"""What one entry of a region leaves behind: a duration always, and in sampled traces a span.

These classes are the price of telemetry on the training thread, so they do the least: read the
clock, remember, put themselves away. Parents, identifiers and texts are worked out by whoever
reads them later. ``benchmarks/region_overhead.py`` measures them.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar

from fastvideo.observability.current import innermost
from fastvideo.observability.tracing.ids import draw_span_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.trace import SpanContext

    from fastvideo.observability.otel_context import OtelContexts
    from fastvideo.profiler.region import Site
    from fastvideo.profiler.sinks import Attributes


class RegionTimer:
    """Times one entry at a time, again and again; only whoever took it from ``idle`` writes it.

    So the sums need no lock, and the reader adds up all timers of a region.

    Attributes:
        idle: The list it puts itself on when the region is left.
        count: Finished entries.
        total_ns: Their duration, in nanoseconds.
    """

    __slots__ = ("_start_ns", "attributes", "count", "idle", "site", "total_ns")

    site: Site
    attributes: Attributes

    def __init__(self, idle: list[RegionTimer]) -> None:
        self.idle = idle
        self.count = 0
        self.total_ns = 0
        self._start_ns = 0

    def note_segment(self, file_name: str) -> None:
        """Ignores the segment: durations carry no names."""

    def __enter__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._start_ns = clock()

    def __exit__(
        self,
        error: object,
        raised: object,
        traceback: object,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.total_ns += clock() - self._start_ns
        self.count += 1
        self.idle.append(self)


class SampledEntry:
    """One entry of a region in a sampled trace: an object of its own, read after the step.

    What few entries have is kept by a subclass of the same layout, which an entry becomes when
    there is such a thing to remember: so nothing is set at entry, and reading costs next to
    nothing. A ``__getattr__`` for what is not set would make every attribute slow.

    Attributes:
        site: The region, and how the call site spelled it.
        attributes: What the call site said about this entry.
        start_ns: ``perf_counter_ns`` at entry.
        end_ns: ``perf_counter_ns`` at exit.
        error: The type of the exception that left the region, or None.
        drawn_id: Identifier of the span if it was drawn because somebody needed it, or 0.
        foreign_parent: Context of the program's own span that encloses the region directly, or
            None.
        segment: File name of the kernel trace that this entry recorded, or None.
        device_ms: Time on the device in milliseconds, or None.
    """

    __slots__ = (
        "_foreign_parent",
        "_segment",
        "_span_id",
        "_token",
        "attributes",
        "end_ns",
        "error",
        "site",
        "start_ns",
    )

    noted_class: ClassVar[type[SampledEntry]]
    drawn_id: int = 0
    foreign_parent: SpanContext | None = None
    segment: str | None = None
    device_ms: float | None = None

    site: Site
    attributes: Attributes
    _span_id: int
    start_ns: int
    end_ns: int
    error: type[BaseException] | None

    def note_segment(self, file_name: str) -> None:
        """Remembers which kernel trace this entry records."""
        self._become_noted()
        self._segment: str | None = file_name

    def note_foreign_parent(self, context: SpanContext) -> None:
        """Remembers which of the program's own spans encloses the region directly."""
        self._become_noted()
        self._foreign_parent: SpanContext | None = context

    def __enter__(
        self,
        clock: Callable[[], int] = perf_counter_ns,
        become: Callable[[SampledEntry], Token[SampledEntry | None]] = innermost.set,
    ) -> None:
        self._token: Any = become(self)
        if _otel_current() is not _context:
            self._token = _contexts.enter_foreign(self, self._token)
        self.start_ns = clock()

    def __exit__(
        self,
        error: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
        clock: Callable[[], int] = perf_counter_ns,
        leave: Callable[[Any], None] = innermost.reset,
    ) -> None:
        self.end_ns = clock()
        self.error = error
        try:
            leave(self._token)
        except (TypeError, ValueError, RuntimeError):
            self._leave_elsewhere()
        _finished(self)

    @property
    def span_id(self) -> int:
        """Identifier of the span: 64 random bits, drawn at the first look."""
        try:
            return self._span_id
        except AttributeError:
            self._become_noted()
            self._span_id = draw_span_id()
            return self._span_id

    @span_id.setter
    def span_id(self, span_id: int) -> None:
        self._span_id = span_id

    @property
    def region(self) -> str:
        """Short name of the region."""
        return self.site.short_name

    @property
    def parent(self) -> SampledEntry | None:
        """The sampled region that encloses this one in its thread or task, or None."""
        token = self._token[0] if isinstance(self._token, tuple) else self._token
        before = token.old_value
        return before if isinstance(before, SampledEntry) else None

    def _become_noted(self) -> None:
        if not isinstance(self, NotedEntry):
            self._foreign_parent = self._segment = None
            self.__class__ = self.noted_class

    def _leave_elsewhere(self) -> None:
        """Leaves what is not left the usual way.

        That is a region which the program's own span encloses, or one that is left in another
        thread or task than it was entered in, where there is nothing to restore.
        """
        if isinstance(self._token, tuple):
            _contexts.leave_foreign(self._token)


class NotedEntry(SampledEntry):
    """An entry that has something to remember that few have."""

    __slots__ = ()

    @property
    def drawn_id(self) -> int:  # type: ignore[override]
        """Identifier of the span if it was drawn, or 0."""
        return int(getattr(self, "_span_id", 0))

    @property
    def foreign_parent(self) -> SpanContext | None:  # type: ignore[override]
        """Context of the program's own span that encloses the region directly, or None."""
        return self._foreign_parent

    @property
    def segment(self) -> str | None:  # type: ignore[override]
        """File name of the kernel trace that this entry recorded, or None."""
        return self._segment


SampledEntry.noted_class = NotedEntry


# What entries need of the sampled trace that is open: module globals, because they are read at
# every entry. begin_trace() sets them.
_finished: Callable[[SampledEntry], None]
_otel_current: Callable[[], object]
_contexts: OtelContexts
_context: object = None


def begin_trace(
    finished: Callable[[SampledEntry], None],
    *,
    context: object,
    contexts: OtelContexts,
    otel_current: Callable[[], object],
) -> None:
    """Tells sampled entries which trace they belong to.

    Args:
        finished: Takes each entry that was left.
        context: The OpenTelemetry context that is current in the trace's own regions.
        contexts: Makes regions and the program's own spans each other's parents.
        otel_current: Returns the OpenTelemetry context of this thread or task.
    """
    global _finished, _otel_current, _contexts, _context
    _finished, _otel_current, _contexts, _context = finished, otel_current, contexts, context
