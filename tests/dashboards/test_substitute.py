"""What Grafana fills in before it asks."""

from __future__ import annotations

import pytest

from fastvideo.dashboards.substitute import ALL, Choice, Window, legend, legend_labels, substitute
from fastvideo.errors import ConfigError

HOUR = Window(1_000_000.0, 1_003_600.0, 15.0)


def test_one_value_is_escaped_for_a_regular_expression_in_a_string() -> None:
    """A point of a run's name means a point."""
    choices = {"run": Choice(("wan-1.3b",))}
    assert substitute('x{run=~"$run"}', choices=choices, window=HOUR) == r'x{run=~"wan-1\\.3b"}'


def test_several_values_are_alternatives() -> None:
    """They stand in brackets, with bars between them."""
    choices = {"rank": Choice(("0", "1"))}
    assert substitute("${rank}", choices=choices, window=HOUR) == "(0|1)"


@pytest.mark.parametrize(("all_value", "expected"), [(".*", ".*"), (None, "(0|1|2)")])
def test_all_is_a_word_or_every_option(all_value: str | None, expected: str) -> None:
    """A variable's own word for all is sent as it is; without one all options are."""
    choices = {"rank": Choice((ALL,), all_value, ("0", "1", "2"))}
    assert substitute("[[rank]]", choices=choices, window=HOUR) == expected


def test_a_variable_of_one_value_is_not_escaped() -> None:
    """Grafana escapes values of variables that can have several only."""
    choices = {"metric": Choice(("a.b",), multi=False)}
    assert substitute("$metric", choices=choices, window=HOUR) == "a.b"


def test_groups_of_label_replace_stay() -> None:
    """A dollar before a number is no variable."""
    expr = 'label_replace(x, "a", "$1", "b", "(.*)")'
    assert substitute(expr, choices={}, window=HOUR) == expr


def test_an_unknown_variable_is_an_error_with_the_nearest_name() -> None:
    """A misspelt variable would ask for nothing in silence."""
    with pytest.raises(ConfigError, match=r"no variable \$rnu .* Did you mean 'run'\?"):
        substitute('x{run="$rnu"}', choices={"run": Choice(("a",))}, window=HOUR)


@pytest.mark.parametrize(
    ("scrape_s", "hours", "points", "interval", "rate"),
    [
        (15.0, 1, 1000, "15s", "60s"),
        (15.0, 24, 500, "120s", "135s"),
        (0.5, 0.01, 100, "500ms", "2s"),
    ],
)
def test_intervals_follow_range_and_scrapes(
    scrape_s: float, hours: float, points: int, interval: str, rate: str
) -> None:
    """No step is shorter than a scrape, and no rate's window than four of them."""
    window = Window(0.0, 3600.0 * hours, scrape_s, points)
    assert substitute("$__interval", choices={}, window=window) == interval
    assert substitute("$__rate_interval", choices={}, window=window) == rate


def test_a_panel_may_have_a_longer_step() -> None:
    """Its own least interval counts, as well as the scrape's."""
    assert Window(0.0, 3600.0, 15.0, min_interval_s=75.0).rate_interval_s == 90.0


def test_the_range_is_that_of_the_window() -> None:
    """In seconds, and in milliseconds."""
    assert substitute("$__range ${__range_s} $__range_ms", choices={}, window=HOUR) == (
        "3600s 3600 3600000"
    )


def test_legends_name_labels() -> None:
    """Labels in double braces; all of them where there is no template."""
    labels = {"run": "a", "rank": "3"}
    assert legend("rank {{rank}} of {{ run }}", labels) == "rank 3 of a"
    assert legend("", {"__name__": "up", **labels}) == 'up{rank="3", run="a"}'
    assert legend("", {}) == "Value"
    assert legend_labels("rank {{rank}} of {{ run }}") == ("rank", "run")
