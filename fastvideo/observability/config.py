"""What telemetry does, read once at start from a configuration file and the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import did_you_mean
from fastvideo.logger import init_logger
from fastvideo.observability.metrics.otlp_settings import OtlpMetricsSettings
from fastvideo.observability.tracing.settings import YAML_VARIABLES, TraceSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = init_logger(__name__)

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9464
LARGEST_PORT: Final = 65535

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})

METRICS_VARIABLES: Final[dict[str, str]] = {
    "metrics": "FASTVIDEO_METRICS",
    "metrics_host": "FASTVIDEO_METRICS_HOST",
    "metrics_port": "FASTVIDEO_METRICS_PORT",
    "metrics_targets_dir": "FASTVIDEO_METRICS_TARGETS_DIR",
    "metrics_web_config": "FASTVIDEO_METRICS_WEB_CONFIG",
    "run_name": "FASTVIDEO_RUN_NAME",
}
"""Keys of the YAML section ``observability`` that concern metrics, and their variables."""

KEYS: Final[frozenset[str]] = frozenset({*METRICS_VARIABLES, *YAML_VARIABLES})
"""Every key that the section ``observability`` may have."""


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Everything that is set about telemetry.

    Attributes:
        metrics: Whether there is a Prometheus endpoint, and regions are timed for it.
        host: Address that the endpoint binds to.
        port: Port of local rank 0; local rank n takes the one n above. 0: any free port.
        targets_dir: Directory of the target files that Prometheus discovers, or None.
        web_config: The endpoint's TLS and users, a web-config.yml; or None.
        run_name: The run's name, for people; empty: its identifier.
        traces: What is set about spans.
        otlp_metrics: How metrics are pushed, or None.
    """

    metrics: bool = True
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    targets_dir: Path | None = None
    web_config: Path | None = None
    run_name: str = ""
    traces: TraceSettings = field(default_factory=TraceSettings)
    otlp_metrics: OtlpMetricsSettings | None = None

    @classmethod
    def from_sources(
        cls,
        environ: Mapping[str, str],
        yaml: Mapping[str, Any] | None = None,
        *,
        run_name: str = "",
    ) -> TelemetryConfig:
        """Reads the settings. Never raises: what cannot be used is one warning, and a default.

        Args:
            environ: The environment; wins over ``yaml``. What is empty is unset.
            yaml: The section ``observability`` of a configuration file.
            run_name: The run's name where neither of them gives one.
        """
        section = dict(yaml or {})
        for key in sorted(set(section) - KEYS):
            logger.warning(
                "observability.%s is not known and is ignored.%s", key, did_you_mean(key, KEYS)
            )
        reader = _Reader(environ, section)
        targets_dir = reader.text("metrics_targets_dir")
        web_config = reader.text("metrics_web_config")
        return cls(
            metrics=reader.flag("metrics", default=True),
            host=reader.text("metrics_host", "OTEL_EXPORTER_PROMETHEUS_HOST") or DEFAULT_HOST,
            port=reader.port("metrics_port", "OTEL_EXPORTER_PROMETHEUS_PORT"),
            targets_dir=_absolute(targets_dir),
            web_config=_absolute(web_config),
            run_name=reader.text("run_name") or run_name,
            traces=TraceSettings.from_env(environ, section),
            otlp_metrics=OtlpMetricsSettings.from_env(environ, _as_variables(section)),
        )

    def describe(self) -> dict[str, str]:
        """Returns the settings for people; secrets are counted and not shown."""
        endpoint = f"{self.host}:{self.port or 'any free port'} (+ local rank)"
        return {
            "metrics": endpoint if self.metrics else "off",
            "metrics_targets_dir": str(self.targets_dir or "off"),
            "metrics_web_config": str(self.web_config or "none"),
            "otlp_metrics": "on" if self.otlp_metrics is not None else "off",
            **self.traces.describe(),
        }


class _Reader:
    """Reads one setting after the other: the environment first, then the section."""

    def __init__(self, environ: Mapping[str, str], section: Mapping[str, Any]) -> None:
        self._environ = environ
        self._section = section

    def text(self, key: str, fallback: str = "") -> str:
        """Returns a setting as text; empty when it is not set."""
        return self._named(key, fallback)[1]

    def flag(self, key: str, *, default: bool) -> bool:
        """Returns a setting that is on or off."""
        name, value = self._named(key)
        folded = value.strip().lower()
        if folded in _TRUE:
            return True
        if folded in _FALSE:
            return False
        if folded:
            _refuse(name, value, "0 or 1", int(default))
        return default

    def port(self, key: str, fallback: str) -> int:
        """Returns a setting that is a port, or 0."""
        name, value = self._named(key, fallback)
        if not value:
            return DEFAULT_PORT
        if value.isascii() and value.isdigit() and int(value) <= LARGEST_PORT:
            return int(value)
        _refuse(name, value, f"a port, 0 to {LARGEST_PORT}", DEFAULT_PORT)
        return DEFAULT_PORT

    def _named(self, key: str, fallback: str = "") -> tuple[str, str]:
        """Returns where a setting comes from, and its text."""
        variable = METRICS_VARIABLES[key]
        given = self._environ.get(variable, "").strip()
        if given:
            return variable, given
        value = self._section.get(key)
        if value is not None and value != "":
            return f"observability.{key}", str(value).strip()
        return fallback, self._environ.get(fallback, "").strip() if fallback else ""


def _refuse(name: str, value: str, expected: str, default: object) -> None:
    logger.warning("%s=%r: expected %s; %s is used", name, value, expected, default)


def _absolute(path: str) -> Path | None:
    return Path(path).expanduser().absolute() if path else None


def _as_variables(section: Mapping[str, Any]) -> dict[str, str]:
    """Returns plain values of the section under the names of the variables they stand for."""
    return {
        variable: str(section[key])
        for key, variable in YAML_VARIABLES.items()
        if section.get(key) is not None and not isinstance(section[key], dict)
    }
