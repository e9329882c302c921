"""What a dry run says about telemetry: everything in force, where it comes from, no secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastvideo.observability.config import TelemetryConfig
from fastvideo.observability.settings_table import BY_NAME, SETTINGS, Setting
from fastvideo.observability.tracing.signals import METRICS, TRACES

if TYPE_CHECKING:
    from pathlib import Path

ALL_ON = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp"}
GRPC = {**ALL_ON, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}

GIVEN = {
    "metrics": ("yes", "1"),
    "metrics_host": ("10.0.0.1", "10.0.0.1"),
    "metrics_port": ("9500", "9500"),
    "metrics_targets_dir": ("/run/targets", "/run/targets"),
    "metrics_web_config": ("/run/web.yml", "/run/web.yml"),
    "metrics_final_scrape_seconds": ("61", "61 s"),
    "metrics_exporter": ("otlp", "otlp"),
    "metric_export_interval_ms": ("1500", "1500 ms"),
    "otlp_endpoint": ("http://c:4318/v1/given", "http://c:4318/v1/given"),
    "otlp_protocol": ("HTTP/protobuf", "http/protobuf"),
    "otlp_timeout_ms": ("300", "300 ms"),
    "otlp_compression": ("gzip", "gzip"),
    "otlp_headers": ("Api-Key=hidden,b=hidden", "api-key, b"),
    "otlp_insecure": ("true", "false"),
    "otlp_certificate": ("FILE", "FILE"),
    "otlp_client_key": ("FILE", "FILE"),
    "otlp_client_certificate": ("FILE", "FILE"),
    "traces_exporter": ("otlp,console", "otlp, console"),
    "span_dir": ("/run/spans", "/run/spans"),
    "span_file_max_bytes": ("1000", "1000 bytes"),
    "trace_max_bytes": ("2000", "2000 bytes"),
    "sampler": ("traceidratio", "traceidratio"),
    "sampler_ratio": ("0.25", "0.25"),
    "service_name": ("video", "video"),
    "resource_attributes": ("team=x,b=1", "team=x, b=1"),
    "sdk_disabled": ("true", "true"),
    "bsp_schedule_delay_ms": ("200", "200 ms"),
    "bsp_export_timeout_ms": ("400", "400 ms"),
    "bsp_max_queue_size": ("900", "900 spans"),
    "bsp_max_export_batch_size": ("90", "90 spans"),
    "span_attribute_count_limit": ("9", "9"),
    "span_attribute_value_length_limit": ("8", "8 characters"),
    "span_link_count_limit": ("7", "7"),
    "run_name": ("tuesday", "tuesday"),
}
"""For each setting a text as people write it, and what is said of it."""


def _described(environ: dict[str, str], section: dict[str, object] | None = None) -> dict[str, str]:
    return TelemetryConfig.from_sources(environ, section).describe()


def test_every_setting_is_said() -> None:
    """With everything on, the report has all settings of the table and nothing else."""
    names = set(_described(GRPC))
    expected = {setting.name for setting in SETTINGS if not setting.per_signal}
    for setting in SETTINGS:
        if setting.per_signal:
            expected |= {setting.name_of(TRACES), setting.name_of(METRICS)}
    assert names == expected


def test_what_nobody_has_set_can_be_left_out() -> None:
    """No line is left of defaults; one setting leaves itself and what it decides about."""
    nothing = TelemetryConfig.from_sources({}, {}, run_name="of the tracker")
    assert nothing.describe(changed_only=True) == {}
    ratio = TelemetryConfig.from_sources({"FASTVIDEO_METRICS": ""}, {"sampler_ratio": 0.5})
    assert list(ratio.describe(changed_only=True)) == ["sampler", "sampler_ratio"]


def test_defaults_are_those_of_the_table() -> None:
    """What is in force without being set is what the table says."""
    for name, text in _described(ALL_ON).items():
        setting = BY_NAME[name.partition(" (")[0]]
        if "exporter" in name:
            continue
        unit = f" {setting.unit}" if setting.unit else ""
        expected = f"{setting.default}{unit} (default)"
        if setting.name == "otlp_endpoint":
            expected = expected.replace(
                "4318", f"4318/v1/{'traces' if 'spans' in name else 'metrics'}"
            )
        assert (name, text) == (name, expected)
    assert _described({})["traces_exporter"] == "none (default)"
    assert _described({})["metrics_exporter"] == "none (default)"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_variable_has_its_say(setting: Setting, tmp_path: Path) -> None:
    """Each variable alone changes what is in force, and is named as its origin."""
    file = tmp_path / "file.pem"
    file.touch()
    given, said = (text.replace("FILE", str(file)) for text in GIVEN[setting.name])
    for variable in setting.all_variables:
        signals = [
            signal for signal in (TRACES, METRICS) if variable in setting.variables_of(signal)
        ]
        names = [setting.name]
        if setting.per_signal:
            names = [setting.name_of(signal) for signal in signals]
        environ = {**ALL_ON, variable: given}
        if setting.name == "sampler_ratio":
            environ["OTEL_TRACES_SAMPLER"] = "traceidratio"
        if setting.name == "otlp_insecure":
            environ = {**GRPC, "OTEL_EXPORTER_OTLP_ENDPOINT": "https://c", variable: given}
        described = _described(environ)
        for name in names:
            expected = said
            if variable == "OTEL_EXPORTER_OTLP_ENDPOINT":
                expected += "/v1/traces" if "spans" in name else "/v1/metrics"
            assert described[name] == f"{expected} ({variable})"


@pytest.mark.parametrize(
    "setting", [s for s in SETTINGS if s.in_file], ids=lambda setting: setting.name
)
def test_every_key_has_its_say(setting: Setting) -> None:
    """Each key alone changes what is in force, and is named as its origin."""
    given, said = GIVEN[setting.name]
    environ = {name: value for name, value in ALL_ON.items() if name not in setting.variables}
    described = _described(environ, {setting.name: given})
    name = setting.name_of(TRACES) if setting.per_signal else setting.name
    if setting.name == "otlp_endpoint":
        said += "/v1/traces"
    assert described[name] == f"{said} (observability.{setting.name})"


def test_mappings_and_lists_of_the_file_are_taken_whole() -> None:
    """Commas and equal signs in resource attributes survive, for spans and metrics alike."""
    config = TelemetryConfig.from_sources(
        {},
        {
            "resource_attributes": {"team": "a,b=c", "cost%": 7},
            "traces_exporter": ["otlp", "console"],
            "metrics_exporter": ["otlp"],
        },
    )
    expected = {"team": "a,b=c", "cost%": "7"}
    assert config.otlp_metrics is not None
    assert (config.traces.resource, config.otlp_metrics.resource) == (expected, expected)
    assert (config.traces.otlp is not None, config.traces.console) == (True, True)


@pytest.mark.parametrize(
    ("environ", "section", "name", "said"),
    [
        ({"OTEL_BSP_SCHEDULE_DELAY": "x"}, {}, "bsp_schedule_delay_ms", "OTEL_BSP_SCHEDULE_DELAY"),
        ({"FASTVIDEO_METRICS_PORT": "x"}, {}, "metrics_port", "FASTVIDEO_METRICS_PORT"),
        ({}, {"metrics_port": "x"}, "metrics_port", "observability.metrics_port"),
        ({}, {"trace_max_bytes": "x"}, "trace_max_bytes", "observability.trace_max_bytes"),
        (
            {**ALL_ON, "OTEL_METRIC_EXPORT_INTERVAL": "-1"},
            {},
            "metric_export_interval_ms",
            "OTEL_METRIC_EXPORT_INTERVAL",
        ),
    ],
)
def test_what_was_refused_is_not_named_as_an_origin(
    environ: dict[str, str], section: dict[str, object], name: str, said: str
) -> None:
    """The report says which value the default stands in for."""
    setting = BY_NAME[name]
    unit = f" {setting.unit}" if setting.unit else ""
    assert _described(environ, section)[name] == f"{setting.default}{unit} (in place of {said})"


@pytest.mark.parametrize(
    ("environ", "section", "name", "said"),
    [
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"},
            {},
            "traces_exporter",
            "otlp (OTEL_EXPORTER_OTLP_ENDPOINT)",
        ),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c"},
            {},
            "metrics_exporter",
            "otlp (OTEL_EXPORTER_OTLP_METRICS_ENDPOINT)",
        ),
        (
            {},
            {"sampler_ratio": 0.1},
            "sampler",
            "parentbased_traceidratio (observability.sampler_ratio)",
        ),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, {}, "sampler_ratio", "0 (OTEL_TRACES_SAMPLER)"),
        ({"OTEL_TRACES_SAMPLER_ARG": "0.1"}, {}, "sampler_ratio", "1 (default)"),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=video"},
            {},
            "service_name",
            "video (OTEL_RESOURCE_ATTRIBUTES)",
        ),
        (
            {**ALL_ON, "OTEL_SDK_DISABLED": "true"},
            {},
            "traces_exporter",
            "none (OTEL_SDK_DISABLED)",
        ),
        (
            {**ALL_ON, "OTEL_SDK_DISABLED": "true"},
            {},
            "metrics_exporter",
            "none (OTEL_SDK_DISABLED)",
        ),
        ({"FASTVIDEO_METRICS": "0"}, {}, "metrics", "0 (FASTVIDEO_METRICS)"),
    ],
)
def test_a_setting_that_another_decides_names_it(
    environ: dict[str, str], section: dict[str, object], name: str, said: str
) -> None:
    """The origin is what somebody wrote, though it was written about something else."""
    assert _described(environ, section)[name] == said


def test_what_is_off_has_no_details() -> None:
    """Without endpoint, collector and push, nothing is said about how they would be."""
    environ = {"FASTVIDEO_METRICS": "0", "OTEL_EXPORTER_OTLP_TIMEOUT": "5"}
    described = _described(environ)
    assert [name for name in described if name.startswith(("otlp", "metric"))] == [
        "metrics",
        "metrics_exporter",
    ]


def test_a_value_for_both_signals_is_refused_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A general variable is read for spans and for metrics, and complained about once."""
    _described({**ALL_ON, "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"})
    assert len(caplog.records) == 1


def test_the_name_that_the_program_gives_is_said() -> None:
    """A run's name from the trainer is neither a default nor a setting."""
    config = TelemetryConfig.from_sources({}, run_name="from-tracker")
    assert config.describe()["run_name"] == "from-tracker (the program)"


def test_no_secret_is_said(tmp_path: Path) -> None:
    """Values of headers, and user, password and query of a URL, do not appear; names do."""
    key = tmp_path / "key.pem"
    key.write_text("hidden")
    environ = {
        **ALL_ON,
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://hidden:hidden@127.0.0.1:4318/?token=hidden",
        "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20hidden,x-scope=hidden",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(key),
    }
    config = TelemetryConfig.from_sources(environ)
    described = config.describe()
    assert "hidden" not in str(described)
    assert "hidden" not in repr(config)
    for signal in ("spans", "metrics"):
        assert described[f"otlp_headers ({signal})"] == (
            "authorization, x-scope (OTEL_EXPORTER_OTLP_HEADERS)"
        )
