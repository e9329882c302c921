"""A dashboard's JSON: where panels lie, and what Grafana reads."""

from __future__ import annotations

import json

import pytest
from small import GOOD, good

from fastvideo.dashboards import expressions, to_text
from fastvideo.dashboards.frame import link_to
from fastvideo.dashboards.grafana_json import to_json
from fastvideo.dashboards.model import Dashboard, Override, Panel, Row, Target, Variable, Word


def _panel(title: str, width: int, height: int = 8) -> Panel:
    return Panel(title, "?", "timeseries", (Target("up"),), width=width, height=height)


def _board(*panels: Panel) -> Dashboard:
    return Dashboard(
        uid="u", title="t", question="q?", rows=(Row("r", panels),), variables=(), annotations=()
    )


def test_panels_flow_from_left_to_right() -> None:
    """A panel that does not fit begins a new line below the tallest of the last."""
    board = to_json(_board(_panel("a", 10), _panel("b", 10, 5), _panel("c", 8), _panel("d", 16)))
    places = {panel["title"]: tuple(panel["gridPos"].values()) for panel in board["panels"]}
    assert places == {
        "r": (0, 0, 24, 1),
        "a": (0, 1, 10, 8),
        "b": (10, 1, 10, 5),
        "c": (0, 9, 8, 8),
        "d": (8, 9, 16, 8),
    }


def test_rows_follow_each_other() -> None:
    """Ids count on, and a row begins where the one before has ended."""
    panels = good()["panels"]
    assert [panel["id"] for panel in panels] == [1, 2, 3, 4, 5]
    assert [panel["gridPos"]["y"] for panel in panels] == [0, 1, 1, 9, 10]
    assert [panel["type"] for panel in panels] == ["row", "timeseries", "timeseries", "row", "text"]


def test_text_is_the_same_each_time() -> None:
    """The same dashboard is the same file, which ends in a line's end."""
    assert to_text(GOOD) == to_text(GOOD)
    assert to_text(GOOD).endswith("}\n")
    assert json.loads(to_text(GOOD)) == good()


def test_every_data_source_is_the_chosen_one() -> None:
    """No id of one Grafana is in the text."""
    board = good()
    text = json.dumps(board)
    assert text.count('"type": "prometheus"') == text.count('"uid": "${datasource}"') > 5
    assert [each["type"] for each in board["templating"]["list"]][:2] == ["datasource", "query"]


def test_nothing_is_chosen_beforehand() -> None:
    """A run is one, the first; of hosts and ranks it is all; no value is in the file."""
    variables = {each["name"]: each for each in good()["templating"]["list"]}
    assert not any("current" in each for each in variables.values())
    assert {name: each["includeAll"] for name, each in variables.items()} == {
        "datasource": False,
        "run": False,
        "host": True,
        "rank": True,
    }
    assert variables["host"]["allValue"] == ".*"
    assert "allValue" not in variables["rank"]  # all ranks are those of the chosen hosts
    assert all(each["refresh"] == 2 for name, each in variables.items() if name != "datasource")


def test_a_query_has_what_grafana_needs() -> None:
    """Refs are letters, an instant query is no range, exemplars are asked for where wanted."""
    targets = (
        Target("up", "{{job}}"),
        Target("up", instant=True, format="table", min_interval="5m", exemplar=True),
    )
    (_, panel) = to_json(_board(Panel("a", "?", "table", targets)))["panels"]
    first, second = panel["targets"]
    assert (first["refId"], first["range"], first["instant"]) == ("A", True, False)
    assert (first["legendFormat"], first["exemplar"]) == ("{{job}}", False)
    assert (second["refId"], second["range"], second["instant"]) == ("B", False, True)
    assert (second["legendFormat"], second["format"]) == ("__auto", "table")
    assert (panel["interval"], "interval" in first, "interval" in second) == ("5m", False, False)


def test_targets_of_a_panel_have_one_shortest_distance() -> None:
    """It is the panel's, so two different ones are a mistake that names the panel."""
    targets = (Target("up", min_interval="5m"), Target("up", min_interval="1m"))
    with pytest.raises(ValueError, match=r"'a'.*\['1m', '5m'\]"):
        to_json(_board(Panel("a", "?", "table", targets)))


def test_a_panel_has_its_settings() -> None:
    """Units, limits, words, ends of the axis and exceptions are where Grafana looks for them."""
    given = Panel(
        "a",
        "why?",
        "stat",
        (Target("up"),),
        unit="s",
        decimals=2,
        minimum=0,
        maximum=9,
        no_value="nothing",
        thresholds=((None, "green"), (1, "red")),
        words=(Word(0, "none", "green"),),
        overrides=(Override("x", (("unit", "bytes"),), is_pattern=True),),
        options=(("textMode", "name"),),
        repeat="run",
    )
    (_, panel) = to_json(_board(given))["panels"]
    defaults = panel["fieldConfig"]["defaults"]
    assert panel["description"] == "why?"
    assert (defaults["unit"], defaults["decimals"]) == ("s", 2)
    assert (defaults["min"], defaults["max"], defaults["noValue"]) == (0, 9, "nothing")
    assert defaults["thresholds"]["steps"] == [
        {"value": None, "color": "green"},
        {"value": 1, "color": "red"},
    ]
    assert defaults["mappings"][0]["options"]["0"]["text"] == "none"
    assert panel["fieldConfig"]["overrides"] == [
        {
            "matcher": {"id": "byRegexp", "options": "x"},
            "properties": [{"id": "unit", "value": "bytes"}],
        }
    ]
    assert panel["options"]["textMode"] == "name"
    assert panel["options"]["colorMode"] == "background"
    assert (panel["repeat"], panel["repeatDirection"]) == ("run", "v")
    assert "maxPerRow" not in panel


def test_copies_of_a_panel_lie_side_by_side_where_it_says_how_many() -> None:
    """Otherwise below each other."""
    panel = Panel("a", "?", "timeseries", (Target("up"),), repeat="run", per_row=3)
    (_, found) = to_json(_board(panel))["panels"]
    assert (found["repeatDirection"], found["maxPerRow"]) == ("h", 3)


def test_an_axis_reaches_as_far_as_it_is_told_to() -> None:
    """So that a small limit is not drawn on the floor."""
    for reach, custom in ((0.02, {"axisSoftMax": 0.02}), (None, {})):
        panel = Panel("a", "?", "timeseries", (Target("up"),), reach=reach)
        (_, found) = to_json(_board(panel))["panels"]
        drawn = found["fieldConfig"]["defaults"]["custom"]
        assert {key: drawn[key] for key in drawn if key == "axisSoftMax"} == custom


def test_only_stacked_lines_are_stacked() -> None:
    """Lines lie over each other unless a panel says that they are parts of a whole."""
    for stacked, mode in ((True, "normal"), (False, "none")):
        panel = Panel("a", "?", "timeseries", (Target("up"),), stacked=stacked)
        custom = to_json(_board(panel))["panels"][1]["fieldConfig"]["defaults"]["custom"]
        assert custom["stacking"]["mode"] == mode


def test_links_carry_what_is_chosen() -> None:
    """Data source, run, host, rank and time go along; a label clicked on is chosen there."""
    plain = link_to("fastvideo-ranks")
    assert plain.title == "Open Ranks"
    assert plain.url == (
        "/d/fastvideo-ranks?${datasource:queryparam}&${run:queryparam}&${host:queryparam}"
        "&${rank:queryparam}&${__url_time_range}"
    )
    clicked = link_to("fastvideo-step", title="Steps", choose=("rank",))
    assert "&var-rank=${__field.labels.rank}&" in clicked.url
    assert "${rank:queryparam}" not in clicked.url


def test_a_menu_leads_to_the_other_dashboards() -> None:
    """By tag, with the choices and the time."""
    (menu,) = good()["links"]
    assert (menu["type"], menu["tags"], menu["includeVars"], menu["keepTime"]) == (
        "dashboards",
        ["fastvideo"],
        True,
        True,
    )


def test_expressions_are_those_of_panels_and_annotations() -> None:
    """Each query comes with what is needed to judge its answer."""
    found = list(expressions(GOOD))
    assert [each.panel for each in found[:2]] == ["Mean", "Median (bucketed)"]
    assert found[0].unit == "s"
    assert found[0].legend == "{{run}} {{step_kind}}"
    assert (found[0].kind, found[-1].kind) == ("timeseries", "annotation")
    assert {each.dashboard for each in found} == {"fastvideo-small"}
    assert len(found) == 2 + len(GOOD.annotations)


def test_a_choice_of_data_sources_needs_no_query() -> None:
    """It names the type of data source."""
    board = Dashboard(
        "u", "t", "q?", (), (Variable("datasource", "D", "datasource", "prometheus"),), ()
    )
    (variable,) = to_json(board)["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
