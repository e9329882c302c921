"""The TracerProvider of the program around us: used where there is one, never replaced.

Its public interface makes spans as they happen and draws their ids. Ours are made afterwards, with
ids that ranks agree on, so they are handed to its span processors in finished form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger
from fastvideo.observability.tracing.resource import SCOPE_NAME, scope_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastvideo.observability.tracing.records import AttributeValue, SpanRecord

logger = init_logger(__name__)

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
    if not hasattr(provider, _PROCESSOR):
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

    def write(self, records: Sequence[SpanRecord]) -> None:
        """Hands over the spans of the traces that the provider's sampler keeps."""
        processor = getattr(self.provider, _PROCESSOR)
        keeps: dict[int, bool] = {}
        for record in records:
            if record.trace_id not in keeps:
                keeps[record.trace_id] = self._keeps(record)
            if keeps[record.trace_id]:
                processor.on_end(self._readable(record))

    def flush(self, timeout_s: float) -> bool:
        """Leaves the sending to the provider, whose owner decides about its end."""
        del timeout_s
        return True

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
