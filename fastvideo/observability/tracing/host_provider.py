"""The TracerProvider of the program around us: used where there is one, never replaced.

Its public interface makes spans as they happen and draws their ids. Ours are made afterwards, with
ids that ranks agree on, so they are handed to its span processors in finished form.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger
from fastvideo.observability.tracing.resource import SCOPE_NAME, scope_version
from fastvideo.observability.tracing.sinks import NOWHERE, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fastvideo.observability.tracing.records import AttributeValue, SpanRecord

logger = init_logger(__name__)

HOST_SAMPLER: Final = "host_sampler"
HOST_SHUTDOWN: Final = "host_shutdown"

_PROCESSOR: Final = "_active_span_processor"
_PLACEHOLDERS: Final = frozenset({"ProxyTracerProvider", "NoOpTracerProvider"})


def find_host_provider() -> Any | None:  # noqa: ANN401 - of whatever library the program uses
    """Returns the TracerProvider that the program has set, or None while there is none.

    Cheap enough to be asked for every batch: a program may set it after telemetry has started.
    """
    # The public function would make a provider where OTEL_PYTHON_TRACER_PROVIDER names one.
    from opentelemetry import trace  # noqa: PLC0415 - importing this module must stay light

    provider = getattr(trace, "_TRACER_PROVIDER", None)
    if provider is None or type(provider).__name__ in _PLACEHOLDERS:
        return None
    if not (hasattr(provider, _PROCESSOR) and hasattr(provider, "resource")):
        _report_foreign(type(provider))
        return None
    return provider


class HostSink:
    """Hands spans to the span processors of the program's provider.

    Args:
        provider: From :func:`find_host_provider`.
        resource: Our attributes of the resource; the provider's own win.
    """

    name = "host"
    target = "the program's own TracerProvider"

    def __init__(self, provider: Any, resource: Mapping[str, AttributeValue]) -> None:  # noqa: ANN401
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - stay light
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        self.provider = provider
        self._resource = Resource(dict(resource)).merge(provider.resource)
        self._scope = InstrumentationScope(SCOPE_NAME, scope_version())
        self._ends_at_exit = _has_exit_handler(provider)

    def write(self, records: Sequence[SpanRecord]) -> Sequence[Refusal]:
        """Hands over the spans of the traces that the provider's sampler keeps.

        A provider that was shut down is given nothing: it would say so once a span.

        Returns:
            What the sampler does not keep, and what no processor takes any more.
        """
        keeps: dict[int, bool] = {}
        refused: Counter[tuple[str, str]] = Counter()
        for record in records:
            if record.trace_id not in keeps:
                keeps[record.trace_id] = self._keeps(record)
            if not keeps[record.trace_id]:
                refused[HOST_SAMPLER, ""] += 1
            elif self._has_no_processor():
                refused[NOWHERE, "it has no span processor"] += 1
            elif not (processors := self._open_processors()):
                refused[HOST_SHUTDOWN, "it was shut down"] += 1
            elif failure := _hand_over(self._readable(record), processors):
                refused[self.name, failure] += 1
        return [Refusal(reason, n, detail) for (reason, detail), n in refused.items()]

    def flush(self, timeout_s: float) -> bool:
        """Leaves the sending to the provider, whose owner decides about its end."""
        del timeout_s
        return True

    def _has_no_processor(self) -> bool:
        return next(_single(getattr(self.provider, _PROCESSOR)), None) is None

    def _open_processors(self) -> list[Any]:
        """Returns the processors that take spans; none once the provider was shut down."""
        if self._ends_at_exit and not _has_exit_handler(self.provider):
            return []
        every = _single(getattr(self.provider, _PROCESSOR))
        return [processor for processor in every if not _is_shut_down(processor)]

    def _keeps(self, record: SpanRecord) -> bool:
        """Asks the provider's sampler as for a root: it goes by the trace id, as on all ranks."""
        sampler = getattr(self.provider, "sampler", None)
        if sampler is None:
            return True
        from opentelemetry.context import Context  # noqa: PLC0415 - stay light

        result = sampler.should_sample(Context(), record.trace_id, record.name)
        return bool(result.decision.is_sampled())

    def _readable(self, record: SpanRecord) -> object:
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 - stay light
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode  # noqa: PLC0415

        parent = None
        if record.parent_span_id:
            parent = _context(
                record.trace_id, record.parent_span_id, is_remote=record.remote_parent
            )
        attributes: dict[str, Any] = dict(record.attributes)
        status = Status(StatusCode.UNSET)
        if record.error_type is not None:
            attributes["error.type"] = record.error_type
            status = Status(StatusCode.ERROR)
        return ReadableSpan(
            name=record.name,
            context=_context(record.trace_id, record.span_id, is_remote=False),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            links=[Link(_context(t, s, is_remote=False)) for t, s in record.links],
            kind=SpanKind.INTERNAL,
            status=status,
            start_time=record.start_unix_ns,
            end_time=record.end_unix_ns,
            instrumentation_scope=self._scope,
        )


def _context(trace_id: int, span_id: int, *, is_remote: bool) -> Any:  # noqa: ANN401 - SpanContext
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415 - stay light

    return SpanContext(trace_id, span_id, is_remote, TraceFlags(TraceFlags.SAMPLED))


def _has_exit_handler(provider: Any) -> bool:  # noqa: ANN401 - of whatever library
    """Returns whether a provider will shut itself down at exit; it forgets that when it is."""
    return getattr(provider, "_atexit_handler", None) is not None


def _single(processor: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
    """Gives the processors that a processor stands for."""
    inner = getattr(processor, "_span_processors", None)
    if inner is None:
        yield processor
    for one in inner or ():
        yield from _single(one)


def _is_shut_down(processor: Any) -> bool:  # noqa: ANN401 - as above
    """Returns whether a processor says that it takes nothing any more, in any version's words."""
    batches = getattr(processor, "_batch_processor", None)
    flags = ((processor, "_shutdown"), (processor, "done"), (batches, "_shutdown"))
    return any(getattr(owner, flag, False) is True for owner, flag in flags)


def _hand_over(span: object, processors: list[Any]) -> str:
    """Hands a span to every processor; returns the type of an error where none took it."""
    failures = []
    for processor in processors:
        try:
            processor.on_end(span)
        except Exception as error:  # noqa: BLE001 - one must not cost the others
            failures.append(type(error).__name__)
    return failures[0] if len(failures) == len(processors) else ""


def _report_foreign(kind: type) -> None:
    """Says once that a provider cannot be given finished spans."""
    if kind not in _reported:
        _reported.add(kind)
        logger.warning(
            "the program's TracerProvider (%s.%s) is not OpenTelemetry's SDK and takes no finished "
            "spans; step traces go where OTEL_* and FASTVIDEO_SPAN_DIR say",
            kind.__module__,
            kind.__qualname__,
        )


_reported: set[type] = set()
