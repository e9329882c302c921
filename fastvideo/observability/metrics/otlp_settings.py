"""Whether, where to and how often metrics are pushed, from ``OTEL_*`` variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger
from fastvideo.observability.tracing.otel_env import OtelEnv
from fastvideo.observability.tracing.otlp_settings import OtlpSettings, read_otlp
from fastvideo.observability.tracing.settings import DEFAULT_SERVICE_NAME
from fastvideo.observability.tracing.signals import METRICS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

logger = init_logger(__name__)

_EXPORTERS: Final = frozenset({"otlp", "prometheus", "console", "none"})
_DEFAULT_INTERVAL_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class OtlpMetricsSettings:
    """How metrics are pushed.

    Attributes:
        otlp: Where to, and how.
        interval_s: Seconds from one push to the next.
        service_name: ``service.name`` of the resource.
        resource: Further attributes of the resource.
        problems: What was wrong with the values that were given.
    """

    otlp: OtlpSettings
    interval_s: float = _DEFAULT_INTERVAL_MS / 1000
    service_name: str = DEFAULT_SERVICE_NAME
    resource: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str],
        below: Mapping[str, str] | None = None,
        *,
        told: Collection[str] = (),
    ) -> OtlpMetricsSettings | None:
        """Reads the settings; never raises. What cannot be used is one warning each.

        Metrics are pushed where ``OTEL_METRICS_EXPORTER`` names ``otlp``, or is unset and there
        is an endpoint of their own.

        Args:
            environ: The environment; what is empty is unset.
            below: Values of the same variables that count where the environment has none.
            told: Problems that were told already, with the settings of spans.

        Returns:
            The settings, or None where nothing is pushed.
        """
        env = OtelEnv(environ, below)
        settings = _read(env, environ, below) if _is_wanted(env) else None
        for problem in [each for each in env.problems if each not in told]:
            logger.warning("%s", problem)
        return settings


def _is_wanted(env: OtelEnv) -> bool:
    name, value = env.named("OTEL_METRICS_EXPORTER")
    asked = {part.strip().lower() for part in (value or "").split(",") if part.strip()}
    for unknown in sorted(asked - _EXPORTERS):
        env.refuse(name, unknown, f"one of {', '.join(sorted(_EXPORTERS))}", "none of it")
    own_endpoint, _ = METRICS.variables("ENDPOINT")
    wanted = "otlp" in asked if value is not None else env.text(own_endpoint) is not None
    return wanted and not env.flag("OTEL_SDK_DISABLED")


def _read(
    env: OtelEnv, environ: Mapping[str, str], below: Mapping[str, str] | None
) -> OtlpMetricsSettings | None:
    interval_s = env.milliseconds("OTEL_METRIC_EXPORT_INTERVAL", default=_DEFAULT_INTERVAL_MS)
    otlp = read_otlp(env, METRICS)
    if otlp is None:
        return None
    about = OtelEnv(environ, below)  # the settings of spans complain about these
    resource = about.pairs("OTEL_RESOURCE_ATTRIBUTES", secret=False)
    own_name = resource.pop("service.name", "")
    name = about.text("OTEL_SERVICE_NAME") or own_name or DEFAULT_SERVICE_NAME
    return OtlpMetricsSettings(otlp, interval_s, name, resource, tuple(env.problems))
