"""Makes what the settings ask for: a transport to a collector, and sinks for files and console."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from fastvideo.logger import init_logger
from fastvideo.observability.tracing.file import ConsoleSink, FileSink, JsonEncoder
from fastvideo.observability.tracing.grpc_transport import GrpcTransport
from fastvideo.observability.tracing.http_transport import HttpTransport
from fastvideo.observability.tracing.signals import GRPC

if TYPE_CHECKING:
    from fastvideo.observability.tracing.otlp_settings import OtlpSettings
    from fastvideo.observability.tracing.settings import TraceSettings
    from fastvideo.observability.tracing.sinks import SpanSink
    from fastvideo.observability.tracing.transport import Transport

logger = init_logger(__name__)


def make_transport(settings: OtlpSettings) -> Transport | None:
    """Returns what sends to the collector; nothing is connected yet.

    Returns:
        The transport, or None with one warning where the library it needs is not installed.
    """
    if settings.protocol != GRPC:
        return HttpTransport(settings)
    if importlib.util.find_spec("grpc") is None:
        logger.warning(
            "OTLP over gRPC needs the package grpcio, which is not installed; OTLP %s are off. "
            "Install opentelemetry-exporter-otlp, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
            settings.signal.shown,
        )
        return None
    # By default gRPC starts its threads anew in every forked child, such as a loader's workers,
    # and ends those that close the descriptors they did not ask for. It reads this when it is
    # used first; whoever sets it otherwise is obeyed.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    return GrpcTransport(settings)


def make_sinks(settings: TraceSettings, rank: int, encoder: JsonEncoder) -> list[SpanSink]:
    """Returns the sinks for files and console that the settings ask for.

    Args:
        settings: What is asked for.
        rank: Of this process.
        encoder: Makes the lines.
    """
    sinks: list[SpanSink] = []
    if settings.span_dir is not None:
        sinks.append(FileSink(settings.span_dir, rank, settings.span_file_max_bytes, encoder))
    if settings.console:
        sinks.append(ConsoleSink(encoder))
    return sinks
