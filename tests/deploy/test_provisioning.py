"""What Grafana is provisioned with: datasources that link to each other, and one folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.text_format import TextRenderer
from fastvideo.observability.tracing.resource import resource_attributes
from fastvideo.observability.tracing.settings import TraceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Compose = Callable[..., dict[str, Any]]

DEPLOY = Path(__file__).parents[2] / "deploy"
PROVISIONING = DEPLOY / "grafana" / "provisioning"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))

STACKS = {"jaeger": (), "tempo": ("compose.tempo.yaml",)}
CONSTANT = {"rank": "0", "run": "a"}


@pytest.fixture
def environment() -> dict[str, str]:
    """What Grafana's variables are where nothing else is said."""
    return {"TRACES_TYPE": "jaeger", "TRACES_URL": "http://jaeger:16686"}


def expand(value: Any, environment: dict[str, str]) -> Any:
    """Fills in variables as Grafana does: ``$NAME``, and ``$$`` for a plain ``$``."""
    if isinstance(value, dict):
        return {key: expand(each, environment) for key, each in value.items()}
    if isinstance(value, list):
        return [expand(each, environment) for each in value]
    if isinstance(value, str):
        return re.sub(
            r"\$\$|\$(\w+)", lambda found: environment[found[1]] if found[1] else "$", value
        )
    return value


def datasources(environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The provisioned datasources by uid."""
    content = yaml.safe_load((PROVISIONING / "datasources" / "fastvideo.yaml").read_text())
    expanded = expand(content, environment)["datasources"]
    assert len({each["uid"] for each in expanded}) == len(expanded)
    return {each["uid"]: each for each in expanded}


def _values(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for each in value.values():
            yield from _values(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _values(each, key)


@pytest.mark.parametrize("stack", STACKS)
def test_variables_come_from_the_compose_files(compose: Compose, stack: str) -> None:
    """Each stack names its own kind of traces, and a service and port that it has."""
    model = compose(*STACKS[stack])
    traces = datasources(model["services"]["grafana"]["environment"])["fastvideo-traces"]
    assert traces["type"] == stack
    host, port = re.fullmatch(r"http://([\w-]+):(\d+)", traces["url"]).groups()  # type: ignore[union-attr]
    assert host == stack
    assert f"127.0.0.1:{port}:{port}" in model["services"][host]["ports"]


def test_datasources_name_services_at_their_ports(
    compose: Compose, environment: dict[str, str]
) -> None:
    """Prometheus and Alertmanager are asked where they listen."""
    urls = {uid: each["url"] for uid, each in datasources(environment).items()}
    command = compose()["services"]["prometheus"]["command"]
    assert "--web.listen-address=127.0.0.1:9090" in command
    assert urls["fastvideo-prometheus"] == "http://prometheus:9090"
    assert "127.0.0.1:9093:9093" in compose()["services"]["alertmanager"]["ports"]
    assert urls["fastvideo-alertmanager"] == "http://alertmanager:9093"


def test_nothing_is_edited_in_grafana(environment: dict[str, str]) -> None:
    """Datasources and dashboards are changed in files only, and one datasource is the default."""
    provided = datasources(environment).values()
    assert [each["name"] for each in provided if each.get("editable") is not False] == []
    assert [each["uid"] for each in provided if each.get("isDefault")] == ["fastvideo-prometheus"]
    (provider,) = _providers()
    assert provider["allowUiUpdates"] is False


def test_the_interval_is_that_of_the_scrapes(environment: dict[str, str]) -> None:
    """Grafana's least step is the scrape interval, so that $__rate_interval spans four scrapes."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    interval = config["global"]["scrape_interval"]
    metrics = datasources(environment)["fastvideo-prometheus"]
    assert metrics["jsonData"]["timeInterval"] == interval
    assert {each.get("scrape_interval", interval) for each in config["scrape_configs"]} == {
        interval
    }


def test_every_uid_that_is_referred_to_exists(environment: dict[str, str]) -> None:
    """Links between datasources lead to one of them."""
    provided = datasources(environment)
    named = {
        uid
        for key in ("datasourceUid", "alertmanagerUid")
        for uid in _values(list(provided.values()), key)
    }
    assert named == {"fastvideo-prometheus", "fastvideo-traces", "fastvideo-alertmanager"}
    assert named - set(provided) == set()


def test_exemplars_open_a_trace(environment: dict[str, str]) -> None:
    """The link is on the label that an exemplar of ours has, not on another one."""
    instruments = Instruments()
    instruments.histogram("fastvideo_training_step_duration_seconds", "step").observe(
        1.0, "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    )
    page = TextRenderer(instruments, CONSTANT).render(openmetrics=True).decode()
    labels = {
        label
        for family in text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar
        for label in sample.exemplar.labels
    }
    (link,) = datasources(environment)["fastvideo-prometheus"]["jsonData"][
        "exemplarTraceIdDestinations"
    ]
    assert link["name"] in labels
    assert link["name"] == "trace_id"
    assert link["datasourceUid"] == "fastvideo-traces"


def test_spans_open_metrics(environment: dict[str, str]) -> None:
    """The attributes that become labels are on every span, and the queries are PromQL."""
    identity = RunIdentity(
        run_id="1", attempt="0", run_name="a", rank=0, world_size=1, local_rank=0,
        host_name="h", host_id="i", sampler_ratio=1.0, traceparent=None,
    )  # fmt: skip
    attributes = resource_attributes(TraceSettings(), identity)
    links = datasources(environment)["fastvideo-traces"]["jsonData"]["tracesToMetrics"]
    for tag in links["tags"]:
        assert tag["key"] in attributes
        assert str(attributes[tag["key"]]) == CONSTANT[tag["value"]]
    assert len(links["queries"]) > 1
    for query in links["queries"]:
        text = query["query"]
        assert "$__tags" in text
        assert "$$" not in text
        text = text.replace("$__tags", 'run="a",rank="0"').replace("$__rate_interval", "1m")
        promql_parser.parse(text)


def test_dashboards_are_mounted_where_the_provider_looks(compose: Compose) -> None:
    """The provider's path is the mounted directory, in the one folder of ours."""
    (provider,) = _providers()
    mounts = [each.split(":") for each in compose()["services"]["grafana"]["volumes"]]
    assert ["./grafana/dashboards", provider["options"]["path"], "ro"] in mounts
    assert (provider["folder"], provider["folderUid"]) == ("FastVideo", "fastvideo")
    assert DASHBOARDS


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_refer_to_provided_datasources_only(
    path: Path, environment: dict[str, str]
) -> None:
    """A dashboard names a datasource by one of its own variables, of a kind that is provided."""
    dashboard = json.loads(path.read_text())
    variables = {
        f"${{{each['name']}}}": each["query"]
        for each in dashboard["templating"]["list"]
        if each["type"] == "datasource"
    }
    kinds = {each["type"] for each in datasources(environment).values()} | {"tempo"}
    assert set(variables.values()) - kinds == set()
    sources = [each for each in _values(dashboard, "datasource") if isinstance(each, dict)]
    built_in = {"-- Grafana --", "grafana", "-- Mixed --", "-- Dashboard --"}
    assert {each["uid"] for each in sources} - set(variables) - built_in == set()


def _providers() -> list[dict[str, Any]]:
    content = yaml.safe_load((PROVISIONING / "dashboards" / "fastvideo.yaml").read_text())
    providers: list[dict[str, Any]] = content["providers"]
    return providers
