"""Settings of pushed metrics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.metrics.otlp_settings import OtlpMetricsSettings
from fastvideo.observability.tracing.settings import TraceSettings

if TYPE_CHECKING:
    from pathlib import Path

ON = {"OTEL_METRICS_EXPORTER": "otlp"}
GENERAL = "OTEL_EXPORTER_OTLP_ENDPOINT"
OWN = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
GRPC = {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}


def read(**environ: str) -> OtlpMetricsSettings:
    """Returns the settings of an environment that asks for pushes."""
    settings = OtlpMetricsSettings.from_env(ON | environ)
    assert settings is not None
    return settings


@pytest.mark.parametrize(
    ("environ", "pushes"),
    [
        ({}, False),
        ({"OTEL_METRICS_EXPORTER": ""}, False),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, False),
        ({"OTEL_METRICS_EXPORTER": "none", OWN: "http://c:4318/v1/metrics"}, False),
        ({GENERAL: "http://c:4318"}, False),
        ({OWN: "http://c:4318/v1/metrics"}, True),
        ({OWN: ""}, False),
        (ON, True),
        ({"OTEL_METRICS_EXPORTER": "prometheus, OTLP"}, True),
        (ON | {"OTEL_SDK_DISABLED": "true"}, False),
        (ON | {"OTEL_SDK_DISABLED": ""}, True),
        (ON | {"OTEL_SDK_DISABLED": "1"}, True),
    ],
)
def test_when_metrics_are_pushed(environ: dict[str, str], *, pushes: bool) -> None:
    """Asked for by name, or by an endpoint of their own; empty is unset."""
    assert (OtlpMetricsSettings.from_env(environ) is not None) == pushes


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, "http://localhost:4318/v1/metrics"),
        ({GENERAL: "http://c:4318"}, "http://c:4318/v1/metrics"),
        ({GENERAL: "http://c:4318/"}, "http://c:4318/v1/metrics"),
        ({GENERAL: "https://c/base/"}, "https://c:443/base/v1/metrics"),
        ({GENERAL: "https://c/v1/traces"}, "https://c:443/v1/traces/v1/metrics"),
        ({OWN: "http://c:9/exact"}, "http://c:9/exact"),
        ({OWN: "http://c:9/exact", GENERAL: "http://other:1"}, "http://c:9/exact"),
        ({OWN: "", GENERAL: "http://other:1"}, "http://other:1/v1/metrics"),
        (GRPC, "http://localhost:4317"),
        (GRPC | {GENERAL: "http://c:4317"}, "http://c:4317"),
        (GRPC | {OWN: "https://c:1"}, "https://c:1"),
        (GRPC | {OWN: "c:1", "OTEL_EXPORTER_OTLP_METRICS_INSECURE": "true"}, "http://c:1"),
        (GRPC | {GENERAL: "c:1", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, "http://c:1"),
    ],
)
def test_endpoints(environ: dict[str, str], shown: str) -> None:
    """The endpoint for metrics is used as it is; the general one gets the path of the signal."""
    assert read(**environ).otlp.endpoint.shown == shown


def test_a_query_of_the_general_endpoint_stays_behind_the_path() -> None:
    """What a URL carries for the collector survives."""
    environ = {GENERAL: "http://c:1/base?tenant=a"}
    assert read(**environ).otlp.endpoint.path == "/base/v1/metrics?tenant=a"


def test_the_variables_for_metrics_win_over_the_general_ones(tmp_path: Path) -> None:
    """Every variable has both forms."""
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    values = {
        "PROTOCOL": ("http/protobuf", "grpc"),
        "TIMEOUT": ("1500", "9"),
        "COMPRESSION": ("gzip", "none"),
        "HEADERS": ("Key=a%20b", "key=other"),
        "CERTIFICATE": (str(ca), str(tmp_path / "missing")),
    }
    environ = {f"OTEL_EXPORTER_OTLP_METRICS_{k}": own for k, (own, _) in values.items()}
    environ |= {f"OTEL_EXPORTER_OTLP_{k}": general for k, (_, general) in values.items()}
    environ |= {"OTEL_METRIC_EXPORT_INTERVAL": "2500"}
    settings = read(**environ)
    assert (settings.interval_s, settings.otlp.timeout_s, settings.otlp.gzip) == (2.5, 1.5, True)
    assert settings.otlp.headers == (("key", "a b"),)
    assert settings.otlp.certificate == ca
    assert settings.otlp.protocol == "http/protobuf"
    assert "a b" not in repr(settings)


def test_the_defaults_are_those_of_the_specification() -> None:
    """A push a minute, ten seconds for the answer, nothing compressed."""
    settings = read()
    assert (settings.interval_s, settings.otlp.timeout_s, settings.otlp.gzip) == (60.0, 10.0, False)
    assert (settings.service_name, settings.resource) == ("fastvideo", {})


def test_the_resource_comes_from_the_environment() -> None:
    """OTEL_SERVICE_NAME wins over the attribute of that name."""
    attributes = "service.name=a,team=video"
    settings = read(OTEL_RESOURCE_ATTRIBUTES=attributes)
    assert (settings.service_name, settings.resource) == ("a", {"team": "video"})
    settings = read(OTEL_RESOURCE_ATTRIBUTES=attributes, OTEL_SERVICE_NAME="b")
    assert (settings.service_name, settings.resource) == ("b", {"team": "video"})


@pytest.mark.parametrize(
    ("environ", "warning", "pushes"),
    [
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "abc"}, "OTEL_EXPORTER_OTLP_TIMEOUT='abc': expected", True),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"}, "OTLP_COMPRESSION='zip': expected one", True),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "0"}, "OTEL_METRIC_EXPORT_INTERVAL='0': expected", True),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "udp"}, "OTLP_PROTOCOL='udp': expected one of grpc", True),
        ({"OTEL_METRICS_EXPORTER": "otlp,x"}, "OTEL_METRICS_EXPORTER='x': expected one of", True),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "host=x,a=b"}, "OTLP_HEADERS: host: set by the", True),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=b%0Ac"}, "OTLP_HEADERS: 1 headers cannot be sent", True),
        ({"OTEL_SDK_DISABLED": "1"}, "OTEL_SDK_DISABLED='1': expected true or false", True),
        ({OWN: "ftp://c"}, f"{OWN} is no URL .* OTLP metrics are off", False),
        ({GENERAL: "http://"}, f"{GENERAL} is no URL .* OTLP metrics are off", False),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere"}, "cannot be read", False),
    ],
)
def test_bad_values_are_one_warning_each(
    environ: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture, *, pushes: bool
) -> None:
    """Nothing raises; the variable is named, and a default is used or pushes are off."""
    settings: Any = OtlpMetricsSettings.from_env(ON | environ)
    assert (settings is not None) == pushes
    assert len(caplog.records) == 1
    assert re.search(warning, caplog.text)


def test_what_spans_told_already_is_not_told_again(caplog: pytest.LogCaptureFixture) -> None:
    """A variable that both read is one warning."""
    environ = ON | {"OTEL_EXPORTER_OTLP_TIMEOUT": "abc", "OTEL_METRIC_EXPORT_INTERVAL": "x"}
    spans = TraceSettings.from_env(environ | {"OTEL_TRACES_EXPORTER": "otlp"})
    settings = OtlpMetricsSettings.from_env(environ, told=spans.problems)
    assert settings is not None
    assert len(settings.problems) == 2
    assert len(caplog.records) == 2
