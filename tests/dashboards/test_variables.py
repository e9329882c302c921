"""What a dashboard's variables can be, and which value is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fake_prometheus import FakePrometheus

from fastvideo.dashboards.prometheus import Prometheus
from fastvideo.dashboards.substitute import ALL, Window
from fastvideo.dashboards.variables import choose
from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW = Window(0.0, 60.0, 1.0)


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    """A server."""
    server = FakePrometheus()
    yield server
    server.close()


def board(*variables: dict[str, Any]) -> dict[str, Any]:
    """A dashboard with variables."""
    return {"uid": "x", "templating": {"list": list(variables)}}


RUN = {"name": "run", "type": "query", "query": {"query": "label_values(info, run)"}, "multi": True}
RANK = {
    "name": "rank",
    "type": "query",
    "query": 'label_values(info{run=~"$run"}, rank)',
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
}


def test_the_last_run_and_all_ranks_are_taken(fake: FakePrometheus) -> None:
    """Ranks are looked up for the run that was chosen before."""
    chosen = choose(board(RUN, RANK), Prometheus(fake.url), WINDOW, {})
    assert chosen["run"].values == ("b",)
    assert (chosen["rank"].values, chosen["rank"].all_value) == ((ALL,), ".*")
    assert chosen["rank"].options == ("0", "2", "10")
    assert fake.asked[-1][1]["match[]"] == ['info{run=~"b"}']


def test_given_values_win(fake: FakePrometheus) -> None:
    """If they exist."""
    chosen = choose(board(RUN, RANK), Prometheus(fake.url), WINDOW, {"run": "a", "rank": "2"})
    assert (chosen["run"].values, chosen["rank"].values) == (("a",), ("2",))


def test_a_value_that_does_not_exist_is_an_error(fake: FakePrometheus) -> None:
    """A picture of nothing would help nobody."""
    with pytest.raises(ConfigError, match="run 'c' is not in Prometheus at that time; it has a, b"):
        choose(board(RUN), Prometheus(fake.url), WINDOW, {"run": "c"})


def test_custom_variables_and_data_sources_need_no_query(fake: FakePrometheus) -> None:
    """The last word of a list, the type of the data source."""
    custom = {"name": "q", "type": "custom", "query": "0.5, 0.9"}
    source = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    chosen = choose(board(source, custom), Prometheus(fake.url), WINDOW, {})
    assert (chosen["datasource"].values, chosen["q"].values) == (("prometheus",), ("0.9",))
    assert fake.asked == []


def test_values_can_be_filtered(fake: FakePrometheus) -> None:
    """By a variable's own regular expression."""
    chosen = choose(board(RUN, {**RANK, "regex": "/^1/"}), Prometheus(fake.url), WINDOW, {})
    assert chosen["rank"].options == ("10",)


def test_another_kind_of_query_is_an_error(fake: FakePrometheus) -> None:
    """It names the variable."""
    query = {"name": "x", "type": "query", "query": "query_result(up)"}
    with pytest.raises(ConfigError, match=r"variable x: expected label_values\(…\)"):
        choose(board(query), Prometheus(fake.url), WINDOW, {})
