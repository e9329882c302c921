"""Always-on telemetry: Prometheus metrics, OpenTelemetry spans, device time, run identity."""

from __future__ import annotations

from fastvideo.observability.config import TelemetryConfig
from fastvideo.observability.current import current_step, current_trace
from fastvideo.observability.setup import Telemetry, active, shutdown, start

__all__ = [
    "Telemetry",
    "TelemetryConfig",
    "active",
    "current_step",
    "current_trace",
    "shutdown",
    "start",
]
