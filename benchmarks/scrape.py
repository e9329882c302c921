"""What a scrape of a trainer costs, and what the training thread feels of it.

A trainer with 32 regions, two kinds of steps and twenty logged scalars is scraped in the text
format, in OpenMetrics with exemplars, gzipped, and over HTTP. Beside it, in the same rounds,
prometheus_client serves the same regions the usual way, as histograms of its own, and renders our
numbers through its collector interface. Rendering is measured in processor time, which is what it
takes from the interpreter; the scrape over HTTP in passed time. The longest pause is that of a
thread which does nothing but look at the clock while one scrape runs, the median of nine: what the
interpreter lock does to a training thread.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import threading
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, cast

from _harness import measure, parse_arguments, ratio, report
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics import exposition as openmetrics

from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.collector import InstrumentsCollector, private_registry
from fastvideo.observability.metrics.exposition import expose
from fastvideo.observability.metrics.families import FAMILIES
from fastvideo.observability.metrics.server import MetricsServer
from fastvideo.observability.metrics.text_format import TextRenderer

if TYPE_CHECKING:
    from collections.abc import Callable

REGIONS = 32
MORE_REGIONS = (128, 512)
LABELS = {"rank": "0", "run": "benchmark"}
STEP = "fastvideo_training_step_duration_seconds"
REGION = "fastvideo_region_duration_seconds"
GOAL_S = 0.005
PAUSES = 9
PEER = "prometheus_client histograms"


def trainer(regions: int) -> Instruments:
    """Returns the numbers of a trainer."""
    instruments = Instruments(max_series_per_family=regions + 100)
    known = len(FAMILIES[REGION].initial)
    for kind in ("generator", "critic"):
        steps = instruments.histogram(STEP, kind)
        for number in range(100):
            steps.observe(0.01 * 1.12**number, "ab" * 16, "cd" * 8)
    for number in range(10):
        instruments.gauge("fastvideo_training_loss", f"loss_{number}").set(0.1)
        instruments.gauge("fastvideo_training_metric", f"metric_{number}").set(0.1)
    rows = [((f"region_{number}",), 1000, 12.5) for number in range(regions - known)]
    instruments.summary_source(REGION, lambda: rows)
    return instruments


def histograms(regions: int) -> CollectorRegistry:
    """Returns what a trainer that uses prometheus_client as its manual says would have."""
    registry = CollectorRegistry()
    family = Histogram("region_seconds", "Time in a region", ["region", *LABELS], registry=registry)
    for number in range(regions):
        family.labels(region=f"region_{number}", **LABELS).observe(0.1)
    steps = Histogram(
        "step_seconds",
        "Duration of a step",
        ["step_kind", *LABELS],
        buckets=FAMILIES[STEP].buckets,
        registry=registry,
    )
    for kind in ("generator", "critic"):
        for number in range(100):
            exemplar = {"trace_id": "ab" * 16, "span_id": "cd" * 8}
            steps.labels(step_kind=kind, **LABELS).observe(0.01 * 1.12**number, exemplar)
    return registry


def timed(scrape: Callable[[], object]) -> Callable[[], float]:
    """Returns a case that measures the processor time of one scrape."""

    def case() -> float:
        start = thread_time()
        scrape()
        return thread_time() - start

    return case


def awaited(scrape: Callable[[], object]) -> Callable[[], float]:
    """Returns a case that measures how long one scrape takes."""

    def case() -> float:
        start = perf_counter()
        scrape()
        return perf_counter() - start

    return case


def pause(scrape: Callable[[], object]) -> Callable[[], float]:
    """Returns a case that measures the longest pause of a busy thread beside a scrape."""

    def once() -> float:
        longest = 0.0
        runs, is_over = threading.Event(), threading.Event()

        def train() -> None:
            nonlocal longest
            runs.set()
            last = perf_counter()
            while not is_over.is_set():
                now = perf_counter()
                longest = max(longest, now - last)
                last = now

        thread = threading.Thread(target=train)
        thread.start()
        runs.wait()
        scrape()
        is_over.set()
        thread.join()
        return longest

    return lambda: statistics.median(once() for _ in range(PAUSES))


def over_http(address: tuple[str, int]) -> Callable[[], object]:
    """Returns a scrape as Prometheus does it."""
    headers = {"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"}

    def scrape() -> object:
        connection = http.client.HTTPConnection(*address)
        connection.request("GET", "/metrics", headers=headers)
        body = connection.getresponse().read()
        connection.close()
        return body

    return scrape


def page_of(regions: int) -> Callable[[], bytes]:
    """Returns what renders our page in OpenMetrics."""
    renderer = TextRenderer(trainer(regions), LABELS)
    return lambda: renderer.render(openmetrics=True)


def peer_page_of(regions: int) -> Callable[[], bytes]:
    """Returns what renders the page of prometheus_client's histograms in OpenMetrics."""
    registry = histograms(regions)
    return lambda: cast(bytes, openmetrics.generate_latest(registry))  # type: ignore[no-untyped-call]


def all_cases(address: tuple[str, int], instruments: Instruments) -> dict[str, Callable[[], float]]:
    """Returns everything that is measured."""
    renderer = TextRenderer(instruments, LABELS)
    registry = private_registry(InstrumentsCollector(instruments, LABELS))
    gzipped = {"accept": "application/openmetrics-text", "accept_encoding": "gzip"}
    cases = {
        PEER: timed(peer_page_of(REGIONS)),
        "text": timed(lambda: renderer.render(openmetrics=False)),
        "OpenMetrics": timed(page_of(REGIONS)),
        "OpenMetrics, gzipped": timed(lambda: expose(renderer, **gzipped)),
        "OpenMetrics, gzipped, over HTTP": awaited(over_http(address)),
        "our numbers, rendered by prometheus_client": timed(
            lambda: openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        ),
        f"pause, {PEER}": pause(peer_page_of(REGIONS)),
        "pause, OpenMetrics": pause(page_of(REGIONS)),
        "five milliseconds": lambda: GOAL_S,
    }
    for regions in MORE_REGIONS:
        cases[f"OpenMetrics, {regions} regions"] = timed(page_of(regions))
        cases[f"{PEER}, {regions} regions"] = timed(peer_page_of(regions))
    return cases


def main() -> int:
    """Measures and reports; returns 1 if a goal is missed."""
    arguments = parse_arguments(__doc__ or "", rounds=50)
    instruments = trainer(REGIONS)
    server = MetricsServer(InstrumentsCollector(instruments, LABELS), port=0)
    seconds = measure(all_cases(server.start(), instruments), rounds=arguments.rounds, warm_up=3)
    server.stop()
    over_the_wire = "OpenMetrics, gzipped, over HTTP"
    ratios = [
        ratio(seconds, over_the_wire, "five milliseconds", 1.0),
        *(ratio(seconds, case, PEER) for case in ("text", "OpenMetrics", "OpenMetrics, gzipped")),
        ratio(seconds, "our numbers, rendered by prometheus_client", PEER),
        ratio(seconds, "pause, OpenMetrics", f"pause, {PEER}"),
        *(
            ratio(seconds, f"OpenMetrics, {regions} regions", f"{PEER}, {regions} regions")
            for regions in MORE_REGIONS
        ),
    ]
    pages = {"OpenMetrics": page_of(REGIONS)(), PEER: peer_page_of(REGIONS)()}
    report(
        f"one scrape of a trainer with {REGIONS} regions; the first line is in units of 5 ms",
        ratios,
        seconds=seconds,
        json_path=arguments.json,
        bytes={name: len(page) for name, page in pages.items()},
        lines={name: page.count(b"\n") for name, page in pages.items()},
    )
    return 0 if all(r.met is not False for r in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
