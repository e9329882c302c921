"""Every metric that deploy/ names exists in the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from fastvideo import envs
from fastvideo.observability.metrics.families import FAMILIES

DEPLOY = Path(__file__).parents[2] / "deploy"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
READ = {".yaml", ".yml", ".json", ".md", ".py", ".tmpl", ".example", ""}
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yaml"))

# A name, but not the end of a recording rule's, nor a part of a longer word, such as the name of a
# volume (fastvideo_grafana-data).
_NAME = re.compile(r"(?<![:\w])fastvideo_[a-z]\w*(?!\w|-[a-z])")
_RECORDED = re.compile(r"(?<![:\w])(?:\w+):fastvideo_\w+(?::\w+)?")


def _series() -> set[str]:
    """Every name under which a sample of ours is stored."""
    names = set()
    for family in FAMILIES.values():
        names |= {family.name + suffix for suffix in SUFFIXES.get(family.kind, ("",))}
    return names


def _groups() -> list[dict[str, Any]]:
    return [each for path in RULES for each in yaml.safe_load(path.read_text())["groups"]]


# What is written there by who runs the stack, and not by us.
NOT_OURS = {"__pycache__", "targets", "span-files", "secrets", ".env"}
FILES = sorted(
    path
    for path in DEPLOY.rglob("*")
    if path.is_file() and path.suffix in READ and not NOT_OURS & set(path.parts)
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_metrics_that_are_named_exist(path: Path) -> None:
    """A name in a query, a rule, a comment or the text is a series of ours or its family."""
    groups = {each["name"] for each in _groups()}
    named = set(_NAME.findall(path.read_text()))
    assert named - _series() - set(FAMILIES) - groups == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_variables_that_are_named_exist(path: Path) -> None:
    """A variable with the package's prefix is one that the package reads."""
    named = set(re.findall(r"\bFASTVIDEO_[A-Z0-9_]*[A-Z0-9]\b", path.read_text()))
    assert named - set(envs.VARIABLES) == set()


def test_names_are_found_at_all() -> None:
    """The search is not blind: rules, dashboards and provisioning name metrics."""
    found = {path for path in FILES if _series() & set(_NAME.findall(path.read_text()))}
    assert {path.suffix for path in found} >= {".yaml", ".json"}
    assert RULES[0] in found


def test_expressions_of_rules_read_stored_series() -> None:
    """Parsed, every selector reads a series of ours, a recorded one, or one of Prometheus."""
    recorded = {
        rule["record"] for group in _groups() for rule in group["rules"] if "record" in rule
    }
    for group in _groups():
        for rule in group["rules"]:
            read = _selected(rule["expr"])
            assert read - _series() - recorded - {"up", "ALERTS", "ALERTS_FOR_STATE"} == set()


def test_recorded_series_that_are_named_are_recorded() -> None:
    """Dashboards and rules use no recording rule that does not exist."""
    recorded = {
        rule["record"] for group in _groups() for rule in group["rules"] if "record" in rule
    }
    for path in FILES:
        if path.suffix == ".json":
            text = json.dumps(json.loads(path.read_text()))
        elif path in RULES:
            text = path.read_text()
        else:
            continue
        assert set(_RECORDED.findall(text)) - recorded == set(), path


def _selected(expr: str) -> set[str]:
    names = set()

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector) and node.name:
            names.add(str(node.name))
        if isinstance(node, promql_parser.MatrixSelector):
            names.add(str(node.vector_selector.name))
        return True

    promql_parser.walk(promql_parser.parse(expr), pre_visit=visit)
    return names
