"""Draws one panel of a dashboard: its frame and title here, its kind in the modules beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastvideo.dashboards import draw_graphs, draw_numbers, palette
from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fastvideo.dashboards.canvas import Box, Canvas
    from fastvideo.dashboards.panel_data import Frame
    from fastvideo.dashboards.substitute import Window

TITLE_PX: Final = 30

_GRAPHS: Final[dict[str, Callable[..., None]]] = {
    "timeseries": draw_graphs.draw_timeseries,
    "heatmap": draw_graphs.draw_heatmap,
    "state-timeline": draw_graphs.draw_state_timeline,
}
_NUMBERS: Final[dict[str, Callable[..., None]]] = {
    "stat": draw_numbers.draw_stat,
    "bargauge": draw_numbers.draw_bar_gauge,
    "table": draw_numbers.draw_table,
}
KINDS: Final = frozenset({*_GRAPHS, *_NUMBERS, "text", "row"})
"""Panel types that can be drawn."""


def draw_panel(
    canvas: Canvas,
    box: Box,
    panel: Mapping[str, Any],
    frames: Sequence[Frame],
    window: Window,
    marks: Sequence[tuple[float, str]],
) -> None:
    """Draws a panel.

    Args:
        canvas: What to draw on.
        box: Where.
        panel: The panel's JSON.
        frames: Its data.
        window: The time it shows.
        marks: Times and colours of annotations.

    Raises:
        ConfigError: Its type is not one of :data:`KINDS`.
    """
    kind = panel["type"]
    if kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        message = f"panel {panel['title']!r} is of type {kind!r}, which is not drawn; {known} are"
        raise ConfigError(message)
    canvas.rectangle(box, palette.PANEL, edge=palette.BORDER)
    inner = box
    if panel.get("title"):
        title = canvas.fit(panel["title"], box.width - 20, 10, "bold")
        canvas.text(box.left + 10, box.top + TITLE_PX / 2 + 1, title, fontsize=10, weight="bold")
        inner = box.inside(0, TITLE_PX, 0, 0)
    if kind == "text":
        draw_numbers.draw_markdown(canvas, inner, panel["options"].get("content", ""))
    elif not frames:
        draw_numbers.draw_empty(canvas, inner, panel)
    elif kind in _GRAPHS:
        _GRAPHS[kind](canvas, inner, panel, frames, window, marks)
    else:
        _NUMBERS[kind](canvas, inner, panel, frames)
