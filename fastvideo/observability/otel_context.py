"""Regions as parents of the program's own spans, and the other way round.

OpenTelemetry's context is changed once per sampled step and not per region: the span that it holds
answers with the identity of the innermost region at the moment it is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel
from opentelemetry import trace as otel_trace
from opentelemetry.trace import SpanContext, TraceFlags

from fastvideo.observability.current import innermost, innermost_since, now

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token

    from fastvideo.observability.entries import SampledEntry


class InnermostRegion(otel_trace.NonRecordingSpan):
    """A span whose identity is that of the innermost region, wherever it is asked for."""

    def __init__(self, trace_id: int) -> None:
        super().__init__(otel_trace.INVALID_SPAN_CONTEXT)
        self._trace_id = trace_id

    @property
    def is_current(self) -> bool:
        """Whether its trace is the one that is open."""
        return now.trace_id == self._trace_id

    def get_span_context(self) -> SpanContext:
        """Returns the identity of the region that is innermost now; invalid after the trace."""
        root = now.root
        if root is None or not self.is_current:
            return otel_trace.INVALID_SPAN_CONTEXT
        entry = innermost_since(root)
        return SpanContext(
            self._trace_id, entry.span_id, is_remote=False, trace_flags=TraceFlags(1)
        )


class OtelContexts:
    """Attaches and detaches OpenTelemetry contexts for regions."""

    def begin(self, trace_id: int, *, sampled: bool, span_id: int) -> object:
        """Makes a trace current for the thread that steps.

        Args:
            trace_id: The trace.
            sampled: Whether it is sampled; if not, the program's own spans are told so.
            span_id: The parent they get when it is not sampled.

        Returns:
            What :meth:`end` takes.
        """
        span: otel_trace.Span
        if sampled:
            span = InnermostRegion(trace_id)
        else:
            span = otel_trace.NonRecordingSpan(
                SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(0))
            )
        context = otel_trace.set_span_in_context(span)
        token = otel.attach(context)
        now.context = context
        return token

    def current_span(self) -> tuple[int, int, bool] | None:
        """Returns trace id, span id and sampled flag of the program's own span, or None."""
        around = otel_trace.get_current_span().get_span_context()
        if not around.is_valid:
            return None
        return around.trace_id, around.span_id, bool(around.trace_flags.sampled)

    def end(self, token: Any) -> None:  # noqa: ANN401 - a token of whatever runtime context is set
        """Restores what was current before :meth:`begin`."""
        now.context = None
        detach_quietly(token)

    def enter_foreign(
        self, entry: SampledEntry, token: Token[SampledEntry | None]
    ) -> tuple[Token[SampledEntry | None], Any] | Token[SampledEntry | None]:
        """Enters a region under a context that is not the trace's own.

        That is the program's own span, baggage, another thread, or a task that was begun in a
        trace that is over.

        Args:
            entry: The region's entry.
            token: What restores the innermost region.

        Returns:
            What the entry keeps; a pair when :meth:`leave_foreign` has something to do.
        """
        span = otel_trace.get_current_span()
        if isinstance(span, InnermostRegion) and span.is_current:
            return token
        around = span.get_span_context()
        if around.is_valid:
            entry.note_foreign_parent(around)
        return token, otel.attach(otel_trace.set_span_in_context(InnermostRegion(now.trace_id)))

    def leave_foreign(self, tokens: tuple[Token[SampledEntry | None], Any]) -> None:
        """Leaves what :meth:`enter_foreign` entered, wherever that happens."""
        mine, theirs = tokens
        detach_quietly(theirs)
        try:
            innermost.reset(mine)
        except (ValueError, RuntimeError):  # another thread or task: nothing to restore here
            return


def detach_quietly(token: Any) -> None:  # noqa: ANN401 - a token of whatever runtime context is set
    """Detaches a context; one that was attached in another thread or task is left alone.

    ``opentelemetry.context.detach`` logs an error there, which nobody can do anything about.
    """
    runtime = getattr(otel, "_RUNTIME_CONTEXT", None)
    try:
        if runtime is None:
            otel.detach(token)
        else:
            runtime.detach(token)
    except (ValueError, RuntimeError):
        return


def current_reader() -> Callable[[], object]:
    """Returns the quickest way to read the current context: compared by identity, once a region."""
    otel.get_current()  # loads the runtime context
    variable = getattr(getattr(otel, "_RUNTIME_CONTEXT", None), "_current_context", None)
    read = getattr(variable, "get", None)
    return read if callable(read) else otel.get_current
