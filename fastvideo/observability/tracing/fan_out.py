"""Gives finished spans to everything that wants them, in requests of a bounded size."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing import wire
from fastvideo.observability.tracing.delivery_log import DeliveryLog
from fastvideo.observability.tracing.exporters import make_sinks, make_transport
from fastvideo.observability.tracing.file import JsonEncoder
from fastvideo.observability.tracing.host_provider import HostSink, find_host_provider
from fastvideo.observability.tracing.resource import (
    SCOPE_NAME,
    resource_attributes,
    scope_version,
)
from fastvideo.observability.tracing.sender import DROPPED, EXPORTED, Batch, Flush, Sender
from fastvideo.observability.tracing.signals import HTTP_JSON
from fastvideo.observability.tracing.sinks import NOWHERE, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastvideo.observability.identity import RunIdentity
    from fastvideo.observability.tracing.ledger import Ledger
    from fastvideo.observability.tracing.records import SpanRecord
    from fastvideo.observability.tracing.settings import TraceSettings
    from fastvideo.observability.tracing.sinks import SpanSink

ERROR: Final = "error"


class FanOut:
    """Gathers spans into batches. Used by the span worker alone, but for :meth:`abandon`.

    Args:
        settings: Where spans go.
        identity: Of this process.
        ledger: Expects every span once; told what became of it at each destination.

    Attributes:
        overhead: Bytes of a request around its spans.
        takes_protobuf: Whether anything wants the spans as protobuf.
    """

    def __init__(self, settings: TraceSettings, identity: RunIdentity, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._abandoned = False
        self._attributes = resource_attributes(settings, identity)
        version = scope_version()
        self._resource = wire.encode_resource(self._attributes)
        self._scope = wire.encode_scope(SCOPE_NAME, version)
        self._json = JsonEncoder(self._attributes, (SCOPE_NAME, version))
        self._sinks = make_sinks(settings, identity.rank, self._json)
        self._logs = {sink.name: DeliveryLog(sink.target) for sink in self._sinks}
        self._sender = self._make_sender()
        otlp = settings.otlp
        self.takes_protobuf = self._sender is not None and (
            otlp is None or otlp.protocol != HTTP_JSON
        )
        self._host: HostSink | None = None
        self._records: list[SpanRecord] = []
        self._encoded: list[bytes] = []
        self.overhead = len(wire.encode_request(self._resource, self._scope, [])) + 6

    def start(self) -> None:
        """Starts the thread that sends.

        Raises:
            RuntimeError: The process cannot have another thread.
        """
        if self._sender is not None:
            self._sender.start()

    def add(self, records: Sequence[SpanRecord], encoded: Sequence[bytes]) -> None:
        """Takes spans that belong together; they stay in one request if it holds them.

        Args:
            records: The spans.
            encoded: Each from :func:`wire.encode_span`; none where ``takes_protobuf`` is False.
        """
        size = self._settings.batch.max_batch
        if self._records and len(self._records) + len(records) > size:
            self.emit()
        self._records.extend(records)
        self._encoded.extend(encoded)
        if len(self._records) >= size:
            self.emit()

    def emit(self) -> None:
        """Gives what was gathered to everything that wants it.

        That is one batch, or one step that is larger.
        """
        records, self._records = self._records, []
        encoded, self._encoded = self._encoded, []
        if not records or self._abandoned:
            return
        host = self._find_host()
        sinks: list[SpanSink] = [*self._sinks, host] if host is not None else self._sinks
        sender = self._sender if host is None else None
        destinations = len(sinks) + (sender is not None)
        if not destinations:
            self._ledger.settle(DROPPED, NOWHERE, len(records))
            return
        self._ledger.expect((destinations - 1) * len(records))
        for sink in sinks:
            for batch in self._batches(len(records)):
                self._write(sink, records[batch])
        if sender is not None:
            self._send(sender, records, encoded)

    def flush(self, deadline: float, *, ends: bool) -> bool:
        """Emits everything and sees it sent; returns whether it was, before ``deadline``."""
        self.emit()
        if self._sender is None:
            return True
        done: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._sender.flush(Flush(deadline, done, ends))
        try:
            return done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return False

    def abandon(self) -> None:
        """Gives up what is being sent; called from another thread."""
        self._abandoned = True
        if self._sender is not None:
            self._sender.abandon()

    def leave_parent(self) -> None:
        """Becomes inert in a forked child."""
        if self._sender is not None:
            self._sender.leave_parent()

    def _make_sender(self) -> Sender | None:
        otlp = self._settings.otlp
        transport = make_transport(otlp) if otlp is not None else None
        if otlp is None or transport is None:
            return None
        return Sender(transport, otlp.timeout_s, self._settings.batch, self._ledger.settle)

    def _batches(self, spans: int) -> list[slice]:
        size = self._settings.batch.max_batch
        return [slice(first, min(first + size, spans)) for first in range(0, spans, size)]

    def _send(
        self, sender: Sender, records: Sequence[SpanRecord], encoded: Sequence[bytes]
    ) -> None:
        try:
            batches = [
                Batch(self._request(records[batch], encoded[batch]), batch.stop - batch.start)
                for batch in self._batches(len(records))
            ]
        except Exception:
            self._ledger.settle(DROPPED, ERROR, len(records))
            raise
        sender.submit(*batches)

    def _request(self, records: Sequence[SpanRecord], encoded: Sequence[bytes]) -> bytes:
        otlp = self._settings.otlp
        if otlp is not None and otlp.protocol == HTTP_JSON:
            return self._json.encode(records)
        return wire.encode_request(self._resource, self._scope, encoded)

    def _find_host(self) -> HostSink | None:
        provider = find_host_provider()
        if provider is None:
            return None
        if self._host is None or self._host.provider is not provider:
            self._host = HostSink(provider, self._attributes)
            self._logs[self._host.name] = DeliveryLog(self._host.target)
        return self._host

    def _write(self, sink: SpanSink, records: Sequence[SpanRecord]) -> None:
        if self._abandoned:  # while the sink held the batch before this one
            return
        log = self._logs[sink.name]
        taken = len(records)
        try:
            refusals = sink.write(records)
        except Exception as error:  # noqa: BLE001 - a sink that fails loses its own spans only
            reason = error.strerror if isinstance(error, OSError) else None
            refusals = [Refusal(sink.name, taken, reason or type(error).__name__)]
        for refusal in refusals:
            taken -= refusal.spans
            self._ledger.settle(DROPPED, refusal.reason, refusal.spans)
            if refusal.detail:
                log.failed(refusal.detail)
        if taken:
            self._ledger.settle(EXPORTED, sink.name, taken)
            log.delivered()
