"""The Collector, Jaeger and Tempo: configurations in the words of their pinned versions."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.tracing.file import FileSink, JsonEncoder
from fastvideo.observability.tracing.records import SpanRecord
from fastvideo.observability.tracing.resource import resource_attributes
from fastvideo.observability.tracing.settings import DEFAULT_TRACE_MAX_BYTES, TraceSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    Compose = Callable[..., dict[str, Any]]

DEPLOY = Path(__file__).parents[2] / "deploy"

KINDS = ("receivers", "processors", "exporters", "connectors")
# What contrib 0.128.0 and Jaeger 2.8.0 have, of what is used here or was used in older versions.
KNOWN = {
    "receivers": {"otlp", "otlpjsonfile"},
    "processors": {"memory_limiter", "batch"},
    "exporters": {"otlp", "otlphttp", "prometheus", "debug", "jaeger_storage_exporter"},
    "connectors": set(),
    "extensions": {
        "health_check",
        "file_storage",
        "healthcheckv2",
        "jaeger_storage",
        "jaeger_query",
    },
}
# Gone, renamed, or of another program's or version's vocabulary.
FOREIGN = {
    "logging",
    "jaeger",
    "ballast",
    "memory_ballast",
    "ingester",
    "metrics_generator_enabled",
}

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}


def config(name: str) -> dict[str, Any]:
    """The configuration of a program."""
    content: dict[str, Any] = yaml.safe_load((DEPLOY / name / "config.yaml").read_text())
    return content


def size(text: str) -> int:
    """Bytes of a size such as 4MiB."""
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()  # type: ignore[union-attr]
    return int(number) * UNITS[unit]


@pytest.fixture(params=["otel-collector", "jaeger"])
def collector(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Jaeger v2 is a Collector too."""
    return config(request.param)


def test_pipelines_use_components_that_are_defined(collector: dict[str, Any]) -> None:
    """Every part of a pipeline exists, each has a way in and a way out."""
    assert collector["service"]["pipelines"]
    for pipeline in collector["service"]["pipelines"].values():
        for kind in KINDS[:3]:
            assert set(pipeline.get(kind, ())) - set(collector[kind]) == set()
        assert pipeline["receivers"]
        assert pipeline["exporters"]
    assert set(collector["service"]["extensions"]) == set(collector["extensions"])


def test_what_is_defined_is_used(collector: dict[str, Any]) -> None:
    """Nothing lies about but the debug exporter, which is there to be added by hand."""
    for kind in KINDS[:3]:
        used = {
            each for p in collector["service"]["pipelines"].values() for each in p.get(kind, ())
        }
        assert set(collector[kind]) - used - {"debug"} == set()


def test_components_are_those_of_the_pinned_version(collector: dict[str, Any]) -> None:
    """No component was renamed or removed before the version that is pinned."""
    for kind, known in KNOWN.items():
        named = {each.partition("/")[0] for each in collector.get(kind, {})}
        assert named - known == set()
        assert named & FOREIGN == set()


def test_own_metrics_are_set_in_the_words_of_today(collector: dict[str, Any]) -> None:
    """``telemetry.metrics.address`` is refused by these versions; readers took its place."""
    metrics = collector["service"]["telemetry"]["metrics"]
    assert set(metrics) == {"level", "readers"}
    (reader,) = metrics["readers"]
    assert reader["pull"]["exporter"]["prometheus"]["host"] == "0.0.0.0"  # noqa: S104 - in a container


def test_memory_is_limited_first_and_batches_are_made_last() -> None:
    """In every pipeline of the Collector, in the order that it asks for."""
    pipelines = config("otel-collector")["service"]["pipelines"].values()
    assert [each["processors"] for each in pipelines] == [["memory_limiter", "batch"]] * 2


def test_no_batch_is_larger_than_its_receiver_takes() -> None:
    """Batches are bounded, and both sides of the hop take messages larger than the default."""
    assert config("otel-collector")["processors"]["batch"]["send_batch_max_size"] <= 2048
    for name in ("otel-collector", "jaeger"):
        grpc = config(name)["receivers"]["otlp"]["protocols"]["grpc"]
        assert grpc["max_recv_msg_size_mib"] == 16
    tempo = config("tempo")["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]
    assert tempo["max_recv_msg_size_mib"] == 16


@pytest.mark.parametrize(
    ("overrides", "store"), [((), "jaeger"), (("compose.tempo.yaml",), "tempo")]
)
def test_spans_go_to_the_store_that_runs(
    compose: Compose, overrides: tuple[str, ...], store: str
) -> None:
    """Every variable of the configuration is set, and the endpoint is the store's receiver."""
    text = (DEPLOY / "otel-collector" / "config.yaml").read_text()
    environment = compose(*overrides)["services"]["otel-collector"]["environment"]
    assert set(re.findall(r"\$\{env:(\w+)\}", text)) - set(environment) == set()
    host, _, port = environment["TRACES_ENDPOINT"].partition(":")
    assert host == store
    program = config(store)
    receivers = program["distributor"]["receivers"] if store == "tempo" else program["receivers"]
    assert receivers["otlp"]["protocols"]["grpc"]["endpoint"] == f"0.0.0.0:{port}"


def test_listeners_are_published_under_their_own_numbers(compose: Compose) -> None:
    """Each port that a program opens for others than the Collector is a port of its service."""
    ports = {
        name: {int(each.rsplit(":", 1)[1]) for each in service.get("ports", ())}
        for name, service in compose("compose.tempo.yaml")["services"].items()
    }
    collector = config("otel-collector")
    protocols = collector["receivers"]["otlp"]["protocols"]
    endpoints = [each["endpoint"] for each in protocols.values()]
    endpoints.append(collector["exporters"]["prometheus"]["endpoint"])
    endpoints.append(collector["extensions"]["health_check"]["endpoint"])
    opened = {int(each.rsplit(":", 1)[1]) for each in endpoints} | {_own_port(collector)}
    assert opened == ports["otel-collector"]
    jaeger = config("jaeger")
    query = jaeger["extensions"]["jaeger_query"]["http"]["endpoint"]
    assert {int(query.rsplit(":", 1)[1]), _own_port(jaeger)} == ports["jaeger"]
    assert {config("tempo")["server"]["http_listen_port"]} == ports["tempo"]


def test_data_is_written_into_volumes(compose: Compose) -> None:
    """What a program keeps is below a directory that is mounted for writing."""
    services = compose("compose.tempo.yaml")["services"]
    badger = config("jaeger")["extensions"]["jaeger_storage"]["backends"]["spans"]["badger"]
    trace = config("tempo")["storage"]["trace"]
    kept = {
        "jaeger": list(badger["directories"].values()),
        "tempo": [trace["local"]["path"], trace["wal"]["path"]],
        "otel-collector": [config("otel-collector")["extensions"]["file_storage"]["directory"]],
    }
    assert badger["ephemeral"] is False
    for name, paths in kept.items():
        mounts = [each.split(":") for each in services[name]["volumes"]]
        writable = [each[1] for each in mounts if each[-1] != "ro"]
        for path in paths:
            assert any(Path(path).is_relative_to(each) for each in writable), path


def test_jaeger_reads_what_it_writes() -> None:
    """Exporter and query use one storage, which is defined."""
    jaeger = config("jaeger")
    backends = set(jaeger["extensions"]["jaeger_storage"]["backends"])
    assert {jaeger["exporters"]["jaeger_storage_exporter"]["trace_storage"]} == backends
    assert {jaeger["extensions"]["jaeger_query"]["storage"]["traces"]} == backends


def test_a_trace_of_ours_fits_into_tempo() -> None:
    """What trainers keep a step's trace below is below what Tempo takes."""
    overrides = config("tempo")["overrides"]["defaults"]["global"]
    assert overrides["max_bytes_per_trace"] > DEFAULT_TRACE_MAX_BYTES


def test_tempo_is_configured_in_words_of_its_version() -> None:
    """No section that later versions refuse, but the one that holds retention in this one."""
    assert set(config("tempo")) & FOREIGN == set()
    assert set(config("tempo")) == {
        "server",
        "usage_report",
        "distributor",
        "storage",
        "compactor",
        "overrides",
    }


def test_span_files_are_found_and_told_apart(compose: Compose, tmp_path: Path) -> None:
    """The receiver's patterns match the files that ranks write, rotated ones too.

    It knows a file by its first bytes, so those of two ranks must differ within them.
    """
    receiver = config("otel-collector")["receivers"]["otlpjsonfile"]
    for rank in (0, 1):
        sink = _sink(tmp_path / "run", rank, max_bytes=1000)
        sink.write([_span()])
        sink.write([_span()])
    files = sorted(tmp_path.rglob("*.jsonl"))
    assert len(files) == 4
    (pattern,) = receiver["include"]
    services = compose(FASTVIDEO_SPAN_DIR="/spans")["services"]
    mounts = dict(each.split(":")[:2] for each in services["otel-collector"]["volumes"])
    root, _, rest = pattern.partition("**/")
    assert root.rstrip("/") == mounts["/spans"]
    assert [each.name for each in files if not fnmatch.fnmatch(each.name, rest)] == []
    known = size(receiver["fingerprint_size"])
    beginnings = {each.name[: len("spans_rank0")]: each.read_bytes()[:known] for each in files}
    assert beginnings["spans_rank0"] != beginnings["spans_rank1"]
    assert receiver["storage"] in config("otel-collector")["extensions"]


def test_no_line_is_longer_than_the_receiver_reads(tmp_path: Path) -> None:
    """A line full of spans, each with many attributes, is read whole."""
    receiver = config("otel-collector")["receivers"]["otlpjsonfile"]
    attributes = {f"fastvideo.attribute_{n}": "x" * 100 for n in range(64)}
    _sink(tmp_path, 0, max_bytes=1 << 30).write([_span(attributes)] * 1000)
    lines = next(tmp_path.glob("*.jsonl")).read_bytes().splitlines()
    assert sum(_spans(line) for line in lines) == 1000
    assert max(map(len, lines)) < size(receiver["max_log_size"])


def _own_port(collector: dict[str, Any]) -> int:
    (reader,) = collector["service"]["telemetry"]["metrics"]["readers"]
    return int(reader["pull"]["exporter"]["prometheus"]["port"])


def _spans(line: bytes) -> int:
    (resource,) = json.loads(line)["resourceSpans"]
    return sum(len(scope["spans"]) for scope in resource["scopeSpans"])


def _span(attributes: dict[str, Any] | None = None) -> SpanRecord:
    return SpanRecord("training_step", 1, 2, 0, 10, 20, attributes or {})


def _sink(directory: Path, rank: int, max_bytes: int) -> FileSink:
    identity = RunIdentity(
        run_id="1", attempt="0", run_name="a", rank=rank, world_size=2, local_rank=rank,
        host_name="h", host_id="i", sampler_ratio=1.0, traceparent=None,
    )  # fmt: skip
    encoder = JsonEncoder(resource_attributes(TraceSettings(), identity), ("scope", "1"))
    return FileSink(directory, rank, max_bytes, encoder)
