"""The text formats, held beside what prometheus_client makes of the same numbers."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import exposition, parser
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.openmetrics import parser as openmetrics_parser

from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.collector import InstrumentsCollector, private_registry
from fastvideo.observability.metrics.families import FAMILIES, Family
from fastvideo.observability.metrics.text_format import TextRenderer, number_text

if TYPE_CHECKING:
    from collections.abc import Iterable

CONSTANT = {"rank": "0", "run": "run-1"}


def _plain(families: Iterable[Any]) -> list[Any]:
    """Returns parsed families in a form that compares NaN as equal."""
    return [
        (f.name, f.type, f.documentation, [(s.name, s.labels, str(s.value)) for s in f.samples])
        for f in families
    ]


def _exemplars(families: Iterable[Any]) -> list[Any]:
    return [
        (s.labels["le"], s.exemplar.labels, s.exemplar.value, float(s.exemplar.timestamp))
        for f in families
        for s in f.samples
        if s.exemplar
    ]


def test_the_text_format_equals_that_of_prometheus_client(instruments: Instruments) -> None:
    """Parsed, both pages say the same, for every family and label."""
    ours = TextRenderer(instruments, CONSTANT).render(openmetrics=False).decode()
    theirs = exposition.generate_latest(
        private_registry(InstrumentsCollector(instruments, CONSTANT))
    ).decode()
    expected = _plain(parser.text_string_to_metric_families(theirs))
    assert _plain(parser.text_string_to_metric_families(ours)) == expected
    assert len(expected) >= 20


def test_openmetrics_equals_that_of_prometheus_client(instruments: Instruments) -> None:
    """The stricter parser of OpenMetrics reads both, and finds the same, exemplars included."""
    ours = TextRenderer(instruments, CONSTANT).render(openmetrics=True).decode()
    theirs = openmetrics_exposition.generate_latest(
        private_registry(InstrumentsCollector(instruments, CONSTANT))
    ).decode()
    parse = openmetrics_parser.text_string_to_metric_families
    assert _plain(parse(ours)) == _plain(parse(theirs))
    assert _exemplars(parse(ours)) == _exemplars(parse(theirs))
    assert ours.endswith("# EOF\n")


def test_exemplars_name_trace_span_value_and_time_of_observation(instruments: Instruments) -> None:
    """Only the buckets that saw a traced step carry an exemplar, and each scrape the same one."""
    renderer = TextRenderer(instruments, CONSTANT)
    first, second = (renderer.render(openmetrics=True).decode() for _ in range(2))
    trace = "0123456789abcdef" * 2
    assert first == second
    assert _exemplars(openmetrics_parser.text_string_to_metric_families(first)) == [
        ("0.5247", {"span_id": trace[:16], "trace_id": trace}, 0.5, 1790857026.25),
        ("+Inf", {"trace_id": trace}, 5000.0, 1790857026.25),
    ]


def test_the_text_format_has_no_exemplars(instruments: Instruments) -> None:
    """A Prometheus without OpenMetrics would refuse the whole page."""
    page = TextRenderer(instruments, CONSTANT).render(openmetrics=False)
    assert b" # {" not in page
    assert b"# EOF" not in page


def test_every_series_carries_the_constant_labels(instruments: Instruments) -> None:
    """Rank and run are on every line, whatever else is."""
    page = TextRenderer(instruments, CONSTANT).render(openmetrics=False).decode()
    samples = [line for line in page.splitlines() if not line.startswith("#")]
    assert len(samples) > 200
    assert all('rank="0"' in line and 'run="run-1"' in line for line in samples)


def test_help_and_labels_are_escaped() -> None:
    """Backslashes, quotes and line ends in texts do not break the page."""
    family = Family("a", "gauge", 'say "x\\y"\nnow', ("l",))
    instruments = Instruments({"a": family})
    instruments.gauge("a", 'v"\\\n').set(1)
    page = TextRenderer(instruments, {}).render(openmetrics=False).decode()
    assert page == '# HELP a say "x\\\\y"\\nnow\n# TYPE a gauge\na{l="v\\"\\\\\\n"} 1.0\n'
    page = TextRenderer(instruments, {}).render(openmetrics=True).decode()
    assert page.startswith('# HELP a say \\"x\\\\y\\"\\nnow\n')


def test_a_family_without_labels_has_no_braces() -> None:
    """Without constant labels either, a sample is name and number."""
    instruments = Instruments({"a_total": Family("a_total", "counter", "A", (), (), ((),))})
    page = TextRenderer(instruments, {}).render(openmetrics=True).decode()
    assert page == "# HELP a A\n# TYPE a counter\na_total 0.0\n# EOF\n"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0.0"), (1.5, "1.5"), (float("inf"), "+Inf"), (float("-inf"), "-Inf"), (1e20, "1e+20")],
)
def test_numbers(number: float, text: str) -> None:
    """Numbers are floats of full precision, and infinities are signed."""
    assert number_text(number) == text
    assert number_text(float("nan")) == "NaN"


def test_series_that_come_later_are_served(instruments: Instruments) -> None:
    """What is kept from earlier scrapes hides no new series."""
    renderer = TextRenderer(instruments, CONSTANT)
    before = renderer.render(openmetrics=False)
    instruments.counter("fastvideo_training_errors_total", "MyError").add()
    after = renderer.render(openmetrics=False)
    assert after.count(b"\n") == before.count(b"\n") + 1


def test_a_constant_label_must_not_hide_a_label() -> None:
    """A clash of labels is an error at start, not a wrong series later."""
    with pytest.raises(ValueError, match=r"fastvideo_training_loss.*'loss'"):
        InstrumentsCollector(Instruments(), {"loss": "x"})


def test_the_collector_serves_a_registry_of_the_program(instruments: Instruments) -> None:
    """A program that has a registry of its own can register the collector there."""
    registry = private_registry(InstrumentsCollector(instruments, CONSTANT))
    value = registry.get_sample_value
    assert value("fastvideo_training_steps_total", CONSTANT) == 3.0
    labels = CONSTANT | {"region": "training_forward"}
    assert value("fastvideo_region_duration_seconds_sum", labels) == 1.25
    labels = CONSTANT | {"step_kind": "generator", "le": "+Inf"}
    assert value("fastvideo_training_step_duration_seconds_bucket", labels) == 3.0


def test_multiprocess_mode_of_prometheus_client_changes_nothing(tmp_path: Any) -> None:
    """Somebody else's PROMETHEUS_MULTIPROC_DIR leaves the page as it is, and leaves no files."""
    code = (
        "import sys\n"
        "from fastvideo.observability.metrics.accumulators import Instruments\n"
        "from fastvideo.observability.metrics.collector import *\n"
        "from prometheus_client import generate_latest\n"
        "i = Instruments(); i.counter('fastvideo_training_steps_total').add(3)\n"
        "c = InstrumentsCollector(i, {'rank': '0'})\n"
        "sys.stdout.buffer.write(generate_latest(private_registry(c)))\n"
        "from fastvideo.observability.metrics.text_format import TextRenderer\n"
        "sys.stdout.buffer.write(TextRenderer(i, {'rank': '0'}).render(openmetrics=False))\n"
    )
    pages = [
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, check=True
        ).stdout
        for env in ({}, {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)})
    ]
    assert pages[0] == pages[1]
    assert b'fastvideo_training_steps_total{rank="0"} 3.0' in pages[0]
    assert list(tmp_path.iterdir()) == []


def test_series_of_a_rank_are_as_many_as_computed() -> None:
    """What a rank costs in Prometheus: the initial series, and 59 for each kind of step."""
    instruments = Instruments()
    instruments.histogram("fastvideo_training_step_duration_seconds", "generator")
    page = TextRenderer(instruments, CONSTANT).render(openmetrics=False).decode()
    lines = {"counter": 1, "gauge": 1, "summary": 2}
    expected = 59 + sum(
        len(f.initial) * (lines.get(f.kind) or len(f.buckets) + 3) for f in FAMILIES.values()
    )
    assert sum(not line.startswith("#") for line in page.splitlines()) == expected
