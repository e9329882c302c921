"""The rules of Prometheus: valid, tested, and about metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from fastvideo.dashboards import all_dashboards
from fastvideo.dashboards.promql_lint import family_of, metrics_in

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"
RULE_FILES = sorted((PROMETHEUS / "rules").glob("*.yaml"))
UNIT_TESTS = sorted((PROMETHEUS / "tests").glob("*.yaml"))

GROUPS: list[dict[str, Any]] = [
    group for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"]
]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDS = {rule["record"]: rule for rule in RULES if "record" in rule}
CASES: list[dict[str, Any]] = [
    case for path in UNIT_TESTS for case in yaml.safe_load(path.read_text())["tests"]
]
OF_PROMETHEUS = {"ALERTS", "up"}


def promtool(*arguments: str | Path) -> str:
    """Runs promtool, which has to be content; returns what it says."""
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("needs promtool, in Debian's package prometheus")
    done = subprocess.run(
        [binary, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.integration
def test_rules_are_valid() -> None:
    """Promtool finds nothing to say about the rule files, not even style."""
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES)
    assert said.count("SUCCESS") == len(RULE_FILES) > 0


@pytest.mark.integration
def test_configuration_is_valid() -> None:
    """Promtool takes prometheus.yml, and finds the rule files that it names."""
    said = promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert f"{len(RULE_FILES)} rule files found" in said


@pytest.mark.integration
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_unit_tests_of_rules_pass(path: Path) -> None:
    """Each file of unit tests passes."""
    assert "SUCCESS" in promtool("test", "rules", path)


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_unit_tests_evaluate_all_groups_in_a_fixed_order(path: Path) -> None:
    """Promtool evaluates groups in any order unless it is told one."""
    content = yaml.safe_load(path.read_text())
    assert content["rule_files"] == ["../rules/*.yaml"]
    assert set(content["group_eval_order"]) == {group["name"] for group in GROUPS}
    assert content["group_eval_order"][0] == "fastvideo_recording"


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_is_tested_firing_and_not_firing(name: str) -> None:
    """Each alert has a unit test where it fires, annotations and all, and one where it does not."""
    checks = [
        check
        for case in CASES
        for check in case.get("alert_rule_test", ())
        if check["alertname"] == name
    ]
    fired = [each for check in checks for each in check["exp_alerts"]]
    assert fired
    assert any(not check["exp_alerts"] for check in checks)
    for each in fired:
        assert set(each["exp_annotations"]) == set(ALERTS[name]["annotations"])


@pytest.mark.parametrize("name", RECORDS)
def test_each_recording_rule_is_tested_with_values(name: str) -> None:
    """Each recording rule has a unit test that states its values."""
    checks = [
        check
        for case in CASES
        for check in case.get("promql_expr_test", ())
        if re.fullmatch(rf"{name}(\{{.*\}})?|round\({name}, .*\)", check["expr"])
    ]
    assert any(check["exp_samples"] for check in checks)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_ask_for_metrics_that_exist(rule: dict[str, Any]) -> None:
    """Each metric in an expression or in a query of a description is a family or a record."""
    texts = [rule["expr"], *queries_in_templates(rule)]
    for text in texts:
        for name in metrics_in(text):
            assert name in RECORDS or name in OF_PROMETHEUS or family_of(name), name


def queries_in_templates(rule: dict[str, Any]) -> list[str]:
    """Returns the queries that the annotations of a rule ask, with a run's name put in."""
    return [
        quoted.replace("%q", '"a"').replace('\\"', '"')
        for text in rule.get("annotations", {}).values()
        for quoted in re.findall(r'printf\s+"((?:[^"\\]|\\.)*%q(?:[^"\\]|\\.)*)"', text)
    ]


def test_descriptions_ask_for_what_is_tested() -> None:
    """The queries of descriptions are found by the test above: it is no test of nothing."""
    asking = {name for name, rule in ALERTS.items() if queries_in_templates(rule)}
    assert {"FastVideoRankMissing", "FastVideoDataBound", "FastVideoStraggler"} <= asking


@pytest.mark.parametrize("name", RECORDS)
def test_names_of_records_say_level_metric_and_operation(name: str) -> None:
    """A record's name is level, metric and operation; the level is the labels that are left."""
    level, metric, operation = name.split(":")
    assert metric.startswith("fastvideo_")
    assert re.fullmatch(r"(mean|max|last)(\d+m|_lifetime)?", operation)
    assert level in {"run", "rank"}


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_say_what_people_and_routes_need(name: str) -> None:
    """Each alert has a severity, a text that names the run, and links to pages that exist."""
    rule = ALERTS[name]
    assert name.startswith("FastVideo")
    assert rule["labels"]["severity"] in {"page", "warning", "info"}
    assert set(rule["labels"]) == {"severity"}
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url", "dashboard_url"}
    assert "{{ $labels.run }}" in annotations["summary"]
    assert "$value" in annotations["description"]
    uids = "|".join(board.uid for board in all_dashboards())
    assert re.fullmatch(
        rf"{{{{ \$externalLabels\.grafana_url }}}}/d/({uids})"
        r"\?var-run={{ \$labels\.run \| urlquery }}",
        annotations["dashboard_url"],
    )


def test_links_begin_with_labels_that_no_alert_carries() -> None:
    """The external labels that links need are set, and dropped from what is sent."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    labels = config["global"]["external_labels"]
    assert set(labels) == {"docs_url", "grafana_url"}
    dropped = config["alerting"]["alert_relabel_configs"]
    assert dropped == [{"action": "labeldrop", "regex": "docs_url|grafana_url"}]


def test_series_keep_their_own_run_and_rank() -> None:
    """Labels of the target, which the file's name gives, do not rename those of the series."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    for name in ("fastvideo", "fastvideo-pushed"):
        assert jobs[name]["honor_labels"] is True
    relabeling = {each["target_label"]: each for each in jobs["fastvideo"]["relabel_configs"]}
    path = "/var/lib/fastvideo/targets/fastvideo_my_rank1_run_rank12.json"
    for label, value in {"run": "my_rank1_run", "rank": "12"}.items():
        assert relabeling[label]["source_labels"] == ["__meta_filepath"]
        match = re.fullmatch(relabeling[label]["regex"], path)
        assert match is not None
        assert match[1] == value


def selectors(node: Any) -> list[promql.VectorSelector]:
    """Returns every selector of a syntax tree."""
    found = [node] if isinstance(node, promql.VectorSelector) else []
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None:
            found += selectors(child)
    for child in getattr(node, "args", ()) or ():
        found += selectors(child)
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_known_traps_are_not_stepped_into(rule: dict[str, Any]) -> None:
    """No absent(), no `le` matched as text, no window of a few scrapes."""
    expr = rule["expr"]
    assert "absent" not in expr
    for selector in selectors(promql.parse(expr)):
        assert all(matcher.name != "le" for matcher in selector.matchers.matchers)
    for number, unit in re.findall(r"\[(\d+)([smh])\]", expr):
        assert int(number) * {"s": 1, "m": 60, "h": 3600}[unit] >= 4 * 15


def test_nothing_is_divided_by_zero() -> None:
    """A divisor that may be zero is filtered, or held above it."""
    for rule in RULES:
        for divisor in divisors(promql.parse(rule["expr"])):
            text = divisor.prettify()
            guarded = "> 0" in text or "clamp_min" in text or "quantile_over_time" in text
            assert guarded, text


def divisors(node: Any) -> list[Any]:
    """Returns the right sides of all divisions in a syntax tree."""
    found = []
    if isinstance(node, promql.BinaryExpr) and str(node.op) == "/":
        found.append(node.rhs)
    for name in ("lhs", "rhs", "expr"):
        child = getattr(node, name, None)
        if child is not None:
            found += divisors(child)
    for child in getattr(node, "args", ()) or ():
        found += divisors(child)
    return found


def test_divisions_are_found() -> None:
    """The test above looks at divisions: it is no test of nothing."""
    assert sum(len(divisors(promql.parse(rule["expr"]))) for rule in RULES) >= len(RECORDS) - 2
