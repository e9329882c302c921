"""What telemetry costs a whole training step, paired: the same step with it on and off.

A small model trains on the CPU; the step has the regions of the trainer, 32 entries in all. Steps
with telemetry and without take turns, and the difference is taken pair by pair. With it: metrics
are served and scraped four times a second, and every step (or every tenth) leaves its spans in a
file. The share is given for a step of 100 ms; how cost grows with regions per step as well.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
import urllib.request
from typing import TYPE_CHECKING

import torch
from _harness import Ratio, parse_arguments, report

from fastvideo import observability
from fastvideo.observability import TelemetryConfig
from fastvideo.profiler import profiler_region
from fastvideo.profiler.region import get_clock, set_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PAIRS = 400
_STEP_S = 0.1
_CHILDREN = (
    "training_dataloader",
    "training_forward",
    "training_backward",
    "training_optimizer",
    "training_callbacks",
)


def make_step(entries: int) -> Callable[[int], float]:
    """Returns one step of a small model, with ``entries`` entries of regions; it times itself."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inner = entries - len(_CHILDREN) - 1
    batch = torch.randn(16, 64)

    def step(number: int) -> float:
        began = time.perf_counter()
        with profiler_region("training_train_one_step", step=number, step_kind="critic"):
            with profiler_region("training_dataloader"):
                data = batch
            with profiler_region("training_forward"):
                for _ in range(inner):
                    with profiler_region("distillation_student_forward"):
                        pass
                loss = model(data).square().mean()
            with profiler_region("training_backward"):
                loss.backward()
            with profiler_region("training_optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            with profiler_region("training_callbacks"):
                pass
        return time.perf_counter() - began

    return step


@contextlib.contextmanager
def scraped(url: str | None) -> Iterator[None]:
    """Scrapes four times a second, as nobody does in earnest."""
    ended = threading.Event()

    def scrape() -> None:
        while url is not None and not ended.wait(0.25):
            with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - ours
                response.read()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def paired(entries: int, ratio_of_steps: float, pairs: int) -> list[float]:
    """Returns the seconds that telemetry added to a step, pair by pair."""
    with tempfile.TemporaryDirectory() as directory:
        telemetry = observability.start(
            TelemetryConfig.from_sources(
                {
                    "FASTVIDEO_METRICS_PORT": "0",
                    "FASTVIDEO_SPAN_DIR": directory if ratio_of_steps else "",
                    "OTEL_TRACES_SAMPLER": "traceidratio",
                    "OTEL_TRACES_SAMPLER_ARG": str(ratio_of_steps),
                }
            )
        )
        clock = get_clock()
        step = make_step(entries)
        differences = []
        with scraped(telemetry.metrics_url):
            for number in range(pairs):
                times = {}
                for on in (True, False) if number % 2 else (False, True):
                    set_clock(clock if on else None)
                    times[on] = step(number)
                differences.append(times[True] - times[False])
        telemetry.shutdown()
    return differences[pairs // 10 :]


def main() -> None:
    """Measures and reports."""
    arguments = parse_arguments("Cost of telemetry per step.", rounds=_PAIRS)
    ratios, seconds = [], {}
    for entries in (8, 32, 128):
        for share in (0.0, 0.1, 1.0):
            name = f"{entries} regions, " + (
                f"spans of {share:.0%} of the steps" if share else "metrics"
            )
            added = paired(entries, share, arguments.rounds)
            seconds[name] = added
            low, middle, high = statistics.quantiles(added, n=4)
            goal = 0.001 if entries == 32 else None  # noqa: PLR2004 - the step of the goal
            ratios.append(
                Ratio(
                    name, "a step of 100 ms", middle / _STEP_S, low / _STEP_S, high / _STEP_S, goal
                )
            )
    report(
        "Cost of telemetry per step, as a share of a step of 100 ms",
        ratios,
        seconds=seconds,
        json_path=arguments.json,
        loops=arguments.rounds,
    )


if __name__ == "__main__":
    main()
