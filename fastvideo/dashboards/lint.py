"""What can be wrong with a dashboard's JSON: all that Grafana would show as nothing, or wrongly.

It needs the extra ``dev``, which brings a parser of PromQL.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dashboards.promql_lint import family_of, lint_query, metrics_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Json = Mapping[str, Any]

PANEL_TYPES: Final = frozenset(
    {"row", "text", "stat", "timeseries", "bargauge", "heatmap", "table", "state-timeline"}
)
"""Panels that Grafana has without plugins and without Angular, and that are drawn here."""

UNITS: Final = frozenset(
    {
        *("none", "short", "percent", "percentunit", "bool", "string", "sci"),
        *("ns", "µs", "ms", "s", "m", "h", "d", "dtdurations", "dateTimeAsIso", "dateTimeFromNow"),
        *("bytes", "decbytes", "Bps", "binBps"),
        *("ops", "reqps", "rps", "wps", "iops", "cps", "opm", "cpm", "rpm", "hertz"),
    }
)
"""Unit ids of Grafana; it shows the text of one it does not know behind the number."""

COLUMNS: Final = 24
_WORD_BEHIND: Final = "suffix:"
_UID: Final = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_ON_TIME_RANGE: Final = 2
_LABEL_VALUES: Final = re.compile(r"label_values\((\w+)(?:\{.*\})?, *\w+\)")
_LINK: Final = re.compile(r"/d/([\w-]+)\?(.*)")
_FOREIGN_FIELDS: Final = ("__inputs", "__requires", "__elements", "id", "version", "gnetId")
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def lint(dashboard: Json) -> list[str]:
    """Returns what is wrong with one dashboard, in a line each.

    Args:
        dashboard: The JSON of a file.
    """
    name = str(dashboard.get("uid") or dashboard.get("title") or "?")
    return [f"{name}: {problem}" for problem in _problems(dashboard)]


def lint_all(dashboards: Iterable[Json]) -> list[str]:
    """Returns what is wrong with dashboards side by side: with each, and with all together.

    Args:
        dashboards: The JSON of each file.
    """
    boards = list(dashboards)
    problems = [problem for board in boards for problem in lint(board)]
    for key in ("uid", "title"):
        problems += [
            f"{value}: {count} dashboards have this {key}; Grafana would provision none of them"
            for value, count in Counter(board.get(key) for board in boards).items()
            if count > 1
        ]
    uids = {board.get("uid") for board in boards}
    for board in boards:
        for url in _urls(board):
            found = _LINK.fullmatch(url)
            if found is not None and found[1] not in uids:
                problems.append(
                    f"{board.get('uid')}: a link leads to {found[1]}, which is not here"
                )
    return problems


def _problems(board: Json) -> Iterator[str]:
    yield from _head(board)
    yield from _variables(board)
    yield from _datasources(board)
    panels = list(board.get("panels", ()))
    yield from _repeated("panel id", (panel.get("id") for panel in panels))
    rows = [panel for panel in panels if panel.get("type") == "row"]
    others = [panel for panel in panels if panel.get("type") != "row"]
    yield from _repeated("title of a row", (row.get("title") for row in rows))
    yield from _repeated("title", (panel.get("title") for panel in others))
    yield from _grid(panels)
    values = _values(board)
    for panel in panels:
        where = f"panel {panel.get('title')!r}"
        for problem in _panel(panel, values):
            yield f"{where}: {problem}"
    for annotation in board.get("annotations", {}).get("list", ()):
        for problem in lint_query(
            annotation.get("expr", ""), legend=annotation.get("textFormat", ""), variables=values
        ):
            yield f"annotation {annotation.get('name')!r}: {problem}"
    for url in _urls(board):
        yield from _link(url)


def _head(board: Json) -> Iterator[str]:
    if not _UID.fullmatch(str(board.get("uid", ""))):
        yield "the uid is missing, or not 1 to 40 letters, digits, - and _"
    for key in ("title", "description", "tags", "schemaVersion"):
        if not board.get(key):
            yield f"no {key}"
    for key in _FOREIGN_FIELDS:
        if key in board:
            yield f"{key} is of one Grafana only: leave it out"


def _variables(board: Json) -> Iterator[str]:
    for variable in board.get("templating", {}).get("list", ()):
        name = f"variable {variable.get('name')!r}"
        for key in ("current", "options"):
            if variable.get(key):
                yield f"{name}: {key} bakes a value in"
        if variable.get("type") != "query":
            continue
        if variable.get("refresh") != _ON_TIME_RANGE:
            yield f"{name}: is not refreshed when the time range changes (refresh 2)"
        query = variable.get("query")
        text = query.get("query", "") if isinstance(query, dict) else str(query)
        found = _LABEL_VALUES.fullmatch(text)
        if found is None or family_of(found[1]) is None:
            yield f"{name}: no label_values of a metric of this package: {text}"


def _datasources(node: Any, path: str = "") -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Yields each data source that is not the one chosen at the top."""
    if isinstance(node, dict):
        path = str(node.get("title") or node.get("name") or path)
        for key, value in node.items():
            if key == "datasource" and value != _DATASOURCE:
                yield f"{path}: data source {value!r} instead of ${{datasource}}"
            yield from _datasources(value, path)
    elif isinstance(node, list):
        for value in node:
            yield from _datasources(value, path)


def _repeated(what: str, values: Iterable[object]) -> Iterator[str]:
    for value, count in Counter(values).items():
        if value in (None, ""):
            yield f"a {what} is missing"
        elif count > 1:
            yield f"{what} {value!r} occurs {count} times"


def _grid(panels: list[Json]) -> Iterator[str]:
    places = [(panel.get("title"), panel.get("gridPos", {})) for panel in panels]
    for title, place in places:
        width, left = place.get("w", 0), place.get("x", -1)
        if not (left >= 0 and width > 0 and left + width <= COLUMNS and place.get("h", 0) > 0):
            yield f"panel {title!r}: does not lie within {COLUMNS} columns: {place}"
    for (first, a), (second, b) in combinations(places, 2):
        if _overlap(a, b):
            yield f"panels {first!r} and {second!r} overlap"


def _overlap(a: Json, b: Json) -> bool:
    return all(
        a.get(start, 0) < b.get(start, 0) + b.get(size, 0)
        and b.get(start, 0) < a.get(start, 0) + a.get(size, 0)
        for start, size in (("x", "w"), ("y", "h"))
    )


def _panel(panel: Json, values: Mapping[str, str]) -> Iterator[str]:
    kind = panel.get("type")
    if kind not in PANEL_TYPES:
        yield f"panel type {kind!r} is not one of those that are known to work"
    if kind == "row":
        return
    if not panel.get("description"):
        yield "no description: say which question it answers, by which metric, and what is bad"
    for unit in _units(panel):
        if unit not in UNITS and not unit.startswith(_WORD_BEHIND):
            yield f"{unit!r} is no unit id of Grafana"
    repeat = panel.get("repeat")
    if repeat and repeat not in values:
        yield f"is repeated for ${repeat}, which is no variable of the dashboard"
    if kind == "text":
        return
    targets = panel.get("targets", ())
    yield from _repeated("refId", (target.get("refId") for target in targets))
    if not targets:
        yield "no query"
    for target in targets:
        yield from _target(panel, target, values)
    yield from _says_what_it_shows(panel)


def _units(panel: Json) -> Iterator[str]:
    config = panel.get("fieldConfig", {})
    unit = config.get("defaults", {}).get("unit")
    if unit is not None:
        yield unit
    for override in config.get("overrides", ()):
        for each in override.get("properties", ()):
            if each.get("id") == "unit":
                yield each.get("value")


def _target(panel: Json, target: Json, values: Mapping[str, str]) -> Iterator[str]:
    expr = str(target.get("expr", ""))
    legend = str(target.get("legendFormat", "")).replace("__auto", "")
    yield from lint_query(expr, legend=legend, variables=values)
    if "histogram_quantile" in expr and "(bucketed)" not in str(panel.get("title")):
        yield "shows a quantile of a histogram, and its title does not say (bucketed)"
    if target.get("exemplar") and "_bucket" not in expr:
        yield "asks for exemplars of series that have none: only buckets do"
    wanted = {"heatmap": "heatmap", "table": "table"}.get(str(panel.get("type")), "time_series")
    if target.get("format") != wanted:
        yield f"a {panel.get('type')} takes the format {wanted}, not {target.get('format')!r}"


def _says_what_it_shows(panel: Json) -> Iterator[str]:
    """Yields a problem where the description names none of the metrics that are asked for."""
    description = str(panel.get("description"))
    try:
        names = {name for target in panel.get("targets", ()) for name in metrics_in(target["expr"])}
    except ValueError:
        return  # said elsewhere
    families = {family_of(name) or name for name in names}
    if families and not any(name in description for name in families):
        yield f"the description names none of its metrics: {', '.join(sorted(families))}"
    if "?" not in description:
        yield "the description asks no question"


def _values(board: Json) -> dict[str, str]:
    return {
        variable.get("name", ""): "x" for variable in board.get("templating", {}).get("list", ())
    }


def _urls(board: Json) -> Iterator[str]:
    for panel in board.get("panels", ()):
        defaults = panel.get("fieldConfig", {}).get("defaults", {})
        for link in (*panel.get("links", ()), *defaults.get("links", ())):
            yield str(link.get("url", ""))


def _link(url: str) -> Iterator[str]:
    found = _LINK.fullmatch(url)
    if found is None:
        yield f"a link leads to no dashboard: {url}"
        return
    parts = found[2].split("&")
    for wanted in ("${datasource:queryparam}", "${__url_time_range}"):
        if wanted not in parts:
            yield f"a link to {found[1]} loses {wanted}"
    if not any(part.startswith(("${run:queryparam}", "var-run=")) for part in parts):
        yield f"a link to {found[1]} loses the run"
