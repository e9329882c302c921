"""What telemetry costs a whole training step, paired: the same step with it on and off.

A small model trains on the CPU; the step has the regions of the trainer, 32 entries in all. Steps
with telemetry and without take turns, and the difference is taken pair by pair. With it: metrics
are served and scraped four times a second, and every step (or every tenth) leaves its spans in a
file. The share is given for a step of 100 ms; how cost grows with regions per step as well.

Three figures each: what a step takes longer, which a busy machine disturbs; what it takes more of
the training thread's own time; and what the threads that build and write spans take, per step. The
last two together are the most that a step can be longer, where those threads always hold the
interpreter lock while the training thread wants it.
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


def make_step(entries: int) -> Callable[[int], tuple[float, float]]:
    """Returns one step of a small model, with ``entries`` entries of regions.

    It returns what it took, in seconds: by the wall clock, and of its thread's time.
    """
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inner = entries - len(_CHILDREN) - 1
    batch = torch.randn(16, 64)

    def step(number: int) -> tuple[float, float]:
        began, thread_began = time.perf_counter(), time.thread_time()
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
        return time.perf_counter() - began, time.thread_time() - thread_began

    return step


def span_threads() -> float:
    """Returns the time that the threads took which build, encode and write spans, in seconds."""
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.name.startswith("fastvideo-spans") and thread.ident is not None
    )


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


def paired(entries: int, ratio_of_steps: float, pairs: int) -> dict[str, list[float]]:
    """Returns the seconds that telemetry added to a step, pair by pair, by who spends them."""
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
        added: dict[str, list[float]] = {"": [], ", training thread": []}
        before = span_threads()
        with scraped(telemetry.metrics_url):
            for number in range(pairs):
                times = {}
                for on in (True, False) if number % 2 else (False, True):
                    set_clock(clock if on else None)
                    times[on] = step(number)
                for values, more, less in zip(
                    added.values(), times[True], times[False], strict=True
                ):
                    values.append(more - less)
        telemetry.flush(10.0)
        spent = (span_threads() - before) / pairs
        telemetry.shutdown()
    result = {who: values[pairs // 10 :] for who, values in added.items()}
    if ratio_of_steps:
        result[", span threads"] = [spent, spent]
    return result


def main() -> None:
    """Measures and reports."""
    arguments = parse_arguments("Cost of telemetry per step.", rounds=_PAIRS)
    ratios, seconds = [], {}
    for entries in (8, 32, 128):
        for share in (0.0, 0.1, 1.0):
            name = f"{entries} regions, " + (
                f"spans of {share:.0%} of the steps" if share else "metrics"
            )
            for who, added in paired(entries, share, arguments.rounds).items():
                seconds[name + who] = added
                quartiles = statistics.quantiles(added, n=4, method="inclusive")
                low, middle, high = [quartile / _STEP_S for quartile in quartiles]
                # The goal is set for this number of regions.
                goal = 0.001 if entries == 32 and not who else None  # noqa: PLR2004
                ratios.append(Ratio(name + who, "a step of 100 ms", middle, low, high, goal))
    report(
        "Cost of telemetry per step, as a share of a step of 100 ms",
        ratios,
        seconds=seconds,
        json_path=arguments.json,
        loops=arguments.rounds,
    )


if __name__ == "__main__":
    main()
