"""Draws a dashboard from a live Prometheus, laid out and coloured as Grafana shows it.

For documentation and reviews: the panels, queries, units, thresholds and positions are those of
the dashboard's JSON, so what reads badly in the picture reads badly in Grafana. Where a picture
cannot follow (links, tooltips, exemplars that open a trace) it shows nothing.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dashboards import palette
from fastvideo.dashboards.canvas import Box, Canvas
from fastvideo.dashboards.draw_panels import draw_panel
from fastvideo.dashboards.panel_data import fetch, panel_window
from fastvideo.dashboards.substitute import ALL, Choice, Window, substitute
from fastvideo.dashboards.variables import choose

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fastvideo.dashboards.panel_data import Frame
    from fastvideo.dashboards.prometheus import Prometheus

WIDTH_PX: Final = 1560
COLUMNS: Final = 24
ROW_PX: Final = 38
GAP_PX: Final = 8
HEADER_PX: Final = 52
_TIMES_PX: Final = 170


def grid_box(position: Mapping[str, int]) -> Box:
    """Returns where a panel is.

    Args:
        position: ``gridPos`` of its JSON.
    """
    column = (WIDTH_PX - GAP_PX) / COLUMNS
    return Box(
        GAP_PX + position["x"] * column,
        HEADER_PX + position["y"] * ROW_PX,
        position["w"] * column - GAP_PX,
        position["h"] * ROW_PX - GAP_PX,
    )


def draw_dashboard(
    dashboard: Mapping[str, Any],
    prometheus: Prometheus,
    path: Path,
    *,
    window: Window,
    given: Mapping[str, str],
) -> None:
    """Draws one dashboard.

    Args:
        dashboard: Its JSON, as provisioned.
        prometheus: Where its queries go.
        path: The PNG to write.
        window: The time it shows.
        given: Values of variables, by name; see :func:`fastvideo.dashboards.variables.choose`.

    Raises:
        ConfigError: A given value does not exist.
        PrometheusError: Prometheus does not answer, or refuses a query.
        MissingExtraError: matplotlib is not installed.
    """
    choices = choose(dashboard, prometheus, window, given)
    panels = repeated(visible_panels(dashboard), choices)
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in panels)
    canvas = Canvas(WIDTH_PX, HEADER_PX + bottom * ROW_PX + GAP_PX)
    _draw_header(canvas, dashboard, choices, window)
    marks = annotation_times(dashboard, prometheus, choices, window)
    _draw_key(canvas, annotation_key(dashboard, marks))
    for panel, own_choices in panels:
        box = grid_box(panel["gridPos"])
        if panel["type"] == "row":
            canvas.text(box.left + 4, box.top + box.height / 2, f"⌄  {panel['title']}", fontsize=11)
            continue
        own = panel_window(panel, window, width_px=round(box.width))
        frames = fetch(panel, prometheus, own_choices, own)
        shown = {name: as_words(choice) for name, choice in own_choices.items()}
        title = substitute(panel.get("title", ""), choices=shown, window=own)
        draw_panel(canvas, box, {**panel, "title": title}, frames, own, marks)
    canvas.save(path)


def as_words(choice: Choice) -> Choice:
    """Returns a choice whose value is what a title shows of it."""
    words = "All" if choice.values == (ALL,) else " + ".join(choice.values)
    return Choice((words,), multi=False)


def visible_panels(dashboard: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Gives the panels of a dashboard's JSON, those in folded rows left out."""
    yield from dashboard["panels"]


def repeated(
    panels: Iterable[Mapping[str, Any]], choices: Mapping[str, Choice]
) -> list[tuple[Mapping[str, Any], Mapping[str, Choice]]]:
    """Returns panels and their choices, those that are repeated once for each chosen value.

    Copies lie side by side or below each other, as the panel says; what is below moves down.

    Args:
        panels: JSON of panels.
        choices: What is chosen, by name of variable.
    """
    result: list[tuple[Mapping[str, Any], Mapping[str, Choice]]] = []
    moves: list[tuple[int, int]] = []
    for panel in panels:
        place = panel["gridPos"]
        down = sum(by for below, by in moves if place["y"] >= below)
        name = panel.get("repeat") or ""
        choice = choices.get(name, Choice(()))
        values = choice.options if choice.values == (ALL,) else choice.values
        if not values:
            result.append(({**panel, "gridPos": {**place, "y": place["y"] + down}}, choices))
            continue
        is_wide = panel.get("repeatDirection") == "h"
        per_row = min(len(values), int(panel.get("maxPerRow") or 4)) if is_wide else 1
        width = COLUMNS // per_row if is_wide else place["w"]
        for index, value in enumerate(values):
            row, column = divmod(index, per_row)
            left = column * width if is_wide else place["x"]
            grid = {**place, "x": left, "w": width, "y": place["y"] + down + row * place["h"]}
            own = {**choices, name: Choice((value,), options=choice.options, multi=choice.multi)}
            result.append(({**panel, "gridPos": grid}, own))
        moves.append((place["y"] + place["h"], row * place["h"]))
    return result


def annotation_key(
    dashboard: Mapping[str, Any], marks: Iterable[tuple[float, str]]
) -> list[tuple[str, str]]:
    """Returns name and colour of each kind of mark that there is."""
    used = {color for _, color in marks}
    entries = dashboard.get("annotations", {}).get("list", [])
    named = [(entry["name"], palette.color(entry.get("iconColor", "blue"))) for entry in entries]
    return [(name, color) for name, color in named if color in used]


def annotation_times(
    dashboard: Mapping[str, Any],
    prometheus: Prometheus,
    choices: Mapping[str, Choice],
    window: Window,
) -> list[tuple[float, str]]:
    """Returns when something happened that the dashboard marks, and the mark's colour."""
    marks: list[tuple[float, str]] = []
    for entry in dashboard.get("annotations", {}).get("list", []):
        if not entry.get("expr") or not entry.get("enable", True):
            continue
        panel = {"targets": [{**entry, "refId": "A", "legendFormat": entry.get("titleFormat", "")}]}
        for frame in fetch(panel, prometheus, choices, window):
            times = frame.series.times
            new = [
                at
                for index, at in enumerate(times)
                if frame.series.values[index]
                and (not index or at - times[index - 1] > 2 * _step(frame))
            ]
            marks += [(at, palette.color(entry.get("iconColor", "blue"))) for at in new]
    return marks


def _step(frame: Frame) -> float:
    times = frame.series.times
    return min((b - a for a, b in pairwise(times)), default=1.0)


def _draw_header(
    canvas: Canvas, dashboard: Mapping[str, Any], choices: Mapping[str, Choice], window: Window
) -> None:
    left = 16.0
    canvas.text(left, HEADER_PX / 2 - 2, dashboard["title"], fontsize=14, weight="bold")
    left += canvas.text_width(dashboard["title"], 14, "bold") + 28
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "datasource" or variable.get("hide"):
            continue
        label = variable.get("label") or variable["name"]
        choice = choices[variable["name"]]
        value = "All" if choice.values == (ALL,) else ", ".join(choice.values) or "(none)"
        left = _draw_pill(canvas, left, label, value) + 12
    start, end = (time.localtime(at) for at in (window.start, window.end))
    span = f"{time.strftime('%H:%M:%S', start)} to {time.strftime('%H:%M:%S', end)}"
    canvas.text(WIDTH_PX - 16, HEADER_PX / 2 - 2, span, ha="right", color=palette.FAINT)


def _draw_key(canvas: Canvas, key: Iterable[tuple[str, str]]) -> None:
    """Says what the marks on the graphs are, left of the time range."""
    right: float = WIDTH_PX - _TIMES_PX
    top = HEADER_PX / 2 - 2
    for name, color in reversed(list(key)):
        right -= canvas.text_width(name, 8.5)
        canvas.text(right, top, name, color=palette.FAINT, fontsize=8.5)
        right -= 16
        canvas.text(right, top, "▲", color=color, fontsize=8.5)
        right -= 14


def _draw_pill(canvas: Canvas, left: float, label: str, value: str) -> float:
    top = HEADER_PX / 2 - 15
    label_width = canvas.text_width(label, 9) + 18
    width = canvas.text_width(value, 9) + 20
    canvas.rectangle(Box(left, top, label_width, 26), palette.PANEL, edge=palette.BORDER)
    canvas.rectangle(
        Box(left + label_width, top, width, 26), palette.BACKGROUND, edge=palette.BORDER
    )
    canvas.text(left + 9, top + 13, label, color=palette.ACCENT)
    canvas.text(left + label_width + 10, top + 13, value)
    return left + label_width + width
