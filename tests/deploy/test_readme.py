"""deploy/README.md: the ports, the links and the versions that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Compose = Callable[..., dict[str, Any]]

DEPLOY = Path(__file__).parents[2] / "deploy"
TEXT = (DEPLOY / "README.md").read_text()


def test_the_table_of_ports_is_complete(compose: Compose) -> None:
    """Every port that any stack opens is in the table, and no other but the ranks' own."""
    table = TEXT.partition("| port, at 127.0.0.1 |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    told = {int(number) for row in rows for number in re.findall(r"\d+", row)}
    opened = set()
    for overrides in ((), ("compose.tempo.yaml",), ("compose.bridge.yaml",)):
        for service in compose(*overrides)["services"].values():
            opened |= {int(each.rsplit(":", 1)[1]) for each in service.get("ports", ())}
    assert told - {9464} == opened


def test_links_and_paths_lead_somewhere() -> None:
    """What is linked, and each path below deploy/ that is spelt out, exists."""
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", TEXT)
    assert links
    assert [link for link in links if not (DEPLOY / link).exists()] == []
    paths = re.findall(r"\bdeploy/[\w./-]+\w", TEXT)
    made = {"deploy/.env"}
    assert [
        path for path in paths if path not in made and not (DEPLOY.parent / path).exists()
    ] == []


def test_versions_are_those_that_are_pinned(compose: Compose) -> None:
    """The list of what was never started names the pinned minor versions."""
    stack = compose("compose.tempo.yaml")["services"]
    named = dict(re.findall(r"(\w+) (\d+\.\d+)[,)]", TEXT.partition("Never started here")[2]))
    services = {
        "Prometheus": "prometheus",
        "Alertmanager": "alertmanager",
        "Grafana": "grafana",
        "Collector": "otel-collector",
        "Jaeger": "jaeger",
        "Tempo": "tempo",
    }
    pinned = {
        title: ".".join(stack[name]["image"].rpartition(":")[2].lstrip("v").split(".")[:2])
        for title, name in services.items()
    }
    assert named == pinned
    for name, service in (
        ("otel-collector", "Collector"),
        ("jaeger", "Jaeger"),
        ("tempo", "Tempo"),
    ):
        head = (DEPLOY / name / "config.yaml").read_text().split("\n", 1)[0]
        assert stack[name]["image"].rpartition(":")[2] in head, service
