"""What spans are recorded and where they go, from ``OTEL_*`` variables and YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger
from fastvideo.observability.tracing.otel_env import OtelEnv
from fastvideo.observability.tracing.otlp_settings import OtlpSettings, read_otlp
from fastvideo.observability.tracing.sampling import DEFAULT_SAMPLER, SAMPLERS, Sampler
from fastvideo.observability.tracing.signals import TRACES

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = init_logger(__name__)

YAML_VARIABLES: Final[dict[str, str]] = {
    "traces_exporter": "OTEL_TRACES_EXPORTER",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp_protocol": "OTEL_EXPORTER_OTLP_PROTOCOL",
    "otlp_timeout_ms": "OTEL_EXPORTER_OTLP_TIMEOUT",
    "otlp_compression": "OTEL_EXPORTER_OTLP_COMPRESSION",
    "service_name": "OTEL_SERVICE_NAME",
    "resource_attributes": "OTEL_RESOURCE_ATTRIBUTES",
    "sampler": "OTEL_TRACES_SAMPLER",
    "sampler_ratio": "OTEL_TRACES_SAMPLER_ARG",
    "span_dir": "FASTVIDEO_SPAN_DIR",
    "span_file_max_bytes": "FASTVIDEO_SPAN_FILE_MAX_BYTES",
    "trace_max_bytes": "FASTVIDEO_TRACE_MAX_BYTES",
}
"""Keys of the YAML section ``observability`` about spans, and the variables they stand for."""

DEFAULT_TRACE_MAX_BYTES: Final = 4_000_000
DEFAULT_SPAN_FILE_MAX_BYTES: Final = 256 * 1024 * 1024
DEFAULT_SERVICE_NAME: Final = "fastvideo"

_EXPORTERS: Final = ("otlp", "console", "none")


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How spans are gathered.

    Attributes:
        delay_s: Longest time that spans wait for others, in seconds.
        export_timeout_s: Longest time that a batch is tried again, in seconds.
        max_queue: Most spans that wait to be built, and most that wait to be sent.
        max_batch: Most spans in one request.
    """

    delay_s: float = 5.0
    export_timeout_s: float = 30.0
    max_queue: int = 2048
    max_batch: int = 512

    def has_room(self, waiting: int, spans: int) -> bool:
        """Tells whether a queue in which so many spans wait takes these, which stay together.

        What is larger than the whole queue is taken while no more than one request waits.
        """
        left = self.max_queue - spans
        return waiting <= (left if left >= 0 else self.max_batch)


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """What a span may carry.

    Attributes:
        attributes: Most attributes.
        value_length: Most characters of a text. The specification sets no limit unless asked;
            here there is one, because nothing that is always on may grow without bound.
        links: Most links.
    """

    attributes: int = 128
    value_length: int = 4096
    links: int = 128


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Everything that is set about spans.

    Attributes:
        otlp: The collector, or None.
        span_dir: Directory of the OTLP-JSON files, or None.
        console: Whether spans are printed to standard output.
        disabled: Whether ``OTEL_SDK_DISABLED`` turns everything off, whoever else asks for spans.
        sampler: Which step traces are kept.
        batch: How spans are gathered.
        limits: What a span may carry.
        service_name: ``service.name`` of the resource.
        resource: Further attributes of the resource.
        trace_max_bytes: Size of one step's trace over all ranks.
        span_file_max_bytes: Size at which a span file is rotated; two are kept.
        local_world_size: Ranks on this node, 0 if unknown.
        problems: What was wrong with the values that were given.
    """

    otlp: OtlpSettings | None = None
    span_dir: Path | None = None
    console: bool = False
    disabled: bool = False
    sampler: Sampler = field(default_factory=Sampler)
    batch: BatchSettings = field(default_factory=BatchSettings)
    limits: SpanLimits = field(default_factory=SpanLimits)
    service_name: str = DEFAULT_SERVICE_NAME
    resource: Mapping[str, str] = field(default_factory=dict)
    trace_max_bytes: int = DEFAULT_TRACE_MAX_BYTES
    span_file_max_bytes: int = DEFAULT_SPAN_FILE_MAX_BYTES
    local_world_size: int = 0
    problems: tuple[str, ...] = ()

    @property
    def enabled(self) -> bool:
        """Whether these settings ask for spans; a provider of the host program may do so too."""
        return not self.disabled and bool(self.otlp or self.span_dir or self.console)

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str], yaml: Mapping[str, Any] | None = None
    ) -> TraceSettings:
        """Reads the settings; never raises. What cannot be used is one warning each.

        Args:
            environ: The environment; wins over ``yaml``.
            yaml: The section ``observability`` of a configuration file; of its keys only those in
                :data:`YAML_VARIABLES` are read.
        """
        env = OtelEnv(environ, _below(yaml or {}))
        settings = _read(env)
        for problem in env.problems:
            logger.warning("%s", problem)
        return settings


def _below(yaml: Mapping[str, Any]) -> dict[str, str]:
    """Returns YAML values under the names of the variables they stand for."""
    values = {}
    for key, variable in YAML_VARIABLES.items():
        value = yaml.get(key)
        if isinstance(value, dict):
            value = ",".join(f"{name}={text}" for name, text in value.items())
        if value is not None:
            values[variable] = str(value)
    if "OTEL_TRACES_SAMPLER_ARG" in values:  # a ratio in YAML means that it is used
        values.setdefault("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    return values


def _read(env: OtelEnv) -> TraceSettings:
    exporters = _exporters(env)
    span_dir = env.text("FASTVIDEO_SPAN_DIR")
    resource = env.pairs("OTEL_RESOURCE_ATTRIBUTES", secret=False)
    service_name = env.text("OTEL_SERVICE_NAME") or resource.pop("service.name", "")
    resource.pop("service.name", None)
    return TraceSettings(
        otlp=read_otlp(env, TRACES) if "otlp" in exporters else None,
        span_dir=Path(span_dir).expanduser().absolute() if span_dir else None,
        console="console" in exporters,
        disabled=env.flag("OTEL_SDK_DISABLED"),
        sampler=_sampler(env),
        batch=_batch(env),
        limits=_limits(env),
        service_name=service_name or DEFAULT_SERVICE_NAME,
        resource=resource,
        trace_max_bytes=env.whole(
            "FASTVIDEO_TRACE_MAX_BYTES", default=DEFAULT_TRACE_MAX_BYTES, minimum=1
        ),
        span_file_max_bytes=env.whole(
            "FASTVIDEO_SPAN_FILE_MAX_BYTES", default=DEFAULT_SPAN_FILE_MAX_BYTES, minimum=1
        ),
        local_world_size=env.whole("LOCAL_WORLD_SIZE", default=0),
        problems=tuple(env.problems),
    )


def _exporters(env: OtelEnv) -> set[str]:
    """Returns what ``OTEL_TRACES_EXPORTER`` asks for; an endpoint alone asks for OTLP."""
    name, value = env.named("OTEL_TRACES_EXPORTER")
    if value is None:
        return {"otlp"} if env.text(*TRACES.variables("ENDPOINT")) else set()
    asked = {part.strip().lower() for part in value.split(",") if part.strip()}
    for unknown in sorted(asked - set(_EXPORTERS)):
        env.refuse(name, unknown, f"one of {', '.join(_EXPORTERS)}", "none of it")
    return set() if "none" in asked else asked & set(_EXPORTERS)


def _sampler(env: OtelEnv) -> Sampler:
    name = env.choice("OTEL_TRACES_SAMPLER", choices=SAMPLERS, default=DEFAULT_SAMPLER)
    argument = 1.0
    if name.endswith("traceidratio"):
        argument = env.share("OTEL_TRACES_SAMPLER_ARG", default=1.0)
    return Sampler(name, argument)


def _batch(env: OtelEnv) -> BatchSettings:
    max_queue = env.whole("OTEL_BSP_MAX_QUEUE_SIZE", default=2048, minimum=1)
    max_batch = env.whole("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", default=min(512, max_queue), minimum=1)
    if max_batch > max_queue:
        env.refuse(
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            str(max_batch),
            f"at most OTEL_BSP_MAX_QUEUE_SIZE ({max_queue})",
            max_queue,
        )
        max_batch = max_queue
    return BatchSettings(
        delay_s=env.milliseconds("OTEL_BSP_SCHEDULE_DELAY", default=5000, minimum=0),
        export_timeout_s=env.milliseconds("OTEL_BSP_EXPORT_TIMEOUT", default=30_000),
        max_queue=max_queue,
        max_batch=max_batch,
    )


def _limits(env: OtelEnv) -> SpanLimits:
    return SpanLimits(
        attributes=env.whole(
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT", default=128
        ),
        value_length=env.whole(
            "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            default=4096,
        ),
        links=env.whole("OTEL_SPAN_LINK_COUNT_LIMIT", default=128),
    )
