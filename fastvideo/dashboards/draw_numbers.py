"""Draws panels that show numbers: stat, bar gauge, table; and text."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dashboards import palette
from fastvideo.dashboards.canvas import Box
from fastvideo.dashboards.panel_data import settings
from fastvideo.dashboards.tables import build_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastvideo.dashboards.canvas import Canvas
    from fastvideo.dashboards.panel_data import Field, Frame

_LARGEST_PT: Final = 30.0
_SMALLEST_PT: Final = 7.0
_LIGHT: Final = 140
"""Luminance, of 255, from which on dark letters are read better."""

_TILE_GAP_PX: Final = 4
_LINE_PX: Final = 20
_ROW_PX: Final = 26


def draw_empty(canvas: Canvas, box: Box, panel: Mapping[str, Any]) -> None:
    """Draws a panel whose queries have no data."""
    words = settings(panel).get("noValue", "No data")
    is_big = panel["type"] == "stat"
    size = min(_LARGEST_PT * 0.6, box.height * 0.25) if is_big else 10
    words = canvas.fit(str(words), box.width - 16, size)
    canvas.text(
        box.left + box.width / 2,
        box.top + box.height / 2 - 6,
        words,
        ha="center",
        color=palette.TEXT if is_big else palette.FAINT,
        fontsize=size,
    )


def draw_stat(canvas: Canvas, box: Box, panel: Mapping[str, Any], frames: Sequence[Frame]) -> None:
    """Draws big numbers, one tile a series."""
    options = panel.get("options", {})
    filled = options.get("colorMode") in {"background", "background_solid"}
    boxes = _tiles(box.inside(6, 0, 6, 6), len(frames), options.get("orientation", "auto"))
    mode = options.get("textMode", "auto")
    for frame, tile in zip(frames, boxes, strict=True):
        color = frame.field.color_of(frame.last)
        if filled:
            canvas.rectangle(tile, color)
        ink = _ink_on(color) if filled else color
        words = frame.name if mode == "name" else frame.field.text(frame.last)
        named = mode in {"value_and_name", "name"} or (mode == "auto" and len(frames) > 1)
        _write_stat(canvas, tile, words, frame.name if named and mode != "name" else "", ink)
        if options.get("graphMode") == "area" and len(frame.series.values) > 1:
            _draw_spark(canvas, tile, frame, ink if filled else color)


def _tiles(box: Box, number: int, orientation: str) -> list[Box]:
    """Returns boxes side by side where there is room, else below each other."""
    is_wide = orientation == "vertical" or (orientation == "auto" and box.width > box.height)
    if is_wide:
        width = (box.width + _TILE_GAP_PX) / number
        return [
            Box(box.left + index * width, box.top, width - _TILE_GAP_PX, box.height)
            for index in range(number)
        ]
    height = (box.height + _TILE_GAP_PX) / number
    return [
        Box(box.left, box.top + index * height, box.width, height - _TILE_GAP_PX)
        for index in range(number)
    ]


def _write_stat(canvas: Canvas, tile: Box, words: str, name: str, ink: str) -> None:
    room = tile.height - (18 if name else 0)
    size = min(_LARGEST_PT, room * 0.42)
    while size > _SMALLEST_PT and canvas.text_width(words, size, "bold") > tile.width - 14:
        size -= 0.5
    middle = tile.left + tile.width / 2
    if name:
        canvas.text(
            middle,
            tile.top + tile.height / 2 - size * 0.85,
            canvas.fit(name, tile.width - 8, 8.5),
            ha="center",
            fontsize=8.5,
            color=ink,
        )
    canvas.text(
        middle,
        tile.top + tile.height / 2 + (size * 0.45 if name else 0),
        canvas.fit(words, tile.width - 8, size, "bold"),
        ha="center",
        fontsize=size,
        weight="bold",
        color=ink,
    )


def _draw_spark(canvas: Canvas, tile: Box, frame: Frame, color: str) -> None:
    axes = canvas.axes(tile.inside(2, tile.height * 0.72, 2, 2))
    values = frame.series.values
    axes.plot(frame.series.times, values, color=color, linewidth=1)
    axes.fill_between(frame.series.times, values, min(values), color=color, alpha=0.25, linewidth=0)
    axes.set_axis_off()


def _ink_on(color: str) -> str:
    red, green, blue = (int(color[index : index + 2], 16) for index in (1, 3, 5))
    is_light = 0.299 * red + 0.587 * green + 0.114 * blue > _LIGHT
    return "#111217" if is_light else "#ffffff"


def draw_bar_gauge(
    canvas: Canvas, box: Box, panel: Mapping[str, Any], frames: Sequence[Frame]
) -> None:
    """Draws one horizontal bar a series, coloured by the threshold it has reached."""
    inner = box.inside(10, 2, 10, 8)
    shown = [frame for frame in frames if math.isfinite(frame.last)]
    if not shown:
        draw_empty(canvas, box, panel)
        return
    field = shown[0].field
    top = field.get("max", max(1e-12, *(frame.last for frame in shown)))
    bottom = field.get("min", min(0.0, *(frame.last for frame in shown)))
    room = int(inner.height // 15)
    hidden = shown[room:]
    shown = shown[:room]
    names = min(inner.width * 0.4, max(canvas.text_width(frame.name, 9) for frame in shown) + 10)
    values = max(canvas.text_width(frame.field.text(frame.last), 9, "bold") for frame in shown) + 10
    height = min(34.0, inner.height / len(shown))
    for index, frame in enumerate(shown):
        row = Box(inner.left, inner.top + index * height, inner.width, height)
        _draw_bar(canvas, row, frame, (names, values), (bottom, top))
    if hidden:
        canvas.text(box.left + box.width - 8, box.top - 14, f"+{len(hidden)} more", ha="right")


def _draw_bar(
    canvas: Canvas,
    row: Box,
    frame: Frame,
    margins: tuple[float, float],
    ends: tuple[float, float],
) -> None:
    names, values = margins
    bottom, top = ends
    color = frame.field.color_of(frame.last)
    middle = row.top + row.height / 2
    canvas.text(row.left, middle, canvas.fit(frame.name, names - 6, 9))
    bar = Box(row.left + names, row.top + 2, row.width - names - values, row.height - 4)
    canvas.rectangle(bar, "#22252b")
    share = (frame.last - bottom) / (top - bottom) if top > bottom else 0.0
    share = min(1.0, max(0.0, share))
    if share > 0:
        width = max(4.0, bar.width * share)
        canvas.rectangle(Box(bar.left, bar.top, width, bar.height), color)
    canvas.text(
        row.left + row.width,
        middle,
        frame.field.text(frame.last),
        ha="right",
        color=color,
        weight="bold",
    )


def draw_table(canvas: Canvas, box: Box, panel: Mapping[str, Any], frames: Sequence[Frame]) -> None:
    """Draws a table, after the panel's transformations."""
    table = build_table(panel, frames)
    inner = box.inside(10, 0, 10, 4)
    if not table.rows:
        draw_empty(canvas, box, panel)
        return
    fields = [settings(panel, column) for column in table.columns]
    texts = [
        [_cell_text(fields[index], value) for index, value in enumerate(row)] for row in table.rows
    ]
    widths = _column_widths(canvas, inner.width, list(table.columns), texts)
    room = max(1, int((inner.height - _ROW_PX) // _ROW_PX))
    left = inner.left
    for index, column in enumerate(table.columns):
        width = widths[index]
        title = canvas.fit(str(fields[index].get("displayName", column)), width - 8, 9)
        canvas.text(left, inner.top + _ROW_PX / 2, title, color=palette.ACCENT, weight="bold")
        for number, row in enumerate(table.rows[:room]):
            cell = Box(left - 4, inner.top + (number + 1) * _ROW_PX, width - 2, _ROW_PX)
            _draw_cell(canvas, cell, fields[index], row[index], texts[number][index])
        left += width
    if len(table.rows) > room:
        canvas.text(
            box.left + box.width - 8,
            box.top - 14,
            f"{room} of {len(table.rows)} rows",
            ha="right",
            color=palette.FAINT,
        )


def _draw_cell(
    canvas: Canvas, cell: Box, field: Field, value: float | str | None, text: str
) -> None:
    kind = (field.get("custom.cellOptions") or {}).get("type", "auto")
    ink = palette.TEXT
    if isinstance(value, float) and math.isfinite(value):
        color = field.color_of(value)
        if kind == "color-background":
            canvas.rectangle(cell.inside(0, 1, 0, 1), color)
            ink = _ink_on(color)
        elif kind == "color-text":
            ink = color
    words = canvas.fit(text, cell.width - 6, 9)
    canvas.text(cell.left + 4, cell.top + cell.height / 2, words, color=ink)


def _cell_text(field: Field, value: float | str | None) -> str:
    if value is None:
        return str(field.get("noValue", ""))
    return field.text(value) if isinstance(value, float) else value


def _column_widths(
    canvas: Canvas, room: float, columns: list[str], texts: list[list[str]]
) -> list[float]:
    natural = [
        max(canvas.text_width(text, 9) for text in (name, *(row[index] for row in texts[:40]))) + 16
        for index, name in enumerate(columns)
    ]
    return [width * room / sum(natural) for width in natural]


def draw_markdown(canvas: Canvas, box: Box, content: str) -> None:
    """Writes the words of a text panel, without their marks."""
    top = box.top + 12
    for line in content.splitlines():
        is_title = line.startswith("#")
        words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", line.lstrip("# "))
        words = re.sub(r"^\s*[-*] ", "•  ", words)
        words = re.sub(r"(\*\*|[*_`])(?=\S)([^*`]+?)(?<=\S)\1", r"\2", words)
        for piece in _lines(canvas, words, box.width - 24) or [""]:
            if top > box.top + box.height:
                return
            canvas.text(box.left + 12, top, piece, weight="bold" if is_title else "normal")
            top += _LINE_PX


def _lines(canvas: Canvas, words: str, width: float) -> list[str]:
    lines: list[str] = []
    for word in words.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and canvas.text_width(longer, 9) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
