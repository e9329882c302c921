"""The runbooks: a section for each alert, and in it what somebody needs at night."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fastvideo import envs
from fastvideo.dashboards import all_dashboards
from fastvideo.dashboards.promql_lint import SUFFIXES, family_of, lint_query, metrics_in
from fastvideo.observability.metrics.families import FAMILIES

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
PAGES = {path.stem: path.read_text() for path in sorted(RUNBOOKS.glob("*.md"))}
RULES = [
    rule
    for path in sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yaml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDS = {rule["record"] for rule in RULES if "record" in rule}
OF_PROMETHEUS = {"up", "scrape_duration_seconds", "ALERTS"}

SECTIONS: dict[str, tuple[str, str]] = {
    heading: (page, text)
    for page, content in PAGES.items()
    if page != "index"
    for heading, text in re.findall(
        r"^## (\S+)\n(.*?)(?=^## |\Z)", content, re.MULTILINE | re.DOTALL
    )
}


def causes(text: str) -> list[str]:
    """Returns the numbered causes of a section."""
    return re.findall(r"^\d\. (.*?)(?=^\d\. |^\*\*Silence|\Z)", text, re.MULTILINE | re.DOTALL)


def queries(text: str) -> list[str]:
    """Returns the queries in some Markdown."""
    return re.findall(r"```promql\n(.*?)```", text, re.DOTALL)


def test_each_alert_has_a_section_and_each_section_an_alert() -> None:
    """Sections and alerts are the same set."""
    assert set(SECTIONS) == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_links_of_alerts_lead_to_their_sections(name: str) -> None:
    """The address is that of the page and the heading as MkDocs builds them."""
    page, _ = SECTIONS[name]
    expected = f"{{{{ $externalLabels.docs_url }}}}/runbooks/{page}/#{name.lower()}"
    assert ALERTS[name]["annotations"]["runbook_url"] == expected


@pytest.mark.parametrize("name", ALERTS)
def test_sections_have_all_parts(name: str) -> None:
    """Meaning, first panel, three causes with query and action, and when to silence."""
    _, text = SECTIONS[name]
    parts = [
        "**Meaning.** ",
        "**First panel.** ",
        "\n1. **",
        "\n2. **",
        "\n3. **",
        "**Silence it** ",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert len(causes(text)) == 3
    for cause in causes(text):
        assert len(queries(cause)) == 1, cause
        query, action = cause.index("```promql"), cause.index("*Do:* ")
        assert query < action


@pytest.mark.parametrize("name", ALERTS)
def test_first_panel_is_on_its_dashboard(name: str) -> None:
    """The panel that a section names exists under that title."""
    found = re.search(r"\*\*First panel\.\*\* \*(.+?)\* \(`([\w-]+)`\)", SECTIONS[name][1])
    assert found is not None
    boards = {board.uid: board for board in all_dashboards()}
    titles = {panel.title for row in boards[found[2]].rows for panel in row.panels}
    assert found[1] in titles


@pytest.mark.parametrize("name", ALERTS)
def test_queries_parse_and_ask_for_metrics_that_exist(name: str) -> None:
    """Each query is PromQL, sound as those of dashboards are, and about families or records."""
    for query in queries(SECTIONS[name][1]):
        names = metrics_in(query)
        for metric in names:
            known = metric in RECORDS or metric in OF_PROMETHEUS or family_of(metric) is not None
            assert known, metric
        if all(family_of(metric) is not None for metric in names):
            # A runbook has no $__rate_interval: people put its queries into Prometheus itself.
            problems = [each for each in lint_query(query) if "__rate_interval" not in each]
            assert problems == []


def series_of_a_run() -> list[dict[str, str]]:
    """Returns promtool's input: two ranks, and two values of each other label, of every family."""
    found = [
        {"series": f'up{{job="fastvideo",instance="a:{rank}",{who(rank)}}}', "values": "0+0x120"}
        for rank in (0, 1)
    ]
    found += [
        {
            "series": f'scrape_duration_seconds{{job="fastvideo",instance="a:{rank}",{who(rank)}}}',
            "values": "9+0x120",
        }
        for rank in (0, 1)
    ]
    for family in FAMILIES.values():
        for rank in (0, 1):
            for value in VALUES.get(family.labels[0] if family.labels else "", ("x", "y")):
                labels = "".join(f',{label}="{value}"' for label in family.labels)
                for suffix in SUFFIXES[family.kind]:
                    le = ',le="+Inf"' if suffix == "_bucket" else ""
                    series = f"{family.name}{suffix}{{{who(rank)}{labels}{le}}}"
                    values = STEADY.get(family.name, f"1+{rank + 1}x120")
                    entry = {"series": series, "values": values}
                    if entry not in found:
                        found.append(entry)
                if not family.labels:
                    break
    return found


def who(rank: int) -> str:
    """Returns the labels that are on every series."""
    return f'run="a",rank="{rank}"'


VALUES = {
    "region": ("training_forward", "training_callbacks"),
    "status": ("failed", "no_kernels", "ok"),
    "reason": ("file", "timeout"),
    "sink": ("metrics", "spans", "device_time"),
    "name": ("grad_norm/student",),
    "kind": ("peak", "allocated"),
    # What runs where has one series for a rank.
    "run_name": ("a",),
    "host": ("b",),
    "version": ("1",),
}

STEADY = {"fastvideo_run_active": "1x120", "fastvideo_run_world_size": "2x120"}

FINDS_NOTHING = {
    "run:fastvideo_ranks_missing:last30m > 0": "no rank is missing in this run",
    'count by (run, rank) (up{job="fastvideo"} == 0) unless on (run, rank) fastvideo_run_active': (
        "the ranks of this run report"
    ),
}


@pytest.mark.integration
def test_queries_can_be_asked(tmp_path: Path) -> None:
    """Prometheus answers each query of the runbooks about a run with everything in it."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool, in Debian's package prometheus")
    asked = [query.strip() for _, text in SECTIONS.values() for query in queries(text)]
    # A query that finds nothing is as expected, so its text does not show up in what promtool says.
    checks = [{"expr": query, "eval_time": "25m", "exp_samples": []} for query in asked]
    content = {
        "rule_files": [str(ROOT / "deploy" / "prometheus" / "rules" / "*.yaml")],
        "group_eval_order": ["fastvideo_recording", "fastvideo_training", "fastvideo_telemetry"],
        "evaluation_interval": "1m",
        "tests": [
            {"interval": "15s", "input_series": series_of_a_run(), "promql_expr_test": checks}
        ],
    }
    path = tmp_path / "runbooks.yaml"
    path.write_text(yaml.safe_dump(content))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    answered = set()
    for query in asked:
        shown = "expr: " + json.dumps(query, ensure_ascii=False)
        place = said.find(shown)
        if place >= 0:
            answer = said[place + len(shown) :].partition("expr: ")[0]
            assert "err:" not in answer, query + answer
            answered.add(query)
    assert set(asked) - answered == set(FINDS_NOTHING)


def test_the_index_lists_each_alert_with_its_severity() -> None:
    """The table on the first page has the alerts, their severities and where they lead."""
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md#(\w+)\) \| (\w+) \|", PAGES["index"], re.MULTILINE)
    assert {(name, page, anchor, severity) for name, page, anchor, severity in rows} == {
        (name, SECTIONS[name][0], name.lower(), rule["labels"]["severity"])
        for name, rule in ALERTS.items()
    }


def test_variables_are_those_that_exist() -> None:
    """Each FASTVIDEO_ variable that a runbook names is one."""
    named = {name for text in PAGES.values() for name in re.findall(r"FASTVIDEO_[A-Z_]+", text)}
    assert named
    assert {name for name in named if name not in envs.VARIABLES} == set()


def test_links_between_pages_lead_somewhere() -> None:
    """Each relative link names a page, and an anchor that it has."""
    for page, text in PAGES.items():
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", text):
            path = (RUNBOOKS / (target or f"{page}.md")).resolve()
            assert path.is_file(), target
            if anchor:
                headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
                assert anchor in {each.lower().replace(" ", "-") for each in headings}
