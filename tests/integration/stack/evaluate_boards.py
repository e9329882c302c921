"""Runs every query of a dashboard as Grafana would, and judges the answers.

A query has to return data, or the dashboard says when it may be empty; the data has to be finite
and inside the range of its unit; and every label that a legend or a link names has to be there.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastvideo.dashboards.panel_data import (
    answer_target,
    panel_window,
    settings,
)
from fastvideo.dashboards.substitute import legend_labels, substitute
from fastvideo.dashboards.variables import choose

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastvideo.dashboards.prometheus import Prometheus, Series
    from fastvideo.dashboards.substitute import Choice, Window

PANEL_WIDTH_PX = 700
_CLICKED = re.compile(r"\$\{__field\.labels\.(\w+)\}")
_HUNDRED_YEARS_S = 100 * 365 * 86400.0

RANGES: dict[str, tuple[float, float]] = {
    "s": (0.0, _HUNDRED_YEARS_S),
    "ms": (0.0, 1000 * _HUNDRED_YEARS_S),
    "percentunit": (0.0, 1.02),  # sums of two clocks
    "percent": (0.0, 102.0),
    "bytes": (0.0, 2.0**50),
    "decbytes": (0.0, 2.0**50),
    "Bps": (0.0, 2.0**40),
    "binBps": (0.0, 2.0**40),
    "ops": (0.0, 1e6),
    "reqps": (0.0, 1e6),
    "dateTimeAsIso": (1e12, 4e12),
    "dateTimeFromNow": (1e12, 4e12),
}
"""What values of a unit can be; others only have to be finite."""

CHANGES = re.compile(r"- 1\)?$")
"""Expressions that say by what share something differs; they may be negative, or large."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one query returned.

    Attributes:
        dashboard: Uid of the dashboard.
        panel: Title of the panel, or the annotation's name.
        expr: As it stands in the dashboard.
        sent: As it was sent.
        kind: Type of the panel.
        unit: Of its values.
        labels: Labels that a legend or a link names.
        series: The data.
    """

    dashboard: str
    panel: str
    expr: str
    sent: str
    kind: str
    unit: str
    labels: frozenset[str]
    series: tuple[Series, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from all other queries."""
        return self.dashboard, self.panel, self.expr

    def complaints(self) -> list[str]:
        """Returns what is wrong with the data; an empty answer has nothing wrong."""
        return [
            f"{self.dashboard}, {self.panel!r}: {complaint}\n    {self.sent}"
            for complaint in dict.fromkeys(self._complaints())
        ]

    def _complaints(self) -> Iterator[str]:
        low, high = RANGES.get(self.unit, (-math.inf, math.inf))
        if self.unit == "percentunit" and CHANGES.search(self.expr):
            low, high = -1.0, math.inf
        # A quantile of nothing is NaN, which a graph shows as a gap.
        gaps = "histogram_quantile" in self.expr and self.kind == "timeseries"
        for series in self.series:
            if gaps and all(math.isnan(value) for value in series.values):
                yield f"there is no number at all, in {dict(series.labels)}"
            for value in series.values:
                if gaps and math.isnan(value):
                    continue
                if not math.isfinite(value):
                    yield f"{value} is no number, in {dict(series.labels)}"
                elif not low <= value <= high:
                    yield f"{value:g} is no {self.unit!r}, in {dict(series.labels)}"
            missing = self.labels - set(series.labels)
            if missing:
                yield f"the labels {sorted(missing)} are not in {dict(series.labels)}"


def evaluate(
    dashboard: Mapping[str, Any],
    prometheus: Prometheus,
    window: Window,
    given: Mapping[str, str],
) -> list[Answer]:
    """Asks every query of a dashboard: those of its panels, then those of its annotations.

    Args:
        dashboard: Its JSON.
        prometheus: Whom to ask.
        window: The time it shows.
        given: Values of variables, by name.

    Raises:
        PrometheusError: Prometheus refuses a query.
    """
    choices = choose(dashboard, prometheus, window, given)
    for name, choice in choices.items():
        assert choice.values, f"{dashboard['uid']}: variable {name} has no values"
    answers: list[Answer] = []
    for panel in dashboard["panels"]:
        own = panel_window(panel, window, width_px=PANEL_WIDTH_PX)
        answers.extend(
            _answer(dashboard, panel, target, (prometheus, choices, own))
            for target in panel.get("targets", [])
        )
    for annotation in dashboard["annotations"]["list"]:
        if annotation.get("expr"):
            target = {**annotation, "legendFormat": annotation["textFormat"]}
            panel = {"title": annotation["name"]}
            answers.append(_answer(dashboard, panel, target, (prometheus, choices, window)))
    return answers


def _answer(
    dashboard: Mapping[str, Any],
    panel: Mapping[str, Any],
    target: Mapping[str, Any],
    how: tuple[Prometheus, Mapping[str, Choice], Window],
) -> Answer:
    prometheus, choices, window = how
    field = settings(panel, ref=target.get("refId", ""))
    labels = set(legend_labels(target.get("legendFormat", "")))
    if "targets" in panel and panel["type"] != "table":
        for link in field.get("links", []):
            labels |= set(_CLICKED.findall(link["url"]))
    if target.get("format") == "heatmap":
        labels.add("le")
    sent, series = answer_target(target, prometheus, choices, window)
    return Answer(
        dashboard=dashboard["uid"],
        panel=panel["title"],
        expr=target["expr"],
        sent=sent,
        kind=panel.get("type", "annotation"),
        unit=field.get("unit", "none") if target.get("format") != "heatmap" else "none",
        labels=frozenset(labels),
        series=tuple(series),
    )


def exemplar_queries(
    dashboard: Mapping[str, Any],
    prometheus: Prometheus,
    window: Window,
    given: Mapping[str, str],
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Returns the exemplars of every query that asks for them, by dashboard and panel."""
    choices = choose(dashboard, prometheus, window, given)
    return {
        (dashboard["uid"], panel["title"]): prometheus.exemplars(
            substitute(target["expr"], choices=choices, window=window),
            start=window.start,
            end=window.end,
        )
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
        if target.get("exemplar")
    }
