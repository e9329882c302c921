"""Instruments: cells by family and labels, sources, limits."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.cells import SummaryValue
from fastvideo.observability.metrics.families import FAMILIES, Family

FAMILY_LIST = (
    Family("a_total", "counter", "Counts", ("kind",), (), (("x",),)),
    Family("b", "gauge", "Goes up and down", ("kind",)),
    Family("c_seconds", "histogram", "Durations", (), (1.0, 2.0), ((),)),
    Family("d_seconds", "summary", "Durations", ("region",), (), (("known",),)),
)
SMALL = {family.name: family for family in FAMILY_LIST}


def series(instruments: Instruments) -> dict[str, dict[tuple[str, ...], Any]]:
    """Returns all values by family and labels."""
    return {s.family.name: dict(s.series) for s in instruments.snapshot()}


def test_declared_series_exist_at_zero() -> None:
    """Before anything happens, the snapshot holds what the families declare, and no more."""
    found = series(Instruments())
    expected = {f.name: set(f.initial) for f in FAMILIES.values() if f.initial}
    assert {name: set(values) for name, values in found.items()} == expected
    assert found["fastvideo_training_steps_total"] == {(): 0.0}
    assert found["fastvideo_region_duration_seconds"]["training_forward",] == SummaryValue(0, 0.0)


def test_the_same_labels_give_the_same_cell() -> None:
    """A cell can be asked for again, by labels of any type."""
    instruments = Instruments(SMALL)
    assert instruments.counter("a_total", 7) is instruments.counter("a_total", "7")
    instruments.counter("a_total", 7).add(2)
    assert series(instruments)["a_total"] == {("x",): 0.0, ("7",): 2.0}


def test_a_touched_series_exists_at_zero() -> None:
    """Asking for a cell is enough for its series to be there."""
    instruments = Instruments()
    instruments.histogram("fastvideo_training_step_duration_seconds", "generator")
    value = series(instruments)["fastvideo_training_step_duration_seconds"]["generator",]
    assert (value.count, len(value.counts)) == (0, 57)


def test_invented_label_values_end_in_other(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand names make a hundred series and one more, lose no count, and warn once."""
    instruments = Instruments(SMALL)
    for number in range(1000):
        instruments.counter("a_total", f"invented-{number}").add()
    values = series(instruments)["a_total"]
    assert len(values) == 101
    assert values["other",] == 1000 - 99
    assert sum(values.values()) == 1000
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "a_total has 100 series" in caplog.text


def test_invented_regions_of_a_source_end_in_other() -> None:
    """The limit holds for sources as well, and what is over it is added up."""
    instruments = Instruments(SMALL, max_series_per_family=10)
    instruments.summary_source("d_seconds", lambda: [((f"r{n}",), 1, 2.0) for n in range(1000)])
    values = series(instruments)["d_seconds"]
    assert len(values) == 11
    assert values["other",] == SummaryValue(991, 1982.0)
    assert series(instruments)["d_seconds"] == values


def test_label_values_are_bounded_and_printable() -> None:
    """Long texts are cut and lone surrogates replaced, so no label can spoil the page."""
    instruments = Instruments(SMALL)
    instruments.gauge("b", "x" * 10_000).set(1)
    instruments.gauge("b", "\ud800").set(1)
    assert list(series(instruments)["b"]) == [("x" * 256,), ("?",)]


def test_sources_add_to_cells_and_to_each_other() -> None:
    """A counter may be fed by cells and several sources; a gauge's last source wins."""
    instruments = Instruments(SMALL)
    instruments.counter("a_total", "x").add(1)
    instruments.counter_source("a_total", lambda: [(("x",), 10.0), (("y",), 5)])
    instruments.counter_source("a_total", lambda: [(("x",), 100.0)])
    instruments.gauge("b", "x").set(1)
    instruments.gauge_source("b", lambda: [(("x",), 7.0)])
    instruments.summary("d_seconds", "known").observe(3.0)
    instruments.summary_source("d_seconds", lambda: [(("known",), 2, 4.0)])
    found = series(instruments)
    assert found["a_total"] == {("x",): 111.0, ("y",): 5.0}
    assert found["b"] == {("x",): 7.0}
    assert found["d_seconds"] == {("known",): SummaryValue(3, 7.0)}


@pytest.mark.parametrize(
    "read",
    [
        lambda: 1 / 0,
        lambda: [("x", 1.0)],
        lambda: [(("x", "y"), 1.0)],
        lambda: [(("x",),)],
        lambda: None,
        lambda: (pair for pair in [(("x",), 1.0), 1 / 0]),
    ],
)
def test_a_source_that_raises_loses_its_own_family_only(
    read: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are served, it is counted at each scrape, and said once."""
    instruments = Instruments()
    instruments.counter("fastvideo_training_errors_total", "RuntimeError").add(3)
    instruments.counter_source("fastvideo_training_errors_total", read)
    series(instruments)
    found = series(instruments)
    assert "fastvideo_training_errors_total" not in found
    assert found["fastvideo_training_steps_total"] == {(): 0.0}
    assert found["fastvideo_telemetry_sink_errors_total"]["metrics",] == 2
    assert len(caplog.records) == 1
    assert "fastvideo_training_errors_total is missing from scrapes" in caplog.text


def test_values_that_are_no_numbers_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The first such value of a family is one warning that names its type; None is none."""
    cell = Instruments(SMALL).gauge("b", "x")
    for value in (None, "text", "text"):
        cell.set(value)  # type: ignore[arg-type]
    assert len(caplog.records) == 1
    assert "type str cannot be counted by metric b" in caplog.text


def test_wrong_names_kinds_and_labels_are_errors() -> None:
    """The errors name what was given and what there is."""
    instruments = Instruments(SMALL)
    with pytest.raises(ValueError, match=r"no metric 'a_totl'\. Did you mean 'a_total'\?"):
        instruments.counter("a_totl", "x")
    with pytest.raises(ValueError, match="'a_total' is a counter, not a gauge"):
        instruments.gauge("a_total", "x")
    with pytest.raises(ValueError, match=r"labels \['kind'\], but was given the values \(\)"):
        instruments.counter("a_total")
    with pytest.raises(ValueError, match="'b' is a gauge, not a summary"):
        instruments.summary_source("b", list)


def test_a_description_replaces_the_one_before() -> None:
    """What is learnt later does not leave two descriptions, which no query could join by."""
    instruments = Instruments()
    instruments.info("fastvideo_run_info", "run", "", "", 2)
    instruments.info("fastvideo_run_info", "run", "DMD2", "wan", 2)
    instruments.info("fastvideo_run_info", "run", "DMD2", "wan", 2)
    assert series(instruments)["fastvideo_run_info"] == {("run", "DMD2", "wan", "2"): 1.0}
    with pytest.raises(ValueError, match="is a counter, not a gauge"):
        instruments.info("fastvideo_training_steps_total")


def test_two_instruments_share_nothing() -> None:
    """A second set-up begins at zero and collides with nothing."""
    first, second = Instruments(), Instruments()
    first.counter("fastvideo_training_steps_total").add()
    assert series(second)["fastvideo_training_steps_total"] == {(): 0.0}


def test_importing_the_metrics_loads_no_client_library() -> None:
    """prometheus_client and the OpenTelemetry SDK are loaded by those who use them."""
    code = (
        "import sys\n"
        "from fastvideo.observability.metrics import accumulators, collector, server, otlp\n"
        "from fastvideo.observability.metrics import targets, web_config\n"
        "heavy = {'prometheus_client', 'opentelemetry.sdk', 'opentelemetry.proto', 'yaml'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
