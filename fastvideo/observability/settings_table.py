"""Every setting of telemetry, declared once: key, variables, type, default, unit, meaning.

What the section ``observability`` may hold, what a dry run prints and the table in the
documentation all come from here; tests hold it against what the code reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from fastvideo import envs
from fastvideo.observability.tracing.signals import METRICS as METRICS_SIGNAL
from fastvideo.observability.tracing.signals import TRACES as TRACES_SIGNAL
from fastvideo.observability.tracing.signals import Signal

METRICS: Final = "Prometheus endpoint"
PUSH: Final = "Metrics over OTLP"
OTLP: Final = "OTLP, for spans and pushed metrics"
SPANS: Final = "Spans"
BATCHES: Final = "How spans are gathered"
LIMITS: Final = "What a span may carry"
PROCESS: Final = "Who the run is, and its log"

UNSET: Final = "unset"
NONE: Final = "none"

_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
SIGNALS: Final = (TRACES_SIGNAL, METRICS_SIGNAL)
"""What is sent over OTLP, each with variables of its own."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: What a dry run calls it; the key in the file, if it has one.
        group: What it belongs to, a heading in the documentation.
        variables: Environment variables; of those that are set the first counts.
        kind: Its type, or the words that it may be.
        default: What holds where nothing is set, as a dry run prints it.
        meaning: What it does, one line.
        unit: Unit of the number, or empty.
        in_file: Whether the section ``observability`` may hold it.
        below: Variables that count where neither ``variables`` nor the file say anything.
        per_signal: Whether spans and metrics may differ: ``variables`` is the general one then,
            and :meth:`variables_of` knows those of a signal.
    """

    name: str
    group: str
    variables: tuple[str, ...]
    kind: str
    default: str
    meaning: str
    unit: str = ""
    in_file: bool = True
    below: tuple[str, ...] = ()
    per_signal: bool = False

    @property
    def all_variables(self) -> tuple[str, ...]:
        """Every variable that has a say, the first that is set before the others."""
        own = [name for signal in SIGNALS for name in self.variables_of(signal)[:-1]]
        return (*(own if self.per_signal else ()), *self.variables, *self.below)

    def variables_of(self, signal: Signal) -> tuple[str, ...]:
        """Returns the variables that count for a signal."""
        if not self.per_signal:
            return self.variables
        return signal.variables(self.variables[0].removeprefix(_PREFIX))

    def name_of(self, signal: Signal) -> str:
        """Returns what a dry run calls the setting of a signal."""
        return f"{self.name} ({signal.shown})"


def _own(name: str, group: str, variable: str, *below: str, unit: str = "") -> Setting:
    """Returns a setting of this package's own; type, default and meaning are its variable's."""
    declared = envs.VARIABLES[variable]
    default = int(declared.default) if isinstance(declared.default, bool) else declared.default
    return Setting(
        name=name,
        group=group,
        variables=(variable,),
        kind=declared.kind,
        default=UNSET if default == "" else str(default),
        meaning=declared.help,
        unit=unit,
        below=below,
    )


def _otlp(name: str, suffix: str, kind: str, default: str, meaning: str, **more: str) -> Setting:
    return Setting(
        name=name,
        group=OTLP,
        variables=(_PREFIX + suffix,),
        kind=kind,
        default=default,
        meaning=meaning,
        per_signal=True,
        **more,  # type: ignore[arg-type]
    )


def _without_key(setting: Setting) -> Setting:
    return replace(setting, in_file=False)


SETTINGS: Final[tuple[Setting, ...]] = (
    _own("metrics", METRICS, "FASTVIDEO_METRICS"),
    _own("metrics_host", METRICS, "FASTVIDEO_METRICS_HOST", "OTEL_EXPORTER_PROMETHEUS_HOST"),
    _own("metrics_port", METRICS, "FASTVIDEO_METRICS_PORT", "OTEL_EXPORTER_PROMETHEUS_PORT"),
    _own("metrics_targets_dir", METRICS, "FASTVIDEO_METRICS_TARGETS_DIR"),
    _own("metrics_web_config", METRICS, "FASTVIDEO_METRICS_WEB_CONFIG"),
    _own(
        "metrics_final_scrape_seconds", METRICS, "FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS", unit="s"
    ),
    Setting(
        "metrics_exporter",
        PUSH,
        ("OTEL_METRICS_EXPORTER",),
        "list of `otlp`, `prometheus`, `console`, `none`",
        NONE,
        "`otlp` pushes the numbers of the endpoint as well, also where nothing but an endpoint of "
        "their own (`OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`) is set; the other words change nothing",
    ),
    Setting(
        "metric_export_interval_ms",
        PUSH,
        ("OTEL_METRIC_EXPORT_INTERVAL",),
        "count",
        "60000",
        "Time from one push to the next",
        "ms",
    ),
    _otlp(
        "otlp_endpoint",
        "ENDPOINT",
        "URL",
        "http://localhost:4318",
        "Collector, `http://localhost:4317` for gRPC; the general one is a base that `/v1/traces` "
        "or `/v1/metrics` is added to, one of a signal's own is used as it is. Setting it (general "
        "or for traces) turns spans on",
    ),
    _otlp(
        "otlp_protocol",
        "PROTOCOL",
        "`http/protobuf`, `grpc`; for spans also `http/json`",
        "http/protobuf",
        "How it is spoken to",
    ),
    _otlp("otlp_timeout_ms", "TIMEOUT", "count", "10000", "Longest wait for one answer", unit="ms"),
    _otlp("otlp_compression", "COMPRESSION", "`gzip`, `none`", NONE, "Whether requests are packed"),
    _without_key(
        _otlp(
            "otlp_headers",
            "HEADERS",
            "`key=value,…`, percent-encoded",
            NONE,
            "Sent with every request; a secret, so not for files, and only names are ever shown",
        )
    ),
    _without_key(
        _otlp(
            "otlp_insecure",
            "INSECURE",
            "`true`, `false`",
            "false",
            "For gRPC endpoints without a scheme: whether to do without TLS",
        )
    ),
    _without_key(
        _otlp("otlp_certificate", "CERTIFICATE", "path", UNSET, "CA certificates that are trusted")
    ),
    _without_key(
        _otlp("otlp_client_key", "CLIENT_KEY", "path", UNSET, "This client's private key")
    ),
    _without_key(
        _otlp("otlp_client_certificate", "CLIENT_CERTIFICATE", "path", UNSET, "Its certificate")
    ),
    Setting(
        "traces_exporter",
        SPANS,
        ("OTEL_TRACES_EXPORTER",),
        "list of `otlp`, `console`, `none`",
        NONE,
        "Where spans go; unset with an OTLP endpoint it is `otlp`. Files are set by `span_dir`",
    ),
    _own("span_dir", SPANS, "FASTVIDEO_SPAN_DIR"),
    _own("span_file_max_bytes", SPANS, "FASTVIDEO_SPAN_FILE_MAX_BYTES", unit="bytes"),
    _own("trace_max_bytes", SPANS, "FASTVIDEO_TRACE_MAX_BYTES", unit="bytes"),
    Setting(
        "sampler",
        SPANS,
        ("OTEL_TRACES_SAMPLER",),
        "`always_on`, `always_off`, `traceidratio`, each also with `parentbased_`",
        "parentbased_always_on",
        "Which steps have a trace. The parent is `TRACEPARENT`: `parentbased_` keeps none where "
        "that is not sampled. With `sampler_ratio` in the file and no sampler it is "
        "`parentbased_traceidratio`",
    ),
    Setting(
        "sampler_ratio",
        SPANS,
        ("OTEL_TRACES_SAMPLER_ARG",),
        "number, 0 to 1",
        "1",
        "Share of the steps that `traceidratio` keeps",
    ),
    Setting(
        "service_name",
        SPANS,
        ("OTEL_SERVICE_NAME",),
        "text",
        "fastvideo",
        "`service.name` of the resource; else that of `resource_attributes`",
    ),
    Setting(
        "resource_attributes",
        SPANS,
        ("OTEL_RESOURCE_ATTRIBUTES",),
        "`key=value,…`, percent-encoded; in the file also a mapping",
        NONE,
        "Further attributes of the resource of spans and pushed metrics",
    ),
    Setting(
        "sdk_disabled",
        SPANS,
        ("OTEL_SDK_DISABLED",),
        "`true`, `false`",
        "false",
        "No spans, no pushed metrics; the Prometheus endpoint stays",
        in_file=False,
    ),
    Setting(
        "bsp_schedule_delay_ms",
        BATCHES,
        ("OTEL_BSP_SCHEDULE_DELAY",),
        "count",
        "5000",
        "Longest time that spans wait for others; at least 100",
        "ms",
        in_file=False,
    ),
    Setting(
        "bsp_export_timeout_ms",
        BATCHES,
        ("OTEL_BSP_EXPORT_TIMEOUT",),
        "count",
        "30000",
        "Longest time that a batch is tried again",
        "ms",
        in_file=False,
    ),
    Setting(
        "bsp_max_queue_size",
        BATCHES,
        ("OTEL_BSP_MAX_QUEUE_SIZE",),
        "count",
        "2048",
        "Most spans that wait to be built, and most that wait to be sent; a step that has more is "
        "taken while hardly any wait",
        "spans",
        in_file=False,
    ),
    Setting(
        "bsp_max_export_batch_size",
        BATCHES,
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE",),
        "count",
        "512",
        "Most spans in one request",
        "spans",
        in_file=False,
    ),
    Setting(
        "span_attribute_count_limit",
        LIMITS,
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT"),
        "count",
        "128",
        "Most attributes",
        in_file=False,
    ),
    Setting(
        "span_attribute_value_length_limit",
        LIMITS,
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"),
        "count",
        "4096",
        "Most of a text. OpenTelemetry has no limit; what is always on must not grow without one",
        "characters",
        in_file=False,
    ),
    Setting(
        "span_link_count_limit",
        LIMITS,
        ("OTEL_SPAN_LINK_COUNT_LIMIT",),
        "count",
        "128",
        "Most links",
        in_file=False,
    ),
    replace(
        _own("run_name", PROCESS, "FASTVIDEO_RUN_NAME"),
        default="the run's identifier",
        meaning="Name of the run, for people and dashboards; the trainer takes its tracker's",
    ),
)
"""What :class:`~fastvideo.observability.config.TelemetryConfig` holds."""


def _variable(name: str, kind: str, default: str, meaning: str) -> Setting:
    return Setting(name, PROCESS, (name,), kind, default, meaning, in_file=False)


VARIABLES: Final[tuple[Setting, ...]] = (
    _without_key(_own("FASTVIDEO_RUN_ID", PROCESS, "FASTVIDEO_RUN_ID")),
    _variable(
        "TRACEPARENT",
        "W3C trace context",
        UNSET,
        "The span that started the run: parent of `run_start`, and the run's identifier unless "
        "`FASTVIDEO_RUN_ID` is set",
    ),
    _variable(
        "TORCHELASTIC_RUN_ID",
        "text",
        UNSET,
        "The run's identifier where neither of the two above is set; the launcher sets it",
    ),
    _variable(
        "TORCHELASTIC_RESTART_COUNT", "count", "0", "Number of the attempt; the launcher sets it"
    ),
    _variable("SLURM_RESTART_COUNT", "count", "0", "Likewise, where the launcher sets none"),
    _variable("RANK", "count", "0", "Rank, where there is no process group"),
    _variable("WORLD_SIZE", "count", "1", "Number of ranks, where there is no process group"),
    _variable("LOCAL_RANK", "count", "0", "Rank on its machine; added to `metrics_port`"),
    _variable(
        "LOCAL_WORLD_SIZE", "count", UNSET, "Ranks of a machine; for keeping traces in their limit"
    ),
    _variable(
        "HTTP_PROXY",
        "URL",
        UNSET,
        "Proxy on the way to a collector of another machine whose URL is http; all four also in "
        "small letters",
    ),
    _variable("HTTPS_PROXY", "URL", UNSET, "Likewise where the URL is https"),
    _variable("GRPC_PROXY", "URL", UNSET, "Likewise for gRPC, before those two"),
    _variable("NO_PROXY", "list of hosts", UNSET, "Hosts that are asked without a proxy"),
    _without_key(_own("FASTVIDEO_LOG_LEVEL", PROCESS, "FASTVIDEO_LOG_LEVEL")),
    _without_key(_own("FASTVIDEO_LOG_FORMAT", PROCESS, "FASTVIDEO_LOG_FORMAT")),
)
"""Variables that telemetry obeys besides; they are read where they are used."""

BY_NAME: Final[dict[str, Setting]] = {setting.name: setting for setting in SETTINGS}

KEYS: Final[frozenset[str]] = frozenset(setting.name for setting in SETTINGS if setting.in_file)
"""Every key that the section ``observability`` may have."""
