"""Whether, where to and how often metrics are pushed, from ``OTEL_*`` variables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger
from fastvideo.observability.tracing.endpoints import (
    ENDPOINT,
    TRACES_ENDPOINT,
    TRACES_PATH,
    Endpoint,
    grpc_endpoint,
    http_endpoint,
)
from fastvideo.observability.tracing.otel_env import OtelEnv, UnreadableFileError
from fastvideo.observability.tracing.settings import (
    DEFAULT_SERVICE_NAME,
    GRPC,
    HTTP_PROTOBUF,
    OtlpSettings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = init_logger(__name__)

METRICS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
METRICS_PATH: Final = "v1/metrics"

_EXPORTERS: Final = frozenset({"otlp", "prometheus", "console", "none"})
_FILES: Final = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
_DEFAULT_INTERVAL_MS: Final = 60_000
_DEFAULT_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class OtlpMetricsSettings:
    """How metrics are pushed.

    Attributes:
        otlp: Where to, and how.
        interval_s: Seconds from one push to the next.
        service_name: ``service.name`` of the resource.
        resource: Further attributes of the resource.
    """

    otlp: OtlpSettings
    interval_s: float = _DEFAULT_INTERVAL_MS / 1000
    service_name: str = DEFAULT_SERVICE_NAME
    resource: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str], below: Mapping[str, str] | None = None
    ) -> OtlpMetricsSettings | None:
        """Reads the settings; never raises. What cannot be used is one warning each.

        Metrics are pushed where ``OTEL_METRICS_EXPORTER`` names ``otlp``, or is unset and there
        is an endpoint of their own.

        Args:
            environ: The environment; what is empty is unset.
            below: Values of the same variables that count where the environment has none.

        Returns:
            The settings, or None where nothing is pushed.
        """
        env = OtelEnv(environ, below)
        settings = _read(env, environ, below) if _is_wanted(env) else None
        for problem in env.problems:
            logger.warning("%s", problem)
        return settings


def _is_wanted(env: OtelEnv) -> bool:
    name, value = env.named("OTEL_METRICS_EXPORTER")
    asked = {part.strip().lower() for part in (value or "").split(",") if part.strip()}
    for unknown in sorted(asked - _EXPORTERS):
        env.refuse(name, unknown, f"one of {', '.join(sorted(_EXPORTERS))}", "none of it")
    wanted = "otlp" in asked if value is not None else env.text(METRICS_ENDPOINT) is not None
    return wanted and not env.flag("OTEL_SDK_DISABLED", default=False)


def _read(
    env: OtelEnv, environ: Mapping[str, str], below: Mapping[str, str] | None
) -> OtlpMetricsSettings | None:
    protocol = env.choice(*_names("PROTOCOL"), choices=(GRPC, HTTP_PROTOBUF), default=HTTP_PROTOBUF)
    endpoint = _endpoint(env, protocol)
    timeout_s = env.milliseconds(*_names("TIMEOUT"), default=_DEFAULT_TIMEOUT_MS)
    compression = env.choice(*_names("COMPRESSION"), choices=("gzip", "none"), default="none")
    headers = env.pairs(*_names("HEADERS"), secret=True)
    interval_s = env.milliseconds("OTEL_METRIC_EXPORT_INTERVAL", default=_DEFAULT_INTERVAL_MS)
    try:
        files = [env.file(*_names(kind)) for kind in _FILES]
    except UnreadableFileError:
        return None
    if endpoint is None:
        return None
    about = OtelEnv(environ, below)  # the settings of spans complain about these
    resource = about.pairs("OTEL_RESOURCE_ATTRIBUTES", secret=False)
    own_name = resource.pop("service.name", "")
    otlp = OtlpSettings(
        protocol=protocol,
        endpoint=endpoint,
        headers=tuple((key.lower(), value) for key, value in headers.items()),
        timeout_s=timeout_s,
        gzip=compression == "gzip",
        certificate=files[0],
        client_key=files[1],
        client_certificate=files[2],
    )
    name = about.text("OTEL_SERVICE_NAME") or own_name or DEFAULT_SERVICE_NAME
    return OtlpMetricsSettings(otlp, interval_s, name, resource)


def _endpoint(env: OtelEnv, protocol: str) -> Endpoint | None:
    """Returns the endpoint, by the rules that hold for spans, under the names for metrics."""
    name, value = env.named(METRICS_ENDPOINT, ENDPOINT)
    _, insecure = env.named(*_names("INSECURE"))
    is_own = name == METRICS_ENDPOINT
    given = {
        TRACES_ENDPOINT if is_own else ENDPOINT: value or "",
        "OTEL_EXPORTER_OTLP_INSECURE": insecure or "",
    }
    translated = OtelEnv(given)
    read = grpc_endpoint if protocol == GRPC else http_endpoint
    endpoint = read(translated)
    for problem in translated.problems:
        named = problem.replace(TRACES_ENDPOINT, METRICS_ENDPOINT)
        env.note(named.replace("OTLP spans are off", "OTLP metrics are off"))
    if endpoint is None or protocol == GRPC or is_own:
        return endpoint
    path, mark, query = endpoint.path.partition("?")
    path = path.removesuffix(TRACES_PATH) + METRICS_PATH
    return replace(endpoint, path=f"{path}{mark}{query}")


def _names(suffix: str) -> tuple[str, str]:
    """Returns the variable for metrics, which counts first, and the general one."""
    return f"OTEL_EXPORTER_OTLP_METRICS_{suffix}", f"OTEL_EXPORTER_OTLP_{suffix}"
