"""What telemetry does, read once at start from a configuration file and the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import did_you_mean
from fastvideo.logger import init_logger
from fastvideo.observability.metrics.otlp_settings import OtlpMetricsSettings
from fastvideo.observability.settings_report import report_settings
from fastvideo.observability.settings_sources import SettingsSources
from fastvideo.observability.settings_table import KEYS
from fastvideo.observability.tracing.settings import TraceSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = init_logger(__name__)

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9464
DEFAULT_FINAL_SCRAPE_S: Final = 20
LARGEST_PORT: Final = 65535

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """Everything that is set about telemetry.

    Attributes:
        metrics: Whether there is a Prometheus endpoint, and regions are timed for it.
        host: Address that the endpoint binds to.
        port: Port of local rank 0; local rank n takes the one n above. 0: any free port.
        targets_dir: Directory of the target files that Prometheus discovers, or None.
        web_config: The endpoint's TLS and users, a web-config.yml; or None.
        final_scrape_s: The longest wait, in seconds, for a scrape that sees the end of the run.
        run_name: The run's name, for people; empty: its identifier.
        traces: What is set about spans.
        otlp_metrics: How metrics are pushed, or None.
        origins: Where each setting that is not a default comes from, by the name that it has in
            :meth:`describe`.
    """

    metrics: bool = True
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    targets_dir: Path | None = None
    web_config: Path | None = None
    final_scrape_s: int = DEFAULT_FINAL_SCRAPE_S
    run_name: str = ""
    traces: TraceSettings = field(default_factory=TraceSettings)
    otlp_metrics: OtlpMetricsSettings | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

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
        for key in sorted(set(yaml or {}) - KEYS):
            logger.warning(
                "observability.%s is not known and is ignored.%s", key, did_you_mean(key, KEYS)
            )
        sources = SettingsSources(environ, yaml or {})
        traces = TraceSettings.from_env(environ, sources.section)
        otlp_metrics = OtlpMetricsSettings.from_env(
            environ, sources.as_variables(), told=traces.problems
        )
        reader = _Reader(sources)
        metrics = reader.flag("metrics", default=True)
        port = reader.port("metrics_port", DEFAULT_PORT)
        final_scrape_s = reader.seconds("metrics_final_scrape_seconds", DEFAULT_FINAL_SCRAPE_S)
        pushed_problems = otlp_metrics.problems if otlp_metrics is not None else ()
        problems = [*reader.problems, *traces.problems, *pushed_problems]
        return cls(
            metrics=metrics,
            host=sources.text("metrics_host") or DEFAULT_HOST,
            port=port,
            targets_dir=_absolute(sources.text("metrics_targets_dir")),
            web_config=_absolute(sources.text("metrics_web_config")),
            final_scrape_s=final_scrape_s,
            run_name=sources.text("run_name") or run_name,
            traces=traces,
            otlp_metrics=otlp_metrics,
            origins=sources.origins(problems),
        )

    def describe(self, *, changed_only: bool = False) -> dict[str, str]:
        """Returns every setting in force with where it comes from, for people.

        Secrets are not shown: of headers there are names only, of URLs neither user, password nor
        query, of files their paths.

        Args:
            changed_only: Leave out what nobody has set.
        """
        return report_settings(self, changed_only=changed_only)


class _Reader:
    """Reads settings that are not text, and collects what was wrong with them."""

    def __init__(self, sources: SettingsSources) -> None:
        self._sources = sources
        self.problems: list[str] = []

    def flag(self, key: str, *, default: bool) -> bool:
        """Returns a setting that is on or off."""
        value = self._sources.text(key)
        folded = value.lower()
        if folded in _TRUE:
            return True
        if folded in _FALSE:
            return False
        if value:
            self._refuse(key, "0 or 1", int(default))
        return default

    def port(self, key: str, default: int) -> int:
        """Returns a setting that is a port, or 0."""
        value = self._sources.text(key)
        if not value:
            return default
        if value.isascii() and value.isdigit() and int(value) <= LARGEST_PORT:
            return int(value)
        self._refuse(key, f"a port, 0 to {LARGEST_PORT}", default)
        return default

    def seconds(self, key: str, default: int) -> int:
        """Returns a setting that is a number of seconds."""
        value = self._sources.text(key)
        if not value:
            return default
        if value.isascii() and value.isdigit():
            return int(value)
        self._refuse(key, "a whole number of seconds, at least 0", default)
        return default

    def _refuse(self, key: str, expected: str, default: object) -> None:
        origin, value = self._sources.find(key)
        problem = f"{origin}={value!r}: expected {expected}; {default} is used"
        self.problems.append(problem)
        logger.warning("%s", problem)


def _absolute(path: str) -> Path | None:
    return Path(path).expanduser().absolute() if path else None
