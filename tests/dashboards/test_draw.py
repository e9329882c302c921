"""Pictures of dashboards."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from fake_prometheus import FakePrometheus

from fastvideo.dashboards import all_dashboards, to_json
from fastvideo.dashboards.canvas import Box, Canvas
from fastvideo.dashboards.draw import (
    HEADER_PX,
    ROW_PX,
    WIDTH_PX,
    annotation_key,
    annotation_times,
    draw_dashboard,
    grid_box,
    repeated,
)
from fastvideo.dashboards.draw_graphs import heatmap_counts, time_ticks, value_ticks
from fastvideo.dashboards.draw_panels import KINDS, draw_panel
from fastvideo.dashboards.model import PanelKind
from fastvideo.dashboards.palette import CLASSIC, color
from fastvideo.dashboards.panel_data import Frame, fetch, panel_window, settings
from fastvideo.dashboards.prometheus import Prometheus, Series
from fastvideo.dashboards.substitute import ALL, Choice, Window
from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WINDOW = Window(0.0, 600.0, 15.0)
BOX = Box(0, 0, 600, 260)


@pytest.fixture(scope="module")
def fake() -> Iterator[FakePrometheus]:
    """A server."""
    server = FakePrometheus()
    yield server
    server.close()


def panel(kind: str, **more: Any) -> dict[str, Any]:
    """A panel's JSON."""
    return {
        "type": kind,
        "title": "A title",
        "options": {},
        "fieldConfig": {"defaults": {"unit": "s"}, "overrides": []},
        "targets": [{"refId": "A", "expr": "x", "legendFormat": "rank {{rank}}"}],
        **more,
    }


def frames(of: dict[str, Any], *values: tuple[float, ...], **labels: str) -> list[Frame]:
    """Series of a panel, a sample every minute."""
    return [
        Frame(
            f"rank {number}",
            "A",
            Series(
                {"rank": str(number), **labels}, tuple(60.0 * i for i in range(len(each))), each
            ),
            settings(of, f"rank {number}", "A"),
        )
        for number, each in enumerate(values)
    ]


def drawn(of: dict[str, Any], series: list[Frame]) -> tuple[list[str], Canvas]:
    """Draws one panel; returns the words on it, and the canvas."""
    canvas = Canvas(600, 260)
    draw_panel(canvas, BOX, of, series, WINDOW, [(300.0, "#ff0000")])
    return [text.get_text() for text in canvas.figure.texts], canvas


@pytest.mark.parametrize("uid", [board.uid for board in all_dashboards()])
def test_each_dashboard_becomes_a_picture_of_its_size(
    uid: str, fake: FakePrometheus, tmp_path: Path
) -> None:
    """A PNG as wide as the grid, and as high as its lowest panel asks."""
    board = to_json(next(board for board in all_dashboards() if board.uid == uid))
    path = tmp_path / "below" / f"{uid}.png"
    draw_dashboard(board, Prometheus(fake.url), path, window=WINDOW, given={"run": "a"})
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    lowest = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in board["panels"])
    assert width == WIDTH_PX
    assert 0 <= height - HEADER_PX - lowest * ROW_PX <= 16


def test_every_kind_of_panel_can_be_drawn() -> None:
    """Those that dashboards are made of."""
    assert set(PanelKind.__args__) | {"row"} == KINDS


def test_a_kind_that_is_not_drawn_is_an_error() -> None:
    """It names the panel and what there is."""
    with pytest.raises(ConfigError, match="'A title' is of type 'geomap', which is not drawn; bar"):
        drawn(panel("geomap"), [])


def test_a_stat_shows_the_last_number_with_its_unit_and_name() -> None:
    """NaN at the end is passed over; names stand there where there are several."""
    of = panel("stat")
    words, _ = drawn(of, frames(of, (1.0, 0.25, float("nan")), (2.0,)))
    assert words == ["A title", "rank 0", "250 ms", "rank 1", "2 s"]


def test_a_stat_is_filled_with_the_colour_of_its_threshold() -> None:
    """The highest that is reached."""
    steps = [{"value": None, "color": "green"}, {"value": 1, "color": "red"}]
    of = panel(
        "stat",
        options={"colorMode": "background"},
        fieldConfig={"defaults": {"unit": "s", "thresholds": {"steps": steps}}, "overrides": []},
    )
    _, canvas = drawn(of, frames(of, (3.0,)))
    fills = [artist.get_facecolor() for artist in canvas.figure.artists]
    red = tuple(int(color("red")[i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert fills[-1][:3] == pytest.approx(red)


def test_words_stand_for_values() -> None:
    """As the panel's mappings say."""
    mapping = {"type": "value", "options": {"1": {"text": "running", "color": "green"}}}
    of = panel("stat", fieldConfig={"defaults": {"mappings": [mapping]}, "overrides": []})
    assert drawn(of, frames(of, (1.0,)))[0] == ["A title", "running"]


def test_a_panel_without_data_says_what_it_is_told_to() -> None:
    """Or that there is none."""
    assert drawn(panel("timeseries"), [])[0] == ["A title", "No data"]
    of = panel("stat", fieldConfig={"defaults": {"noValue": "run is over"}, "overrides": []})
    assert drawn(of, [])[0] == ["A title", "run is over"]


def test_lines_have_a_legend_and_an_axis_with_units() -> None:
    """Ticks are round numbers; the axis shows the window."""
    of = panel("timeseries")
    words, canvas = drawn(of, frames(of, (0.1, 0.2), (0.3, 0.4)))
    axes = canvas.figure.axes[0]
    assert words == ["A title", "rank 0", "rank 1"]
    assert axes.get_xlim() == (0.0, 600.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "100 ms",
        "200 ms",
        "300 ms",
        "400 ms",
    ]
    assert [line.get_color() for line in axes.lines[:4:2]] == list(CLASSIC[:2])


def test_stacked_series_lie_upon_each_other_unless_one_is_excepted() -> None:
    """The top is the sum; a line that is excepted is where it is."""
    stacked = {"custom": {"stacking": {"mode": "normal"}, "spanNulls": True}}
    alone = {
        "matcher": {"id": "byName", "options": "rank 2"},
        "properties": [{"id": "custom.stacking", "value": {"mode": "none"}}],
    }
    of = panel("timeseries", fieldConfig={"defaults": stacked, "overrides": [alone]})
    _, canvas = drawn(of, frames(of, (1.0, 1.0, 1.0), (2.0, 2.0, 3.0), (3.0, 3.0, 4.0)))
    tops = [list(line.get_ydata()) for line in canvas.figure.axes[0].lines[:3]]
    assert tops == [[1.0, 1.0, 1.0], [3.0, 3.0, 4.0], [3.0, 3.0, 4.0]]


def test_a_line_is_interrupted_where_samples_are_missing() -> None:
    """Unless the panel bridges gaps of that length."""
    of = panel("timeseries")
    series = Series({}, (0.0, 15.0, 200.0, 215.0), (1.0, 1.0, 2.0, 2.0))
    _, canvas = drawn(of, [Frame("x", "A", series, settings(of))])
    assert len(canvas.figure.axes[0].lines[0].get_xdata()) == 5
    bridging = panel(
        "timeseries", fieldConfig={"defaults": {"custom": {"spanNulls": 900_000}}, "overrides": []}
    )
    _, canvas = drawn(bridging, [Frame("x", "A", series, settings(bridging))])
    assert len(canvas.figure.axes[0].lines[0].get_xdata()) == 4


def test_a_sample_without_neighbours_is_a_dot() -> None:
    """A line through it would have no length."""
    bridging = {"defaults": {"custom": {"spanNulls": 900_000}}, "overrides": []}
    of = panel("timeseries", fieldConfig=bridging)
    nan = float("nan")
    _, canvas = drawn(of, frames(of, (1.0, nan, 2.0, 3.0, nan, nan, 4.0)))
    _, dots, *_ = canvas.figure.axes[0].lines
    assert dots.get_marker() == "."
    assert [value for value in dots.get_ydata() if value == value] == [1.0, 4.0]  # noqa: PLR0124


def test_a_heatmap_counts_what_each_bucket_took_by_itself() -> None:
    """Prometheus' buckets count all below them; empty ones at the ends are left out."""
    counts = {"0.1": 0.0, "0.5": 0.0, "1": 3.0, "2": 7.0, "5": 7.0, "10": 7.0, "+Inf": 7.0}
    series = [Frame(le, "A", Series({"le": le}, (60.0,), (n,))) for le, n in counts.items()]
    assert heatmap_counts(series) == ([0.5, 1.0, 2.0, 5.0], [60.0], [[0.0], [3.0], [4.0], [0.0]])
    words, canvas = drawn(panel("heatmap"), series)
    assert words == ["A title"]
    assert len(canvas.figure.axes[0].collections) == 1


def test_a_bar_is_as_long_as_its_share_of_the_maximum() -> None:
    """With its value beside it."""
    defaults = {"unit": "percentunit", "max": 1, "min": 0}
    of = panel("bargauge", fieldConfig={"defaults": defaults, "overrides": []})
    words, canvas = drawn(of, frames(of, (0.5,), (0.25,)))
    assert words == ["A title", "rank 0", "50%", "rank 1", "25%"]
    _, full, half, _, quarter = [artist.get_width() for artist in canvas.figure.artists]
    assert (half / full, quarter / full) == (
        pytest.approx(0.5, abs=0.02),
        pytest.approx(0.25, abs=0.02),
    )


def test_a_table_shows_columns_with_their_units() -> None:
    """Overrides give a column its name and unit."""
    override = {
        "matcher": {"id": "byName", "options": "Value"},
        "properties": [{"id": "displayName", "value": "own work"}, {"id": "unit", "value": "s"}],
    }
    of = panel("table", fieldConfig={"defaults": {"unit": "none"}, "overrides": [override]})
    of["transformations"] = [{"id": "organize", "options": {"excludeByName": {"Time": True}}}]
    words, _ = drawn(of, frames(of, (0.5,), (0.25,)))
    assert words == ["A title", "rank", "0", "1", "own work", "500 ms", "250 ms"]


def test_a_state_timeline_has_a_row_a_series_and_a_legend_of_states() -> None:
    """A state is as long as the time to the next sample."""
    words_for = {"0": {"text": "fine", "color": "green"}, "2": {"text": "bad", "color": "red"}}
    defaults = {
        "mappings": [{"type": "value", "options": words_for}],
        "custom": {"spanNulls": 900_000},
    }
    of = panel("state-timeline", fieldConfig={"defaults": defaults, "overrides": []})
    words, canvas = drawn(of, frames(of, (0.0, 2.0), (0.0, 0.0)))
    axes = canvas.figure.axes[0]
    assert words == ["A title", "fine", "bad"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert [bar.get_width() for bar in axes.patches] == [60.0, 15.0, 60.0, 15.0]


def test_text_is_written_without_its_marks() -> None:
    """Links, emphasis and headings are words here."""
    of = {"type": "text", "title": "", "options": {"content": "# See\n- **the** [page](x)"}}
    assert drawn(of, [])[0] == ["See", "•  the page"]


@pytest.mark.parametrize(
    ("low", "high", "unit", "decimals", "expected"),
    [
        (0.0, 1.0, "none", None, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.0, 2.0, "none", 0, [0.0, 1.0, 2.0]),
        (0.0, 4.0 * 2**30, "bytes", None, [index * 2.0**30 for index in range(5)]),
        (0.0, 200.0, "s", None, [0.0, 60.0, 120.0, 180.0]),
    ],
)
def test_ticks_are_round_in_their_unit(
    low: float, high: float, unit: str, decimals: int | None, expected: list[float]
) -> None:
    """Powers of two for bytes, minutes for seconds, whole numbers where no digits are shown."""
    assert value_ticks(low, high, unit, room=4, decimals=decimals) == pytest.approx(expected)


def test_times_are_round() -> None:
    """Full minutes where there is room for few."""
    assert time_ticks(30.0, 330.0, room=5) == [60.0, 120.0, 180.0, 240.0, 300.0]


def test_panels_lie_side_by_side_in_the_grid() -> None:
    """The right edge of one leaves a gap to the next."""
    left, right = (grid_box({"x": x, "y": 0, "w": 12, "h": 8}) for x in (0, 12))
    assert right.left - (left.left + left.width) == pytest.approx(8.0)
    assert right.left + right.width <= WIDTH_PX


def test_annotations_mark_where_something_begins(fake: FakePrometheus) -> None:
    """One mark for a stretch of samples, not one for each."""
    entry = {"name": "x", "enable": True, "expr": "y", "iconColor": "red"}
    board = {"annotations": {"list": [entry, {**entry, "expr": "nothing"}]}}
    marks = annotation_times(board, Prometheus(fake.url), {}, WINDOW)
    assert marks == [(0.0, color("red"))] * 2  # two ranks


def test_the_key_has_those_marks_that_there_are() -> None:
    """By name and colour, in the dashboard's order."""
    entries = [{"name": name, "iconColor": name} for name in ("red", "blue", "purple")]
    board = {"annotations": {"list": entries}}
    marks = [(2.0, color("purple")), (1.0, color("red")), (3.0, color("red"))]
    assert annotation_key(board, marks) == [("red", color("red")), ("purple", color("purple"))]


def test_a_repeated_panel_is_drawn_for_each_value() -> None:
    """Side by side in rows, or below each other where it stands; what is below moves down."""
    wide: dict[str, Any] = {
        "title": "wide",
        "repeat": "loss",
        "repeatDirection": "h",
        "maxPerRow": 2,
    }
    tall: dict[str, Any] = {"title": "tall", "repeat": "run", "repeatDirection": "v"}
    places = [(wide, 0, 0, 12), (tall, 0, 8, 10), ({"title": "last"}, 10, 16, 4)]
    panels = [{**panel, "gridPos": {"x": x, "y": y, "w": w, "h": 8}} for panel, x, y, w in places]
    choices = {
        "loss": Choice((ALL,), ".*", ("a", "b", "c")),
        "run": Choice(("x", "y"), None, ("x", "y", "z")),
    }
    found = [
        (panel["title"], own["loss"].values, own["run"].values, *panel["gridPos"].values())
        for panel, own in repeated(panels, choices)
    ]
    assert found == [
        ("wide", ("a",), ("x", "y"), 0, 0, 12, 8),
        ("wide", ("b",), ("x", "y"), 12, 0, 12, 8),
        ("wide", ("c",), ("x", "y"), 0, 8, 12, 8),
        ("tall", (ALL,), ("x",), 0, 16, 10, 8),
        ("tall", (ALL,), ("y",), 0, 24, 10, 8),
        ("last", (ALL,), ("x", "y"), 10, 32, 4, 8),
    ]


def test_series_that_prometheus_sorts_keep_their_order(fake: FakePrometheus) -> None:
    """Others are in the order of their names."""
    of = panel("bargauge")
    for expr, order in (("sort_desc(x)", ["rank 1", "rank 0"]), ("x", ["rank 0", "rank 1"])):
        target = {**of["targets"][0], "expr": expr, "instant": True}
        found = fetch({**of, "targets": [target]}, Prometheus(fake.url), {}, WINDOW)
        assert [frame.name for frame in found] == order


def test_a_panels_own_interval_is_its_step(fake: FakePrometheus) -> None:
    """And the panel's width says how many points there are at most."""
    of = panel("timeseries", interval="60s")
    own = panel_window(of, WINDOW, width_px=10)
    found = fetch(of, Prometheus(fake.url), {}, own)
    assert [frame.name for frame in found] == ["rank 0", "rank 1"]
    assert found[0].series.times[:3] == (0.0, 60.0, 120.0)
