"""What OTLP distinguishes by signal: the names of variables, paths and methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GRPC: Final = "grpc"
HTTP_PROTOBUF: Final = "http/protobuf"
HTTP_JSON: Final = "http/json"


@dataclass(frozen=True, slots=True)
class Signal:
    """A kind of telemetry.

    Attributes:
        name: As variables have it.
        shown: As people call it.
        path: What is requested below the general endpoint over HTTP.
        method: The gRPC method.
        protocols: The protocols that it can be sent with.
    """

    name: str
    shown: str
    path: str
    method: str
    protocols: tuple[str, ...]

    def variables(self, suffix: str) -> tuple[str, str]:
        """Returns the variable for this signal, which counts first, and the general one."""
        return f"OTEL_EXPORTER_OTLP_{self.name}_{suffix}", f"OTEL_EXPORTER_OTLP_{suffix}"


_SERVICE: Final = "/opentelemetry.proto.collector"

TRACES: Final = Signal(
    "TRACES",
    "spans",
    "v1/traces",
    f"{_SERVICE}.trace.v1.TraceService/Export",
    (GRPC, HTTP_PROTOBUF, HTTP_JSON),
)
METRICS: Final = Signal(
    "METRICS",
    "metrics",
    "v1/metrics",
    f"{_SERVICE}.metrics.v1.MetricsService/Export",
    (GRPC, HTTP_PROTOBUF),
)
