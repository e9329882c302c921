"""Panels of the kinds that the dashboards use again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.model import Override, Panel, Target, Word

if TYPE_CHECKING:
    from collections.abc import Mapping

OVER_5_MIN: Final = "5m"
"""Window of single numbers: long enough for a mean of long steps."""

SMOOTH: Final = "2m"
"""Resolution of lines: steps last longer than a scrape, and a window should hold a few."""

DATA_WAIT: Final = (0.1, 0.2)
"""Share of step time waiting for data: worth a look, and bound by data, where an alert fires."""

LATE: Final = (0.05, 0.1)
"""Share of the step lost to the slowest rank: worth a look, and where an alert fires."""

NONE_IS_GOOD: Final = (Word(0, "none", "green"),)
FIRING: Final = 'alertname=~"FastVideo.*",alertstate="firing",run=~"$run|"'
"""Matchers of our alerts that fire, for the chosen runs or for none."""

_HIDDEN: Final = ("Time", "__name__", "job", "instance")


def limits(
    watch: float, bad: float, *, first: str = "green"
) -> tuple[tuple[float | None, str], ...]:
    """Returns thresholds: fine, yellow from ``watch`` on, red from ``bad`` on."""
    return ((None, first), (watch, "yellow"), (bad, "red"))


PLAIN: Final[tuple[tuple[float | None, str], ...]] = ((None, "text"),)
"""Thresholds of what is neither good nor bad."""

DASHED: Final[tuple[tuple[str, Any], ...]] = (
    ("custom.lineStyle", {"fill": "dash", "dash": [6, 6]}),
)
"""What makes a line a dashed one, which another below it is seen through."""

POINTS: Final[tuple[tuple[str, Any], ...]] = (
    ("custom.drawStyle", "points"),
    ("custom.pointSize", 8),
)
"""What makes a line single points, as of things that happen now and then."""

ANY_IS_BAD: Final[tuple[tuple[float | None, str], ...]] = ((None, "green"), (1, "red"))
ANY_IS_SUSPECT: Final[tuple[tuple[float | None, str], ...]] = ((None, "green"), (1, "yellow"))


def stat(title: str, question: str, *targets: Target, **rest: Any) -> Panel:  # noqa: ANN401 - Panel's
    """Returns a panel of single numbers, asked at the end of the time range.

    What ended before is not shown as if it went on.

    Args:
        title: The title.
        question: What it answers.
        targets: Its queries.
        rest: Other attributes of the panel.
    """
    instant = tuple(replace(target, instant=True) for target in targets)
    settings = {"width": 4, "height": 4, **rest}
    return Panel(title, question, "stat", instant, **settings)


def bars(title: str, question: str, *targets: Target, **rest: Any) -> Panel:  # noqa: ANN401 - Panel's
    """Returns a panel of bars, asked at the end of the time range; as :func:`stat`."""
    instant = tuple(replace(target, instant=True) for target in targets)
    return Panel(title, question, "bargauge", instant, **{"minimum": 0, **rest})


def lines(title: str, question: str, *targets: Target, **rest: Any) -> Panel:  # noqa: ANN401 - Panel's
    """Returns a panel of lines over time; as :func:`stat`."""
    return Panel(title, question, "timeseries", targets, **rest)


def heat(
    title: str,
    question: str,
    metric: str,
    *,
    where: str = queries.RANKS,
    may_be_empty: str = "",
    **rest: Any,  # noqa: ANN401 - Panel's
) -> Panel:
    """Returns a heatmap of a histogram of seconds; dots are exemplars, which open a trace.

    Args:
        title: The title.
        question: What it answers.
        metric: Name of the histogram.
        where: Matchers of labels.
        may_be_empty: When a healthy run has no data.
        rest: Other attributes of the panel.
    """
    target = Target(
        queries.buckets(metric, where=where),
        "{{le}}",
        exemplar=True,
        format="heatmap",
        min_interval="1m",
        may_be_empty=may_be_empty,
    )
    return Panel(title, question, "heatmap", (target,), unit="s", **rest)


def table(
    title: str,
    question: str,
    *targets: Target,
    hide: tuple[str, ...] = (),
    show: tuple[str, ...] = (),
    columns: Mapping[str, str] | None = None,
    first: tuple[str, ...] = (),
    **rest: Any,  # noqa: ANN401 - Panel's
) -> Panel:
    """Returns a table: one line for each combination of labels that the queries share.

    Args:
        title: The title.
        question: What it answers.
        targets: Its queries.
        hide: Columns that are left out, besides those of Prometheus itself.
        show: Columns of Prometheus itself that are not left out.
        columns: Names for columns: ``Value`` is that of an only query, ``Value #A`` of the first.
        first: Labels whose columns come first, in this order; others as Prometheus has them.
        rest: Other attributes of the panel.
    """
    as_table = tuple(replace(target, instant=True, format="table") for target in targets)
    own = (name for name in _HIDDEN if name not in show)
    organize: dict[str, Any] = {
        "excludeByName": dict.fromkeys((*own, *hide), True),
        "renameByName": dict(columns or {}),
    }
    if first:
        organize["indexByName"] = {name: index for index, name in enumerate(first)}
    merge = ({"id": "merge", "options": {}},) if len(targets) > 1 else ()
    shown = (*merge, {"id": "organize", "options": organize})
    return Panel(title, question, "table", as_table, transformations=shown, **rest)


def column(name: str, unit: str, *, decimals: int | None = None) -> Override:
    """Returns the unit of one column of a table."""
    properties: tuple[tuple[str, Any], ...] = (("unit", unit),)
    if decimals is not None:
        properties += (("decimals", decimals),)
    return Override(name, properties)
