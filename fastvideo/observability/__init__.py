"""Always-on telemetry: Prometheus metrics, OpenTelemetry spans, device time, run identity."""
