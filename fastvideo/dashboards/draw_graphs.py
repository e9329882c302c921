"""Draws panels over time: lines, heatmap, state timeline."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dashboards import palette
from fastvideo.dashboards.canvas import Box
from fastvideo.dashboards.panel_data import finite, settings
from fastvideo.dashboards.units import format_value
from fastvideo.errors import import_extra

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fastvideo.dashboards.canvas import Canvas
    from fastvideo.dashboards.panel_data import Field, Frame
    from fastvideo.dashboards.substitute import Window

_LEGEND_PX: Final = 18
_TIMES_PX: Final = 20
_CORNER_PX: Final = 30
_TICK_STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
_FEW: Final = 2
"""So few samples make no line that could be seen."""

_NOTHING: Final = 1e-9
_BYTES: Final = ("bytes", "binBps")
_TIME_STEPS: Final = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600)


def draw_timeseries(
    canvas: Canvas,
    box: Box,
    panel: Mapping[str, Any],
    frames: Sequence[Frame],
    window: Window,
    marks: Sequence[tuple[float, str]],
) -> None:
    """Draws lines, areas or bars over time, with a legend below or beside."""
    colors = series_colors(frames)
    plot = _draw_legend(canvas, box.inside(8, 0, 8, 4), panel, frames, colors)
    field = settings(panel)
    stacked = field.get("custom.stacking", {}).get("mode") in {"normal", "percent"}
    curves = _curves(frames)
    low, high = _limits(field, [value for _, values in curves for value in finite(values)], stacked)
    ticks = value_ticks(
        low,
        high,
        field.get("unit", "none"),
        room=max(2, int(plot.height // 38)),
        decimals=_tick_decimals(field),
    )
    labels = [
        format_value(tick, field.get("unit", "none"), _tick_decimals(field)) for tick in ticks
    ]
    margin = max(canvas.text_width(label, 8) for label in labels) + 8
    axes = canvas.axes(plot.inside(margin, 6, 6, _TIMES_PX))
    axes.set_xlim(window.start, window.end)
    axes.set_ylim(low, high)
    _set_ticks(canvas, axes, ticks, labels, window, plot.width - margin)
    for frame, color, (below, values) in zip(frames, colors, curves, strict=True):
        _draw_curve(axes, frame, color, below, values, window)
    _draw_thresholds(axes, field, low, high)
    _draw_marks(axes, marks)


def series_colors(frames: Sequence[Frame]) -> list[str]:
    """Returns a colour for each series: its own, else the next of the classic palette."""
    colors = []
    for index, frame in enumerate(frames):
        chosen = frame.field.get("color", {})
        if chosen.get("mode") == "fixed":
            colors.append(palette.color(chosen["fixedColor"]))
        elif chosen.get("mode") == "thresholds":
            colors.append(frame.field.threshold_color(frame.last))
        else:
            colors.append(palette.CLASSIC[index % len(palette.CLASSIC)])
    return colors


def _curves(frames: Sequence[Frame]) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Returns what is below each series, if it is stacked, and where it ends, at its own times."""
    total: dict[float, float] = {}
    curves: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
    for frame in frames:
        if (frame.field.get("custom.stacking") or {}).get("mode") not in {"normal", "percent"}:
            curves.append(((), frame.series.values))
            continue
        below, upper = [], []
        for at, value in zip(frame.series.times, frame.series.values, strict=True):
            base = total.get(at, 0.0)
            total[at] = base + (value if math.isfinite(value) else 0.0)
            below.append(base)
            upper.append(total[at])
        curves.append((tuple(below), tuple(upper)))
    return curves


def _limits(field: Field, values: list[float], stacked: bool) -> tuple[float, float]:  # noqa: FBT001
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    if stacked:
        low = min(0.0, low)
    if field.get("custom.axisSoftMin") is not None:
        low = min(low, field.get("custom.axisSoftMin"))
    if field.get("custom.axisSoftMax") is not None:
        high = max(high, field.get("custom.axisSoftMax"))
    low, high = float(field.get("min", low)), float(field.get("max", high))
    if high <= low:
        # Grafana puts a lone value into the middle, and a lone zero at the bottom.
        low, high = (low, low + 1.0) if low == 0 else (min(0.0, 2 * low), max(0.0, 2 * low))
    room = 0.06 * (high - low)
    if field.get("max") is None:
        high += room
    if field.get("min") is None and low != 0:
        low = 0.0 if 0 < low < room else low - room
    return low, high


def value_ticks(
    low: float, high: float, unit: str, *, room: int, decimals: int | None = None
) -> list[float]:
    """Returns round values between two, in the unit that they are written in.

    Args:
        low: Lower end of the axis.
        high: Upper end.
        unit: Grafana's id of the unit.
        room: How many fit, about.
        decimals: Digits behind the point that they are written with; None for as many as needed.
    """
    rough = (high - low) / max(1, room)
    if decimals is not None:
        rough = max(rough, 10.0**-decimals / (100 if unit == "percentunit" else 1))
    step = 10 ** math.floor(math.log10(rough))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if factor * step >= rough * 0.999)
    if unit in _BYTES:
        step = 2 ** max(0, round(math.log2(rough)))
    elif unit == "s" and 1 <= rough <= _TIME_STEPS[-1]:
        step = next(each for each in _TIME_STEPS if each >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor((high - first * step) / step + 1e-9) + 1
    return [(first + index) * step for index in range(count)]


def _tick_decimals(field: Field) -> int | None:
    found = field.get("decimals")
    return None if found is None else int(found)


def _set_ticks(
    canvas: Canvas,
    axes: Any,  # noqa: ANN401 - untyped
    ticks: Sequence[float],
    labels: Sequence[str],
    window: Window,
    width: float,
) -> None:
    axes.set_yticks(ticks, [_trim(label) for label in labels], family=canvas.fonts)
    times = time_ticks(window.start, window.end, room=max(2, int(width // 90)))
    # A word below the corner would lie upon the lowest of the other axis.
    least = window.start + _CORNER_PX * (window.end - window.start) / width
    times = [at for at in times if at >= least]
    form = (
        "%H:%M"
        if not times or ((times[-1] - times[0]) > 0 and _whole_minutes(times))
        else "%H:%M:%S"
    )
    words = [time.strftime(form, time.localtime(at)) for at in times]
    axes.set_xticks(times, words, family=canvas.fonts)
    axes.grid(visible=True, color=palette.GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _trim(label: str) -> str:
    """Leaves out zeros behind the point, as Grafana's axes do: ``1.50 s`` is ``1.5 s``."""
    number, space, unit = label.partition(" ")
    percent = "%" if number.endswith("%") else ""
    number = number.removesuffix("%")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number}{percent}{space}{unit}"


def _whole_minutes(times: Sequence[float]) -> bool:
    return all(at % 60 == 0 for at in times)


def time_ticks(start: float, end: float, *, room: int) -> list[float]:
    """Returns round times between two, at most about ``room``."""
    rough = (end - start) / room
    step = next((each for each in _TICK_STEPS_S if each >= rough), _TICK_STEPS_S[-1])
    first = math.ceil(start / step) * step
    return [first + index * step for index in range(int((end - first) // step) + 1)]


def _draw_curve(
    axes: Any,  # noqa: ANN401 - untyped
    frame: Frame,
    color: str,
    below: Sequence[float],
    values: Sequence[float],
    window: Window,
) -> None:
    field = frame.field
    times, values, base = _with_gaps(frame, values, below, window)
    opacity = float(field.get("custom.fillOpacity", 0)) / 100
    width = float(field.get("custom.lineWidth", 1))
    style = (field.get("custom.lineStyle") or {}).get("fill", "solid")
    dashes = {"dash": (0, (4, 3)), "dot": (0, (1, 2))}.get(style, "solid")
    if field.get("custom.drawStyle") == "bars":
        bar = window.interval_s * 0.8
        axes.bar(times, values, width=bar, bottom=base or 0, color=color, alpha=max(opacity, 0.4))
        return
    if field.get("custom.drawStyle") == "points":
        axes.plot(
            times, values, ".", color=color, markersize=float(field.get("custom.pointSize", 5))
        )
        return
    step = {"stepAfter": "steps-post", "stepBefore": "steps-pre"}.get(
        field.get("custom.lineInterpolation", "linear"), "default"
    )
    axes.plot(times, values, color=color, linewidth=1.2 * width, linestyle=dashes, drawstyle=step)
    lonely = [math.nan if _has_neighbour(values, at) else values[at] for at in range(len(values))]
    dots = values if len(finite(values)) <= _FEW else lonely
    if finite(dots):
        axes.plot(times, dots, ".", color=color, markersize=5)
    if opacity:
        axes.fill_between(
            times,
            values,
            base or [0.0] * len(times),
            color=color,
            alpha=opacity,
            linewidth=0,
            step={"steps-post": "post", "steps-pre": "pre"}.get(step),
        )


def _has_neighbour(values: Sequence[float], index: int) -> bool:
    """Says whether a line leads to or from a sample, which would not be seen otherwise."""
    beside = (*values[max(0, index - 1) : index], *values[index + 1 : index + 2])
    return any(math.isfinite(value) for value in beside)


def _with_gaps(
    frame: Frame, values: Sequence[float], below: Sequence[float], window: Window
) -> tuple[list[float], list[float], list[float]]:
    """Returns times, values and bases, with NaN where the series has no samples for too long."""
    span = frame.field.get("custom.spanNulls", False)
    bridged = math.inf if span is True else max(1.5 * window.interval_s, float(span or 0) / 1000)
    times_out: list[float] = []
    values_out: list[float] = []
    base_out: list[float] = []
    for index, at in enumerate(frame.series.times):
        if times_out and at - times_out[-1] > bridged:
            times_out.append(times_out[-1] + 1e-3)
            values_out.append(math.nan)
            base_out.append(0.0)
        times_out.append(at)
        values_out.append(values[index])
        base_out.append(below[index] if below else 0.0)
    return times_out, values_out, base_out if below else []


def _draw_thresholds(axes: Any, field: Field, low: float, high: float) -> None:  # noqa: ANN401
    mode = field.get("custom.thresholdsStyle", {}).get("mode", "off")
    if mode == "off":
        return
    steps = [step for step in field.steps if math.isfinite(step[0])]
    for index, (begins, color) in enumerate(steps):
        ends = steps[index + 1][0] if index + 1 < len(steps) else high
        if "area" in mode and begins < high:
            axes.axhspan(max(begins, low), min(ends, high), color=color, alpha=0.1, linewidth=0)
        if mode != "area" and low <= begins <= high:
            axes.axhline(begins, color=color, linewidth=1.2, linestyle=(0, (6, 4)), alpha=0.8)


def _draw_marks(axes: Any, marks: Sequence[tuple[float, str]]) -> None:  # noqa: ANN401 - untyped
    for at, color in marks:
        axes.axvline(at, color=color, linewidth=1, linestyle=(0, (3, 3)), alpha=0.9)
        axes.plot(
            [at],
            [0],
            "^",
            color=color,
            markersize=6,
            clip_on=False,
            transform=axes.get_xaxis_transform(),
        )


def _draw_legend(
    canvas: Canvas,
    box: Box,
    panel: Mapping[str, Any],
    frames: Sequence[Frame],
    colors: Sequence[str],
) -> Box:
    """Draws the legend; returns the room that is left for the graph."""
    options = panel.get("options", {}).get("legend", {})
    if not options.get("showLegend", True) or not frames:
        return box
    calcs = options.get("calcs", [])
    entries = [_legend_entry(frame, calcs) for frame in frames]
    if options.get("placement") == "right":
        return _legend_right(canvas, box, entries, colors)
    return _legend_bottom(canvas, box, entries, colors)


def _legend_entry(frame: Frame, calcs: Iterable[str]) -> str:
    values = finite(frame.series.values)
    words = []
    for calc in calcs:
        if values:
            value = {
                "mean": sum(values) / len(values),
                "max": max(values),
                "min": min(values),
                "lastNotNull": values[-1],
                "last": values[-1],
            }.get(calc, values[-1])
            words.append(f"{calc.removesuffix('NotNull').capitalize()}: {frame.field.text(value)}")
    return "  ".join([frame.name, *words])


def _legend_bottom(canvas: Canvas, box: Box, entries: list[str], colors: Sequence[str]) -> Box:
    lines: list[list[tuple[str, str, float]]] = [[]]
    used = 0.0
    for entry, color in zip(entries, colors, strict=True):
        words = canvas.fit(entry, box.width - 30, 8.5)
        width = canvas.text_width(words, 8.5) + 32
        if used + width > box.width and lines[-1]:
            lines.append([])
            used = 0.0
        lines[-1].append((words, color, width))
        used += width
    room = max(1, int(box.height * 0.35 // _LEGEND_PX))
    for number, line in enumerate(lines[:room]):
        left = box.left + 4
        shown = min(room, len(lines))
        top = box.top + box.height - (shown - number - 0.5) * _LEGEND_PX
        for words, color, width in line:
            canvas.rectangle(Box(left, top - 2, 14, 4), color, radius=1.5)
            canvas.text(left + 20, top, words, fontsize=8.5)
            left += width
    return box.inside(0, 0, 0, min(room, len(lines)) * _LEGEND_PX + 2)


def _legend_right(canvas: Canvas, box: Box, entries: list[str], colors: Sequence[str]) -> Box:
    wide = max(canvas.text_width(entry, 8.5) for entry in entries) + 34
    width = min(box.width * 0.4, wide)
    left = box.left + box.width - width
    room = int(box.height // _LEGEND_PX)
    for number, (entry, color) in enumerate(zip(entries[:room], colors, strict=False)):
        top = box.top + (number + 0.5) * _LEGEND_PX
        canvas.rectangle(Box(left + 8, top - 2, 14, 4), color, radius=1.5)
        canvas.text(left + 28, top, canvas.fit(entry, width - 30, 8.5), fontsize=8.5)
    return box.inside(0, 0, width, 0)


def draw_heatmap(
    canvas: Canvas,
    box: Box,
    panel: Mapping[str, Any],
    frames: Sequence[Frame],
    window: Window,
    marks: Sequence[tuple[float, str]],
) -> None:
    """Draws how many observations each bucket of a histogram took, over time."""
    colors = import_extra("matplotlib.colors", extra="dashboards")
    bounds, times, counts = heatmap_counts(frames)
    unit = panel["options"].get("yAxis", {}).get("unit") or settings(panel).get("unit", "none")
    labels = [format_value(bound, unit) for bound in bounds]
    margin = max(canvas.text_width(label, 8) for label in labels) + 16
    axes = canvas.axes(box.inside(8 + margin, 6, 14, _TIMES_PX + 6))
    scheme = colors.LinearSegmentedColormap.from_list(
        "oranges", ["#3b2314", "#8c3b0c", "#e5630f", "#fdae6b", "#feedde"]
    )
    shown = [[value if value > _NOTHING else math.nan for value in row] for row in counts]
    highest = max((value for row in counts for value in row), default=0.0)
    if times and highest > 0:
        edges = [times[0] - window.interval_s, *times]
        axes.pcolormesh(
            edges,
            list(range(len(bounds) + 1)),
            shown,
            cmap=scheme,
            norm=colors.PowerNorm(0.5, 0, highest),
            edgecolors=palette.PANEL,
            linewidth=0.4,
        )
    axes.set_xlim(window.start, window.end)
    every = max(1, math.ceil(len(bounds) / max(2, box.height // 26)))
    ticks = list(range(1, len(bounds) + 1, every))
    _set_ticks(
        canvas, axes, ticks, [labels[tick - 1] for tick in ticks], window, box.width - margin
    )
    axes.grid(visible=False)
    _draw_marks(axes, marks)


def heatmap_counts(
    frames: Sequence[Frame],
) -> tuple[list[float], list[float], list[list[float]]]:
    """Returns upper bounds, times, and what each bucket took by itself at each time.

    Buckets of Prometheus count everything below their bound; Grafana subtracts the one below.
    Empty ones above and below everything are left out.

    Args:
        frames: One series a bucket, with the bound as label ``le``.
    """
    by_bound = sorted(
        ((float(frame.series.labels["le"]), frame) for frame in frames), key=lambda p: p[0]
    )
    times = sorted({at for frame in frames for at in frame.series.times})
    below = [0.0] * len(times)
    rows: list[list[float]] = []
    for _, frame in by_bound:
        at = dict(zip(frame.series.times, frame.series.values, strict=True))
        total = [at.get(moment, 0.0) for moment in times]
        total = [value if math.isfinite(value) else 0.0 for value in total]
        rows.append([max(0.0, t - b) for t, b in zip(total, below, strict=True)])
        below = total
    used = [index for index, row in enumerate(rows) if max(row, default=0.0) > _NOTHING]
    first, last = (max(0, used[0] - 1), used[-1] + 2) if used else (0, len(rows))
    return [bound for bound, _ in by_bound[first:last]], times, rows[first:last]


def draw_state_timeline(
    canvas: Canvas,
    box: Box,
    panel: Mapping[str, Any],  # noqa: ARG001 - as all that draw a kind of panel
    frames: Sequence[Frame],
    window: Window,
    marks: Sequence[tuple[float, str]],
) -> None:
    """Draws one row a series, coloured by what its value stands for."""
    states = dict.fromkeys(
        (frame.field.text(value), frame.field.color_of(value))
        for frame in frames
        for value in finite(frame.series.values)
    )
    plot = _legend_bottom(
        canvas, box.inside(8, 0, 8, 4), [s[0] for s in states], [s[1] for s in states]
    )
    shown = frames[: max(1, int(plot.height // 14))]
    margin = max(canvas.text_width(frame.name, 8) for frame in shown) + 10
    axes = canvas.axes(plot.inside(margin, 4, 6, _TIMES_PX))
    for row, frame in enumerate(shown):
        for start, end, value in _stretches(frame, window):
            axes.barh(
                row,
                end - start,
                left=start,
                height=0.82,
                color=frame.field.color_of(value),
                alpha=float(frame.field.get("custom.fillOpacity", 80)) / 100,
                linewidth=0,
            )
    axes.set_xlim(window.start, window.end)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    names = [frame.name for frame in shown]
    _set_ticks(canvas, axes, range(len(shown)), names, window, plot.width - margin)
    axes.grid(visible=False)
    _draw_marks(axes, marks)


def _stretches(frame: Frame, window: Window) -> Iterable[tuple[float, float, float]]:
    """Gives the times during which a series has one value."""
    span = frame.field.get("custom.spanNulls", False)
    bridged = math.inf if span is True else max(1.5 * window.interval_s, float(span or 0) / 1000)
    pairs = [
        pair
        for pair in zip(frame.series.times, frame.series.values, strict=True)
        if math.isfinite(pair[1])
    ]
    for index, (at, value) in enumerate(pairs):
        following = pairs[index + 1][0] if index + 1 < len(pairs) else at + window.interval_s
        end = following if following - at <= bridged else at + window.interval_s
        yield at, min(end, window.end), value
