"""What telemetry does, from a configuration file and the environment."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from fastvideo.observability.config import TelemetryConfig

if TYPE_CHECKING:
    from pathlib import Path


def test_by_default_metrics_are_served_on_loopback_and_spans_are_off() -> None:
    """Nothing set: an endpoint that only this machine reaches, and no spans."""
    config = TelemetryConfig.from_sources({})
    assert (config.metrics, config.host, config.port) == (True, "127.0.0.1", 9464)
    assert (config.targets_dir, config.web_config, config.traces.enabled) == (None, None, False)


def test_the_environment_wins_over_the_file() -> None:
    """Both set: the variable counts; one that is empty does not."""
    section = {"metrics_port": 9500, "metrics_host": "10.0.0.1", "metrics": False}
    environ = {"FASTVIDEO_METRICS_PORT": "0", "FASTVIDEO_METRICS_HOST": ""}
    config = TelemetryConfig.from_sources(environ, section)
    assert (config.port, config.host, config.metrics) == (0, "10.0.0.1", False)


def test_prometheus_variables_of_opentelemetry_count_where_ours_are_unset() -> None:
    """OTEL_EXPORTER_PROMETHEUS_HOST and _PORT are understood."""
    environ = {"OTEL_EXPORTER_PROMETHEUS_HOST": "::1", "OTEL_EXPORTER_PROMETHEUS_PORT": "9999"}
    config = TelemetryConfig.from_sources(environ)
    assert (config.host, config.port) == ("::1", 9999)
    config = TelemetryConfig.from_sources({**environ, "FASTVIDEO_METRICS_PORT": "9465"})
    assert config.port == 9465


@pytest.mark.parametrize(
    ("variable", "value", "field", "default"),
    [
        ("FASTVIDEO_METRICS_PORT", "70000", "port", 9464),
        ("FASTVIDEO_METRICS_PORT", "http", "port", 9464),
        ("FASTVIDEO_METRICS_PORT", "-1", "port", 9464),
        ("FASTVIDEO_METRICS", "perhaps", "metrics", True),
        ("FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS", "2.5", "final_scrape_s", 20),
        ("FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS", "never", "final_scrape_s", 20),
    ],
)
def test_a_bad_value_is_one_warning_and_the_default(
    variable: str, value: str, field: str, default: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names variable, value and what is expected; nothing raises."""
    with caplog.at_level(logging.WARNING, logger="fastvideo"):
        config = TelemetryConfig.from_sources({variable: value})
    assert getattr(config, field) == default
    assert len(caplog.records) == 1
    assert f"{variable}='{value}'" in caplog.text


def test_an_unknown_key_is_one_warning_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    """A typing mistake in the file is pointed out."""
    with caplog.at_level(logging.WARNING, logger="fastvideo"):
        TelemetryConfig.from_sources({}, {"metrics_prot": 1})
    assert len(caplog.records) == 1
    assert "observability.metrics_prot is not known" in caplog.text
    assert "Did you mean 'metrics_port'?" in caplog.text


def test_paths_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A later chdir moves nothing; a home directory is expanded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = TelemetryConfig.from_sources(
        {"FASTVIDEO_METRICS_TARGETS_DIR": "targets"}, {"metrics_web_config": "~/web.yml"}
    )
    assert config.targets_dir == tmp_path / "targets"
    assert config.web_config == tmp_path / "home" / "web.yml"


def test_a_time_of_centuries_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Times have a bound, so no thread fails to wait for them."""
    with caplog.at_level(logging.WARNING, logger="fastvideo"):
        config = TelemetryConfig.from_sources({"OTEL_BSP_SCHEDULE_DELAY": "9" * 16})
    assert config.traces.batch.delay_s == 5.0
    assert "at most 86400000 milliseconds" in caplog.text


def test_where_settings_come_from_makes_no_difference_to_what_they_are() -> None:
    """Two ways to say the same are the same settings: a second start with them changes nothing."""
    by_variable = TelemetryConfig.from_sources({"FASTVIDEO_METRICS_PORT": "9500"})
    by_file = TelemetryConfig.from_sources({}, {"metrics_port": 9500})
    assert by_variable == by_file
    assert by_variable.origins != by_file.origins


def test_metrics_can_be_pushed_by_the_file_alone() -> None:
    """Exporter, endpoint and interval have keys, so a run file says all that has no secret."""
    config = TelemetryConfig.from_sources(
        {},
        {
            "metrics_exporter": "otlp",
            "otlp_endpoint": "http://collector:4318",
            "metric_export_interval_ms": 5000,
        },
    )
    assert config.otlp_metrics is not None
    assert config.otlp_metrics.otlp.endpoint.shown == "http://collector:4318/v1/metrics"
    assert config.otlp_metrics.interval_s == 5.0
