"""The nine dashboards: all there, without mistakes, as committed, and about all metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml

from fastvideo.dashboards import (
    BOARDS,
    all_dashboards,
    expressions,
    frame,
    panels,
    queries,
    to_json,
)
from fastvideo.dashboards.files import stale_files
from fastvideo.dashboards.lint import lint, lint_all
from fastvideo.dashboards.promql_lint import family_of, metrics_in
from fastvideo.observability.metrics.families import FAMILIES
from fastvideo.observability.step import CHILD_REGIONS
from fastvideo.profiler.catalogue import BUILT_IN

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = [
    rule
    for path in sorted((DEPLOY / "prometheus" / "rules").glob("*.yaml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
BY_UID = {board.uid: board for board in all_dashboards()}

UNUSED_ON_PURPOSE: dict[str, str] = {}
"""Families that neither a dashboard nor a rule asks for, and why."""


def test_there_are_nine_in_the_order_of_need() -> None:
    """Each board is one of those that links know by uid and title, in that order."""
    assert {board.uid: board.title for board in all_dashboards()} == frame.TITLES
    assert len(BOARDS) == 9


@pytest.mark.parametrize("uid", BY_UID)
def test_nothing_is_wrong_with_any(uid: str) -> None:
    """The checks find nothing."""
    assert lint(to_json(BY_UID[uid])) == []


def test_nothing_is_wrong_with_all_together() -> None:
    """Links lead to dashboards that exist, and no uid or title is there twice."""
    assert lint_all(to_json(board) for board in all_dashboards()) == []


def test_committed_files_are_what_the_code_makes() -> None:
    """``fastvideo dashboards write`` would change nothing."""
    assert stale_files(DEPLOY / "grafana" / "dashboards") == []


def test_every_family_is_used_or_unused_on_purpose() -> None:
    """No metric is measured for nobody, and none that is used is listed as unused."""
    used = {
        family_of(name)
        for board in all_dashboards()
        for each in expressions(board)
        for name in metrics_in(each.expr)
    }
    used |= {family_of(name) for rule in RULES for name in metrics_in(rule["expr"])}
    assert set(FAMILIES) - used == set(UNUSED_ON_PURPOSE)


def test_every_metric_is_on_a_dashboard() -> None:
    """A person can look at each family without writing a query."""
    shown = {
        family_of(name)
        for board in all_dashboards()
        for panel in board.panels()
        for target in panel.targets
        for name in metrics_in(target.expr)
    }
    assert set(FAMILIES) - shown - set(UNUSED_ON_PURPOSE) == set()


def test_stacked_regions_are_those_that_leave_the_unattributed_rest() -> None:
    """The parts of a step are the telemetry's own, which lie beside each other."""
    assert queries.STEP_PARTS == CHILD_REGIONS
    assert set(queries.STEP_PARTS) <= set(BUILT_IN)


def test_only_disjoint_things_are_stacked() -> None:
    """One panel stacks, of one run at a time, and it asks for the parts of a step alone."""
    stacking = [panel for board in all_dashboards() for panel in board.panels() if panel.stacked]
    (panel,) = stacking
    assert panel.repeat == "run"
    regions = [target.expr for target in panel.targets if "region_duration" in target.expr]
    (matched,) = {match for expr in regions for match in re.findall(r'region=~"([^"]*)"', expr)}
    assert matched.split("|") == list(CHILD_REGIONS)


@pytest.mark.parametrize(
    ("alert", "limit"),
    [("FastVideoDataBound", panels.DATA_WAIT[1]), ("FastVideoStraggler", panels.LATE[1])],
)
def test_a_field_is_red_where_an_alert_fires(alert: str, limit: float) -> None:
    """Colours and alerts have one threshold."""
    (rule,) = [rule for rule in RULES if rule.get("alert") == alert]
    assert rule["expr"].strip().endswith(f"> {limit:g}")


def test_alerts_lead_to_dashboards_that_exist() -> None:
    """The link of each alert names one of the uids."""
    urls = [rule["annotations"].get("dashboard_url", "") for rule in RULES if "alert" in rule]
    named = {uid for url in urls for uid in re.findall(r"/d/([\w-]+)", url)}
    assert named
    assert named <= set(BY_UID)


def test_runbooks_lead_to_panels_that_exist() -> None:
    """A page names the first panel to open as its dashboard has it."""
    pages = (DEPLOY.parent / "docs" / "runbooks").glob("*.md")
    named = {
        (uid, title)
        for page in pages
        for title, uid in re.findall(r"\*([^*\n]+)\*\s+\(`(fastvideo-[\w-]+)`", page.read_text())
    }
    assert named
    assert named <= {(uid, panel.title) for uid in BY_UID for panel in BY_UID[uid].panels()}


@pytest.mark.parametrize("uid", BY_UID)
def test_choices_at_the_top_are_the_same_everywhere(uid: str) -> None:
    """Data source, run, host and rank come first, so that links carry them along."""
    names = [variable.name for variable in BY_UID[uid].variables]
    assert names[:4] == ["datasource", "run", "host", "rank"]


def test_the_overview_leads_to_every_dashboard_a_run_in_trouble_needs() -> None:
    """Each field of the top rows that can turn red, but for the alerts, opens something."""
    overview = BY_UID["fastvideo-overview"]
    (health, *_) = overview.rows
    for panel in health.panels:
        colours = {colour for _, colour in panel.thresholds}
        if colours & {"red", "yellow"} and panel.title != "Alerts firing → below":
            assert panel.links, panel.title
    led_to = {link.url.split("?")[0] for panel in overview.panels() for link in panel.links}
    assert led_to == {
        f"/d/fastvideo-{name}" for name in ("step", "data", "ranks", "losses", "telemetry")
    }


def test_mean_steps_are_split_by_kind() -> None:
    """A mean over kinds is nowhere shown, but for the line that the stacked regions add up to."""
    mixed, split = [], []
    for board in all_dashboards():
        for panel in board.panels():
            for target in panel.targets:
                if _is_mean_step(target.expr):
                    (split if "step_kind" in target.expr else mixed).append(panel.title)
    assert mixed == ["A step of $run, by region"]
    assert len(split) >= 3


def _is_mean_step(expr: str) -> bool:
    tree = promql_parser.parse(re.sub(r"\$\w+", "5m", expr))
    if not isinstance(tree, promql_parser.BinaryExpr) or str(tree.op) != "/":
        return False
    sides = (metrics_in(str(tree.lhs.prettify())), metrics_in(str(tree.rhs.prettify())))
    return sides == ({f"{queries.STEP}_sum"}, {f"{queries.STEP}_count"})


@pytest.mark.parametrize("uid", BY_UID)
def test_numbers_at_the_end_are_asked_at_the_end(uid: str) -> None:
    """A run that is gone is not shown with its last numbers as if it went on."""
    for panel in BY_UID[uid].panels():
        if panel.kind in ("stat", "bargauge", "table"):
            assert all(target.instant for target in panel.targets), panel.title


@pytest.mark.parametrize("uid", BY_UID)
def test_what_may_be_empty_says_so(uid: str) -> None:
    """A number or graph that a healthy run leaves empty has words for that."""
    for panel in BY_UID[uid].panels():
        if panel.targets and all(target.may_be_empty for target in panel.targets):
            assert panel.no_value, panel.title


@pytest.mark.parametrize("uid", BY_UID)
def test_json_is_strict(uid: str) -> None:
    """No NaN or infinity gets into a file."""
    json.dumps(to_json(BY_UID[uid]), allow_nan=False)
