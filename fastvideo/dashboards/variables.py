"""Finds out what a dashboard's variables can be, in a live Prometheus, and chooses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dashboards.substitute import ALL, Choice, Window, substitute
from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.dashboards.prometheus import Prometheus

_LABEL_VALUES: Final = re.compile(
    r"^\s*label_values\(\s*(?:(?P<series>.+?)\s*,)?\s*(?P<label>\w+)\s*\)\s*$"
)


def variable_query(variable: Mapping[str, Any]) -> str:
    """Returns the query of a variable, which stands in one of two places.

    Args:
        variable: An entry of ``templating.list`` of a dashboard's JSON.
    """
    query = variable.get("query", "")
    return str(query.get("query", "") if isinstance(query, dict) else query)


def choose(
    dashboard: Mapping[str, Any],
    prometheus: Prometheus,
    window: Window,
    given: Mapping[str, str],
) -> dict[str, Choice]:
    """Returns what is chosen for each variable of a dashboard.

    Args:
        dashboard: The dashboard's JSON.
        prometheus: Where values are looked up.
        window: The time the dashboard shows.
        given: Values by name of variable. Others are all, where a variable offers that and is not
            the run; else the last value there is.

    Raises:
        ConfigError: A given value is not one of a variable's.
        PrometheusError: Prometheus does not answer.
    """
    chosen: dict[str, Choice] = {}
    for variable in dashboard["templating"]["list"]:
        name = variable["name"]
        options = _options(variable, prometheus, window, chosen)
        multi = bool(variable.get("multi"))
        all_value = variable.get("allValue") or None
        if name in given:
            values: tuple[str, ...] = (given[name],)
            if options and given[name] not in options:
                message = (
                    f"{name} {given[name]!r} is not in Prometheus at that time; it has "
                    f"{', '.join(options)}.{did_you_mean(given[name], options)}"
                )
                raise ConfigError(message)
        elif variable.get("includeAll") and name != "run":
            values = (ALL,)
        else:
            values = options[-1:]
        chosen[name] = Choice(values, all_value, options, multi)
    return chosen


def _options(
    variable: Mapping[str, Any],
    prometheus: Prometheus,
    window: Window,
    chosen: Mapping[str, Choice],
) -> tuple[str, ...]:
    kind = variable["type"]
    if kind == "datasource":
        return (str(variable["query"]),)
    query = variable_query(variable)
    if kind != "query":
        return tuple(word.strip() for word in query.split(","))
    found = _LABEL_VALUES.match(substitute(query, choices=chosen, window=window))
    if found is None:
        message = f"variable {variable['name']}: expected label_values(…), got {query!r}"
        raise ConfigError(message)
    values = prometheus.label_values(
        found["series"] or "", found["label"], start=window.start, end=window.end
    )
    pattern = str(variable.get("regex") or "").strip("/")
    if pattern:
        values = [value for value in values if re.search(pattern, value)]
    return tuple(values)
