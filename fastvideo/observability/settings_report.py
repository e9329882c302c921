"""Settings of telemetry for people: what is in force, and where each comes from; no secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.observability.settings_table import BY_NAME, NONE, UNSET
from fastvideo.observability.tracing.settings import DEFAULT_SERVICE_NAME
from fastvideo.observability.tracing.signals import GRPC, METRICS, TRACES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fastvideo.observability.config import TelemetryConfig
    from fastvideo.observability.metrics.otlp_settings import OtlpMetricsSettings
    from fastvideo.observability.tracing.otlp_settings import OtlpSettings
    from fastvideo.observability.tracing.settings import TraceSettings
    from fastvideo.observability.tracing.signals import Signal

_DISABLED: Final = "sdk_disabled"
_PROGRAM: Final = "the program"


def report_settings(config: TelemetryConfig, *, changed_only: bool = False) -> dict[str, str]:
    """Returns every setting in force, by name, as ``value unit (origin)``.

    Settings of what is off are left out: of an endpoint that does not exist, of a collector that
    nothing is sent to.

    Args:
        config: The settings.
        changed_only: Leave out what neither the file nor a variable has a say in.
    """
    values = {
        **_endpoint(config),
        **_pushed(config.otlp_metrics),
        **_spans(config.traces),
        **_gathering(config.traces),
        "run_name": config.run_name or BY_NAME["run_name"].default,
    }
    origins = _explained(config)
    return {
        name: _line(name, value, origins)
        for name, value in values.items()
        if not changed_only or origins.get(name) not in {None, "", _PROGRAM}
    }


def _endpoint(config: TelemetryConfig) -> dict[str, str]:
    if not config.metrics:
        return {"metrics": "0"}
    return {
        "metrics": "1",
        "metrics_host": config.host,
        "metrics_port": str(config.port),
        "metrics_targets_dir": _path(config.targets_dir),
        "metrics_web_config": _path(config.web_config),
        "metrics_final_scrape_seconds": str(config.final_scrape_s),
    }


def _pushed(settings: OtlpMetricsSettings | None) -> dict[str, str]:
    if settings is None:
        return {"metrics_exporter": NONE}
    return {
        "metrics_exporter": "otlp",
        "metric_export_interval_ms": _milliseconds(settings.interval_s),
        **_otlp(settings.otlp, METRICS),
    }


def _spans(traces: TraceSettings) -> dict[str, str]:
    asked = {"otlp": traces.otlp is not None, "console": traces.console}
    wanted = [] if traces.disabled else [name for name, on in asked.items() if on]
    collector = {} if traces.otlp is None or traces.disabled else _otlp(traces.otlp, TRACES)
    return {
        "traces_exporter": ", ".join(wanted) or NONE,
        **collector,
        "span_dir": UNSET if traces.disabled else _path(traces.span_dir),
        "span_file_max_bytes": str(traces.span_file_max_bytes),
        "trace_max_bytes": str(traces.trace_max_bytes),
        "sampler": traces.sampler.name,
        "sampler_ratio": f"{traces.sampler.ratio():g}",
        "service_name": traces.service_name,
        "resource_attributes": ", ".join(f"{k}={v}" for k, v in traces.resource.items()) or NONE,
        _DISABLED: str(traces.disabled).lower(),
    }


def _gathering(traces: TraceSettings) -> dict[str, str]:
    batch, limits = traces.batch, traces.limits
    return {
        "bsp_schedule_delay_ms": _milliseconds(batch.delay_s),
        "bsp_export_timeout_ms": _milliseconds(batch.export_timeout_s),
        "bsp_max_queue_size": str(batch.max_queue),
        "bsp_max_export_batch_size": str(batch.max_batch),
        "span_attribute_count_limit": str(limits.attributes),
        "span_attribute_value_length_limit": str(limits.value_length),
        "span_link_count_limit": str(limits.links),
    }


def _otlp(otlp: OtlpSettings, signal: Signal) -> dict[str, str]:
    values = {
        "otlp_endpoint": otlp.endpoint.shown,
        "otlp_protocol": otlp.protocol,
        "otlp_timeout_ms": _milliseconds(otlp.timeout_s),
        "otlp_compression": "gzip" if otlp.gzip else NONE,
        "otlp_headers": ", ".join(name for name, _ in otlp.headers) or NONE,
        "otlp_certificate": _path(otlp.certificate),
        "otlp_client_key": _path(otlp.client_key),
        "otlp_client_certificate": _path(otlp.client_certificate),
    }
    if otlp.protocol == GRPC:
        values["otlp_insecure"] = str(not otlp.endpoint.secure).lower()
    return {BY_NAME[name].name_of(signal): value for name, value in values.items()}


def _explained(config: TelemetryConfig) -> Mapping[str, str]:
    """Returns the origins, those of settings included that others decide about."""
    origins = dict(config.origins)
    traces = config.traces

    def follows(name: str, other: str) -> None:
        if other in origins:
            origins.setdefault(name, origins[other])

    if traces.otlp is not None:
        follows("traces_exporter", "otlp_endpoint (spans)")
    if config.otlp_metrics is not None:
        follows("metrics_exporter", "otlp_endpoint (metrics)")
    if traces.sampler.name.endswith("traceidratio"):
        follows("sampler", "sampler_ratio")  # a ratio in the file chooses the sampler
    else:
        origins.pop("sampler_ratio", None)  # which nothing else reads
        follows("sampler_ratio", "sampler")
    if traces.service_name != DEFAULT_SERVICE_NAME:
        follows("service_name", "resource_attributes")
    if traces.disabled:
        origins |= dict.fromkeys(("traces_exporter", "span_dir"), origins.get(_DISABLED, ""))
        if config.otlp_metrics is None:
            origins["metrics_exporter"] = origins.get(_DISABLED, "")
    if config.run_name:
        origins.setdefault("run_name", _PROGRAM)
    return origins


def _line(name: str, value: str, origins: Mapping[str, str]) -> str:
    unit = BY_NAME[name.partition(" (")[0]].unit
    return f"{value}{f' {unit}' if unit else ''} ({origins.get(name) or 'default'})"


def _path(path: Path | None) -> str:
    return UNSET if path is None else str(path)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"
