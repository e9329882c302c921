"""Settings of spans: what people write, and what it means."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from fastvideo.observability.tracing.settings import YAML_VARIABLES, TraceSettings

if TYPE_CHECKING:
    from pathlib import Path

GENERAL = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


def _otlp(environ: dict[str, str]) -> TraceSettings:
    settings = TraceSettings.from_env(environ)
    assert settings.otlp is not None
    return settings


@pytest.mark.parametrize(
    ("environ", "url", "warnings"),
    [
        ({GENERAL: "http://c:4318"}, "http://c:4318/v1/traces", 0),
        ({GENERAL: "http://c:4318/"}, "http://c:4318/v1/traces", 0),
        ({GENERAL: "http://c:4318/base"}, "http://c:4318/base/v1/traces", 0),
        ({GENERAL: "http://c:4318/base/"}, "http://c:4318/base/v1/traces", 0),
        ({GENERAL: "https://c"}, "https://c:443/v1/traces", 0),
        ({GENERAL: "http://c"}, "http://c:80/v1/traces", 0),
        ({GENERAL: " http://c:4318 "}, "http://c:4318/v1/traces", 0),
        ({GENERAL: "HTTP://c:4318"}, "http://c:4318/v1/traces", 0),
        ({GENERAL: "http://[::1]:4318"}, "http://[::1]:4318/v1/traces", 0),
        ({GENERAL: "http://user:pw@c:4318"}, "http://c:4318/v1/traces", 0),
        ({GENERAL: "c:4318"}, "http://c:4318/v1/traces", 1),
        ({TRACES: "http://c:4318/v1/traces"}, "http://c:4318/v1/traces", 0),
        ({TRACES: "http://c:4318/custom"}, "http://c:4318/custom", 0),
        ({TRACES: "http://c:4318"}, "http://c:4318/", 0),
        ({TRACES: "http://t:1/x", GENERAL: "http://c:4318"}, "http://t:1/x", 0),
        ({TRACES: "", GENERAL: "http://c:4318"}, "http://c:4318/v1/traces", 0),
        ({TRACES: "  ", GENERAL: "http://c:4318"}, "http://c:4318/v1/traces", 0),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces", 0),
        ({"OTEL_TRACES_EXPORTER": "otlp", GENERAL: ""}, "http://localhost:4318/v1/traces", 0),
        ({GENERAL: "http://c:4318", PROTOCOL: ""}, "http://c:4318/v1/traces", 0),
        ({GENERAL: "http://c:4318", PROTOCOL: "http/json"}, "http://c:4318/v1/traces", 0),
        ({GENERAL: "http://c:4318", PROTOCOL: "thrift"}, "http://c:4318/v1/traces", 1),
    ],
)
def test_http_endpoints(environ: dict[str, str], url: str, warnings: int) -> None:
    """Every way of writing an endpoint for OTLP over HTTP gives the URL that it means."""
    settings = _otlp(environ)
    assert settings.otlp is not None
    assert settings.otlp.endpoint.shown == url
    assert settings.otlp.endpoint.secure == url.startswith("https")
    assert len(settings.problems) == warnings


@pytest.mark.parametrize(
    ("environ", "authority", "secure", "warnings"),
    [
        ({GENERAL: "http://c:4317"}, "c:4317", False, 0),
        ({GENERAL: "https://c:4317"}, "c:4317", True, 0),
        ({GENERAL: "http://c:4317/"}, "c:4317", False, 0),
        ({GENERAL: "http://c"}, "c:4317", False, 0),
        ({GENERAL: "http://[::1]:4317"}, "[::1]:4317", False, 0),
        ({GENERAL: "c:4317"}, "c:4317", True, 1),
        ({GENERAL: "c:4317", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, "c:4317", False, 0),
        ({GENERAL: "c:4317", "OTEL_EXPORTER_OTLP_INSECURE": "1"}, "c:4317", True, 2),
        ({GENERAL: "https://c:4317", "OTEL_EXPORTER_OTLP_INSECURE": "true"}, "c:4317", True, 0),
        ({GENERAL: "http://c:4317", "OTEL_EXPORTER_OTLP_INSECURE": "false"}, "c:4317", False, 0),
        ({TRACES: "http://t:4317", GENERAL: "https://c:1"}, "t:4317", False, 0),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "localhost:4317", False, 0),
        ({GENERAL: "unix:///run/otel.sock"}, "unix:///run/otel.sock", False, 0),
    ],
)
def test_grpc_endpoints(
    *, environ: dict[str, str], authority: str, secure: bool, warnings: int
) -> None:
    """Every way of writing an endpoint for gRPC gives a target, and the scheme decides on TLS."""
    settings = _otlp({PROTOCOL: "grpc", **environ})
    assert settings.otlp is not None
    assert settings.otlp.endpoint.authority == authority
    assert settings.otlp.endpoint.secure is secure
    assert len(settings.problems) == warnings


@pytest.mark.parametrize(
    "url", ["http://", "ftp://c:4318", "http://c:notaport", "http://c:99999", "http://[::1", "://x"]
)
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_an_endpoint_without_sense_turns_otlp_off(url: str, protocol: str) -> None:
    """A URL that cannot be used is one warning, and training goes on without OTLP spans."""
    settings = TraceSettings.from_env({GENERAL: url, PROTOCOL: protocol})
    assert settings.otlp is None
    assert len(settings.problems) == 1
    assert GENERAL in settings.problems[0]


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        ({}, "http/protobuf"),
        ({PROTOCOL: "grpc"}, "grpc"),
        ({PROTOCOL: "GRPC"}, "grpc"),
        ({PROTOCOL: "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "http/json"),
        ({PROTOCOL: "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": ""}, "grpc"),
    ],
)
def test_protocol(environ: dict[str, str], protocol: str) -> None:
    """The protocol is honoured, and the one for traces overrides the general one."""
    settings = _otlp({"OTEL_TRACES_EXPORTER": "otlp", **environ})
    assert settings.otlp is not None
    assert settings.otlp.protocol == protocol


@pytest.mark.parametrize(
    ("environ", "timeout_s", "warnings"),
    [
        ({}, 10.0, 0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "2500"}, 2.5, 0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": ""}, 10.0, 0),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "abc"}, 10.0, 1),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "-1"}, 10.0, 1),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "0"}, 10.0, 1),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "1", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "700"}, 0.7, 0),
    ],
)
def test_timeouts_are_milliseconds(
    environ: dict[str, str], timeout_s: float, warnings: int
) -> None:
    """Time-outs are read as the specification says; what is no number is one warning."""
    settings = _otlp({"OTEL_TRACES_EXPORTER": "otlp", **environ})
    assert settings.otlp is not None
    assert settings.otlp.timeout_s == timeout_s
    assert len(settings.problems) == warnings


@pytest.mark.parametrize(
    ("value", "gzip", "warnings"),
    [("gzip", True, 0), ("none", False, 0), ("NONE", False, 0), ("", False, 0), ("zstd", False, 1)],
)
def test_compression(*, value: str, gzip: bool, warnings: int) -> None:
    """``none`` is a value like any other, and an unknown one is a warning."""
    settings = _otlp({GENERAL: "http://c", "OTEL_EXPORTER_OTLP_COMPRESSION": value})
    assert settings.otlp is not None
    assert settings.otlp.gzip is gzip
    assert len(settings.problems) == warnings


@pytest.mark.parametrize("variable", ["CERTIFICATE", "CLIENT_KEY", "TRACES_CLIENT_CERTIFICATE"])
def test_a_missing_certificate_turns_otlp_off(variable: str, tmp_path: Path) -> None:
    """A file that is not there is one warning that names it; other exporters stay on."""
    settings = TraceSettings.from_env(
        {
            GENERAL: "https://c",
            f"OTEL_EXPORTER_OTLP_{variable}": str(tmp_path / "missing.pem"),
            "FASTVIDEO_SPAN_DIR": str(tmp_path),
        }
    )
    assert settings.otlp is None
    assert settings.enabled
    assert [variable in problem for problem in settings.problems] == [True]
    assert "missing.pem" in settings.problems[0]


def test_headers_are_decoded_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Headers are percent-decoded; parts that cannot be sent are counted, and no value is told."""
    caplog.set_level(logging.DEBUG, "fastvideo")
    settings = _otlp(
        {
            GENERAL: "http://user:hunter2@c?token=hunter2",
            "OTEL_EXPORTER_OTLP_HEADERS": (
                "Authorization=Bearer%20hunter2, x-team = a ,hunter2,x=hunter2%0Aevil,=hunter2"
            ),
        }
    )
    assert settings.otlp is not None
    assert settings.otlp.headers == (("authorization", "Bearer hunter2"), ("x-team", "a"))
    told = [*settings.problems, repr(settings), caplog.text, settings.otlp.endpoint.shown]
    assert "hunter2" not in " ".join(told)
    assert len(settings.problems) == 2


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_headers_of_the_transports_own_are_refused(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A length, host or encoding that was set would break every request; one warning names it."""
    given = ["Content-Length=hunter2", "host=hunter2", "Transfer-Encoding=hunter2", "x-team=a"]
    given += ["content-type=hunter2", "Connection=hunter2", "content-encoding=hunter2", "te=x"]
    settings = _otlp(
        {GENERAL: "http://c", PROTOCOL: protocol, "OTEL_EXPORTER_OTLP_HEADERS": ",".join(given)}
    )
    assert settings.otlp is not None
    assert settings.otlp.headers == (("x-team", "a"),)
    (problem,) = settings.problems
    assert problem == (
        "OTEL_EXPORTER_OTLP_HEADERS: connection, content-encoding, content-length, content-type, "
        "host, te, transfer-encoding: set by the transport itself, and left out"
    )
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("header", "protocol", "sent"),
    [
        ("user-agent=me", "http/protobuf", True),
        ("user-agent=me", "grpc", False),
        ("grpc-timeout=1n", "grpc", False),
        ("key-bin=abc", "grpc", False),
        ("key-bin=abc", "http/protobuf", True),
    ],
)
def test_headers_of_grpc_are_refused_there(*, header: str, protocol: str, sent: bool) -> None:
    """Over gRPC more is set by itself, and no text is taken where a name says that it is binary."""
    settings = _otlp(
        {GENERAL: "http://c", PROTOCOL: protocol, "OTEL_EXPORTER_OTLP_HEADERS": header}
    )
    assert settings.otlp is not None
    assert bool(settings.otlp.headers) is sent
    assert len(settings.problems) == (not sent)


def test_headers_for_traces_replace_the_general_ones() -> None:
    """The specification merges nothing: the more specific variable is the one that counts."""
    settings = _otlp(
        {
            GENERAL: "http://c",
            "OTEL_EXPORTER_OTLP_HEADERS": "a=1,b=2",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "a=3",
        }
    )
    assert settings.otlp is not None
    assert settings.otlp.headers == (("a", "3"),)


@pytest.mark.parametrize(
    ("environ", "otlp", "console", "warnings"),
    [
        ({}, False, False, 0),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True, False, 0),
        ({"OTEL_TRACES_EXPORTER": "otlp,console"}, True, True, 0),
        ({"OTEL_TRACES_EXPORTER": " console "}, False, True, 0),
        ({"OTEL_TRACES_EXPORTER": "none", GENERAL: "http://c"}, False, False, 0),
        ({"OTEL_TRACES_EXPORTER": "", GENERAL: "http://c"}, True, False, 0),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, False, False, 1),
        ({"OTEL_TRACES_EXPORTER": "zipkin,otlp"}, True, False, 1),
    ],
)
def test_exporters(*, environ: dict[str, str], otlp: bool, console: bool, warnings: int) -> None:
    """An endpoint or ``OTEL_TRACES_EXPORTER`` turns spans on, and ``none`` turns them off."""
    settings = TraceSettings.from_env(environ)
    assert (settings.otlp is not None, settings.console) == (otlp, console)
    assert settings.enabled is (otlp or console)
    assert len(settings.problems) == warnings


@pytest.mark.parametrize(
    ("value", "disabled", "warnings"),
    [
        ("true", True, 0),
        (" TRUE ", True, 0),
        ("False", False, 0),
        ("", False, 0),
        ("1", False, 1),
        ("yes", False, 1),
        ("on", False, 1),
        ("0", False, 1),
    ],
)
def test_the_sdk_can_be_disabled(*, value: str, disabled: bool, warnings: int) -> None:
    """``true`` turns everything off, whatever else is set; by the specification nothing else is."""
    settings = TraceSettings.from_env(
        {GENERAL: "http://c", "FASTVIDEO_SPAN_DIR": "spans", "OTEL_SDK_DISABLED": value}
    )
    assert settings.enabled is not disabled
    assert len(settings.problems) == warnings


@pytest.mark.parametrize(
    ("name", "argument", "ratio", "warnings"),
    [
        ("", "", 1.0, 0),
        ("traceidratio", "0.1", 0.1, 0),
        ("TraceIdRatio", "0.1", 0.1, 0),
        ("traceidratio", "", 1.0, 0),
        ("traceidratio", "1.5", 1.0, 1),
        ("traceidratio", "nan", 1.0, 1),
        ("traceidratio", "ten", 1.0, 1),
        ("always_off", "0.1", 0.0, 0),
        ("jaeger_remote", "x", 1.0, 1),
    ],
)
def test_sampler(name: str, argument: str, ratio: float, warnings: int) -> None:
    """The sampler variables come down to a ratio; a bad argument is the specification's 1.0."""
    settings = TraceSettings.from_env(
        {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument}
    )
    assert settings.sampler.ratio() == ratio
    assert len(settings.problems) == warnings


def test_batches_and_limits() -> None:
    """The batch processor's variables and the span limits are obeyed."""
    settings = TraceSettings.from_env(
        {
            "OTEL_BSP_SCHEDULE_DELAY": "250",
            "OTEL_BSP_EXPORT_TIMEOUT": "4000",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "400",
            "OTEL_ATTRIBUTE_COUNT_LIMIT": "5",
            "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "3",
            "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "7",
            "OTEL_SPAN_LINK_COUNT_LIMIT": "0",
        }
    )
    batch, limits = settings.batch, settings.limits
    assert (batch.delay_s, batch.export_timeout_s) == (0.25, 4.0)
    assert (batch.max_queue, batch.max_batch) == (100, 100)
    assert (limits.attributes, limits.value_length, limits.links) == (3, 7, 0)
    assert len(settings.problems) == 1
    assert "at most OTEL_BSP_MAX_QUEUE_SIZE (100)" in settings.problems[0]


@pytest.mark.parametrize(
    ("environ", "name", "resource"),
    [
        ({}, "fastvideo", {}),
        ({"OTEL_SERVICE_NAME": "video"}, "video", {}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a,team=x%20y"}, "a", {"team": "x y"}),
        (
            {"OTEL_SERVICE_NAME": "b", "OTEL_RESOURCE_ATTRIBUTES": "service.name=a,team=x"},
            "b",
            {"team": "x"},
        ),
        ({"OTEL_SERVICE_NAME": "", "OTEL_RESOURCE_ATTRIBUTES": "team"}, "fastvideo", {}),
    ],
)
def test_resource(environ: dict[str, str], name: str, resource: dict[str, str]) -> None:
    """Service name and resource attributes follow the specification's order."""
    settings = TraceSettings.from_env(environ)
    assert (settings.service_name, dict(settings.resource)) == (name, resource)


def test_yaml_lies_below_the_environment() -> None:
    """YAML keys mean what their variables mean, and the environment wins."""
    yaml = {
        "otlp_endpoint": "http://yaml:4318",
        "otlp_timeout_ms": 300,
        "sampler_ratio": 0.1,
        "resource_attributes": {"team": "x"},
        "metrics_port": 9464,
    }
    settings = TraceSettings.from_env({}, yaml)
    assert settings.otlp is not None
    assert settings.otlp.endpoint.shown == "http://yaml:4318/v1/traces"
    assert settings.otlp.timeout_s == 0.3
    assert settings.sampler.ratio() == 0.1
    assert settings.resource == {"team": "x"}
    overridden = TraceSettings.from_env(
        {TRACES: "http://env:1/x", "OTEL_TRACES_SAMPLER": "always_on"}, yaml
    )
    assert overridden.otlp is not None
    assert overridden.otlp.endpoint.shown == "http://env:1/x"
    assert overridden.sampler.ratio() == 1.0


def test_every_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Values that cannot be used are one line each."""
    TraceSettings.from_env({GENERAL: "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": "10s"})
    assert [record.getMessage() for record in caplog.records] == [
        "OTEL_EXPORTER_OTLP_TIMEOUT='10s': expected a whole number of at least 1; using 10000."
    ]


def test_yaml_keys_stand_for_variables_of_the_package_or_of_opentelemetry() -> None:
    """No key invents a variable."""
    for variable in YAML_VARIABLES.values():
        assert variable.startswith(("OTEL_", "FASTVIDEO_"))
