"""Every mistake that the checks know is found."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from small import MEAN, good

from fastvideo.dashboards.lint import lint, lint_all

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = 1
"""Where the first panel is; before it is the heading."""


def _change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """Returns what puts a value at a path, such as ``panels.1.title``, or removes what is there."""

    def change(board: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        node: Any = board
        for key in parents:
            node = node[int(key)] if isinstance(node, list) else node[key]
        if value is None:
            del node[last]
        else:
            node[int(last) if isinstance(node, list) else last] = value

    return change


def _problems(change: Callable[[dict[str, Any]], None]) -> list[str]:
    board = copy.deepcopy(good())
    change(board)
    return lint(board)


def test_a_good_dashboard_has_no_problem() -> None:
    """What the mistakes below are put into is right before."""
    assert lint(good()) == []


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("uid", "", "the uid is missing, or not 1 to 40 letters"),
        ("uid", "x" * 41, "the uid is missing, or not 1 to 40 letters"),
        ("title", "", "no title"),
        ("description", None, "no description"),
        ("tags", [], "no tags"),
        ("id", 7, "id is of one Grafana only: leave it out"),
        ("__inputs", [], "__inputs is of one Grafana only: leave it out"),
        ("panels.2.id", 2, "panel id 2 occurs 2 times"),
        ("panels.1.id", None, "a panel id is missing"),
        ("panels.2.title", "Mean", "title 'Mean' occurs 2 times"),
        ("panels.1.title", "", "a title is missing"),
        ("panels.1.type", "graph", "panel type 'graph' is not one of those"),
        ("panels.1.gridPos.w", 25, "panel 'Mean': does not lie within 24 columns"),
        ("panels.1.gridPos.h", 0, "panel 'Mean': does not lie within 24 columns"),
        ("panels.2.gridPos.x", 13, "panels 'Mean' and 'Median (bucketed)' overlap"),
        ("panels.1.fieldConfig.defaults.unit", "secs", "'secs' is no unit id of Grafana"),
        (
            "panels.1.fieldConfig.overrides",
            [{"properties": [{"id": "unit", "value": "seconds"}]}],
            "'seconds' is no unit id of Grafana",
        ),
        ("panels.1.description", "", "no description: say which question it answers"),
        (
            "panels.1.description",
            "How long?",
            "the description names none of its metrics: fastvideo_training_step_duration_seconds",
        ),
        (
            "panels.1.description",
            "fastvideo_training_step_duration_seconds",
            "the description asks no question",
        ),
        ("panels.1.repeat", "nobody", "is repeated for $nobody, which is no variable"),
        ("panels.1.targets", [], "no query"),
        ("panels.1.targets.0.refId", "", "a refId is missing"),
        ("panels.1.targets.0.exemplar", True, "asks for exemplars of series that have none"),
        ("panels.1.targets.0.format", "table", "takes the format time_series, not 'table'"),
        ("panels.2.title", "Median", "its title does not say (bucketed)"),
        (
            "panels.1.targets.0.legendFormat",
            "{{host}}",
            "the legend names 'host', which the query does not keep",
        ),
        ("panels.1.targets.0.expr", "rate(", "no PromQL"),
        ("panels.1.datasource", {"type": "prometheus", "uid": "P1"}, "Mean: data source"),
        ("panels.1.targets.0.datasource", "Prometheus", "Mean: data source 'Prometheus'"),
        ("annotations.list.0.datasource.uid", "P1", "Checkpoint saved: data source"),
        ("annotations.list.0.expr", "fastvideo_run", "'fastvideo_run' is no metric"),
        ("annotations.list.0.textFormat", "{{rank}}", "the legend names 'rank'"),
        ("templating.list.1.current", {"text": "a"}, "variable 'run': current bakes a value in"),
        ("templating.list.1.options", ["a"], "variable 'run': options bakes a value in"),
        ("templating.list.1.refresh", 1, "variable 'run': is not refreshed when the time range"),
        (
            "templating.list.1.query",
            "label_values(run)",
            "variable 'run': no label_values of a metric of this package: label_values(run)",
        ),
        (
            "templating.list.1.query.query",
            "label_values(up, run)",
            "variable 'run': no label_values of a metric of this package",
        ),
        ("panels.1.links.0.url", "http://example.org", "a link leads to no dashboard"),
        (
            "panels.1.links.0.url",
            "/d/fastvideo-step?${run:queryparam}&${datasource:queryparam}",
            "a link to fastvideo-step loses ${__url_time_range}",
        ),
        (
            "panels.1.links.0.url",
            "/d/fastvideo-step?${datasource:queryparam}&${__url_time_range}",
            "a link to fastvideo-step loses the run",
        ),
    ],
)
def test_a_mistake_is_found(path: str, value: object, problem: str) -> None:
    """One change, and a line says what is wrong."""
    assert any(problem in line for line in _problems(_change(path, value)))


def test_every_line_says_where() -> None:
    """A line begins with the uid, and names the panel."""
    (line,) = _problems(_change("panels.1.fieldConfig.defaults.unit", "secs"))
    assert line == "fastvideo-small: panel 'Mean': 'secs' is no unit id of Grafana"


@pytest.mark.parametrize("key", ["uid", "title"])
def test_what_two_dashboards_share_is_found(key: str) -> None:
    """A second dashboard of one uid or title would stop the provisioning of both."""
    first, second = good(), good()
    other = "title" if key == "uid" else "uid"
    second[other] = "fastvideo-step"
    first["panels"][1]["links"] = first["panels"][1]["fieldConfig"]["defaults"]["links"] = []
    second["panels"][1]["links"] = second["panels"][1]["fieldConfig"]["defaults"]["links"] = []
    (problem,) = lint_all([first, second])
    assert f"2 dashboards have this {key}" in problem


def test_links_to_nowhere_are_found() -> None:
    """A link to a dashboard that is not among the others is a mistake of all together."""
    assert set(lint_all([good()])) == {
        "fastvideo-small: a link leads to fastvideo-step, which is not here"
    }


def test_a_variable_of_the_dashboard_may_be_used() -> None:
    """A query may use what is chosen at the top, in braces or not."""
    expr = MEAN.replace('"$run"', '"${run:regex}"')
    assert _problems(_change("panels.1.targets.0.expr", expr)) == []
