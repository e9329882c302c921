"""What a collector that is gone, silent, slow or refusing costs: step times, and the end.

Step times: one process trains a small model in regions, every step sampled, in short blocks that
take turns in random order: spans go to a healthy collector, to a broken one, to a second healthy
one (how much two equal cases differ here), or are made and not exported. Each has a pipeline of
its own that lasts for the whole run, so a broken one is full most of the time. The collectors are
another process. Told of each:

- percentiles of the step time, as it was, and without the time in which the training thread waited
  for a core, which is what a shared machine does to it and what makes a 99th percentile swing;
- how long that thread was blocked, on a lock or the interpreter's: all that an exporter can do to
  it but for taking its core; and how often it was switched;
- the CPU seconds of the other threads, which is how much of a core they take.

Ratios have intervals of 95 %, the two healthy collectors together being 1; ``resolves_goal`` says
whether an interval lies on one side of the goal even when it is made wider by how much the two
healthy ones differ from each other.

The end: a process has 1500 spans queued, and ends. Its peer is the SDK's own batch processor and
exporter with their defaults, torch imported in both, beside a process that has nothing to send.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from _collectors import collectors
from _harness import environment, measure, ratio, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from _blocks import Block, Estimate

    from fastvideo.observability import Telemetry
    from fastvideo.observability.tracing.records import SpanRecord, StepSpans

_HEALTHY: Final = "healthy"
_AGAIN: Final = "healthy again"
_NOT_EXPORTED: Final = "not exported"
_BROKEN: Final = ("refusing", "silent", "unavailable")
_FAULTS: Final = ("refusing", "silent", "slow", "unavailable")
_CASES: Final = (_HEALTHY, _AGAIN, *_FAULTS, _NOT_EXPORTED)
_NOTHING: Final = "exit, nothing queued"
_ROUNDS: Final = 24
_STEPS: Final = 100
_UNMEASURED: Final = 10
_LAYERS: Final = 26
_WIDTH: Final = 192
_SAMPLES: Final = 64
_DELAY_MS: Final = 200
_REST_S: Final = 0.5  # the slow collector gets what is queued
_QUEUED: Final = 1500
_P99: Final = 0.99
_GOAL: Final = 1.02
_EXIT_GOAL_S: Final = 2.0
_P99_FIGURE: Final = "p99"
_UNDISTURBED: Final = "p99 without waits for a core"
_BLOCKING: Final = "p99 of being blocked, added to a median step"
_BLOCKED: Final = "blocked, difference in microseconds"
_COLUMNS: Final = (
    "p50",
    "p99",
    "p99 with core",
    "p99 own CPU",
    "blocked mean",
    "blocked p99",
    "others' CPU",
    "voluntary",
    "involuntary",
)


class NotExported:
    """Takes spans as a pipeline does, and forgets them."""

    def submit_step(self, spans: StepSpans) -> None:
        """Forgets a step."""

    def submit(self, record: SpanRecord) -> None:
        """Forgets a span."""

    def flush(self, timeout_s: float) -> bool:
        """Has nothing to wait for."""
        del timeout_s
        return True

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """Has nothing to end."""


def make_step() -> Callable[[int], None]:
    """Returns one step of a small model on one thread, with 32 entries of regions."""
    import torch  # noqa: PLC0415 - cases of the exit decide themselves what they import

    from fastvideo.profiler import profiler_region  # noqa: PLC0415

    layers = torch.nn.ModuleList(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    batch = torch.randn(_SAMPLES, _WIDTH)

    def step(number: int) -> None:
        with profiler_region("training_train_one_step", step=number):
            with profiler_region("training_dataloader"):
                data = batch
            with profiler_region("training_forward"):
                for layer in layers:
                    with profiler_region("distillation_student_forward"):
                        data = torch.tanh(layer(data))
                loss = data.square().mean()
            with profiler_region("training_backward"):
                torch.autograd.backward(loss)
            with profiler_region("training_optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            with profiler_region("training_callbacks"):
                pass

    return step


@contextlib.contextmanager
def pipelines() -> Iterator[tuple[Telemetry, dict[str, Any]]]:
    """Starts telemetry and a pipeline of spans for each case; gives both."""
    from fastvideo import observability  # noqa: PLC0415
    from fastvideo.observability import TelemetryConfig  # noqa: PLC0415
    from fastvideo.observability.tracing.settings import TraceSettings  # noqa: PLC0415
    from fastvideo.observability.tracing.worker import SpanPipeline  # noqa: PLC0415

    def settings(endpoint: str) -> dict[str, str]:
        return {
            "FASTVIDEO_METRICS_PORT": "0",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": str(_DELAY_MS),
        }

    with collectors((_HEALTHY, _AGAIN, *_FAULTS)) as endpoints:
        telemetry = observability.start(TelemetryConfig.from_sources(settings(endpoints[_HEALTHY])))
        cases: dict[str, Any] = {_NOT_EXPORTED: NotExported()}
        for case, endpoint in endpoints.items():
            cases[case] = SpanPipeline(
                TraceSettings.from_env(settings(endpoint)), telemetry.identity, count=_ignore
            )
            cases[case].start()
        own = telemetry._pipeline  # noqa: SLF001 - there is no public way to change it, nor need
        yield telemetry, cases
        telemetry._pipeline = own  # noqa: SLF001
        for pipeline in cases.values():
            pipeline.shutdown(0.2)
        telemetry.shutdown()


def measure_steps(rounds: int, steps: int, longest_s: float) -> dict[str, list[Block]]:
    """Returns the blocks of each case, one for each round that fits into the time there is."""
    import torch  # noqa: PLC0415
    from _blocks import run_block  # noqa: PLC0415

    torch.set_num_threads(1)
    logging.getLogger("fastvideo").addHandler(logging.NullHandler())
    blocks: dict[str, list[Block]] = {case: [] for case in _CASES}
    step, order, number = make_step(), list(_CASES), 0
    with pipelines() as (telemetry, cases):
        gc.collect()
        gc.freeze()  # collecting what imports have left takes longer than a step
        deadline = time.monotonic() + longest_s
        for count in range(-1, rounds):
            if count > 1 and time.monotonic() > deadline:  # a machine that is busy takes longer
                break
            random.shuffle(order)
            for case in order:
                telemetry._pipeline = cases[case]  # noqa: SLF001
                block = run_block(
                    step,
                    number,
                    steps=steps,
                    unmeasured=_UNMEASURED,
                    rest_s=_REST_S,
                )
                number += steps + _UNMEASURED
                if count >= 0:
                    blocks[case].append(block)
    return blocks


def compare(blocks: dict[str, list[Block]]) -> dict[str, dict[str, Estimate]]:
    """Returns how each case compares with both healthy collectors, figure by figure."""
    from _blocks import (  # noqa: PLC0415
        mean_difference,
        mean_ratio,
        percentile,
        percentile_ratio,
    )

    times = {case: seconds_of(of) for case, of in blocks.items()}
    healthy, again = times[_HEALTHY], times.pop(_AGAIN)
    both = {name: _beside(healthy[name], again[name]) for name in healthy}
    median_s = percentile(both["had core"], 0.5)
    times[_HEALTHY] = again  # which says how much equal cases differ here
    compared = {}
    for case, of in times.items():
        against = healthy if case == _HEALTHY else both
        goal = _GOAL if case in _FAULTS else None
        compared[case] = {
            _P99_FIGURE: percentile_ratio(of["wall"], against["wall"], _P99, goal),
            _UNDISTURBED: percentile_ratio(of["had core"], against["had core"], _P99, goal),
            _BLOCKING: percentile_ratio(
                median_s + of["blocked"], median_s + against["blocked"], _P99, goal
            ),
            "p50": percentile_ratio(of["wall"], against["wall"], 0.5),
            "p99 of its own CPU": percentile_ratio(of["cpu"], against["cpu"], _P99),
            "CPU of other threads": mean_ratio(of["others"], against["others"], goal),
            _BLOCKED: mean_difference(of["blocked"] * 1e6, against["blocked"] * 1e6),
        }
    for case in _FAULTS:
        for figure, estimate in compared[case].items():
            floor = abs(compared[_HEALTHY][figure].value - 1)
            compared[case][figure] = dataclasses.replace(estimate, floor=floor)
    return compared


def seconds_of(blocks: list[Block]) -> dict[str, Any]:
    """Returns tensors of seconds, [rounds, steps], by what they are."""
    from _blocks import stack  # noqa: PLC0415

    wall, cpu = stack([b.wall_s for b in blocks]), stack([b.cpu_s for b in blocks])
    had_core = wall - stack([b.core_s for b in blocks])
    return {
        "wall": wall,
        "had core": had_core,
        "cpu": cpu,
        "blocked": had_core - cpu,
        "others": stack([[b.others_s] for b in blocks]),
    }


def _beside(first: Any, second: Any) -> Any:  # noqa: ANN401 - tensors; torch is imported late
    import torch  # noqa: PLC0415

    return torch.cat([first, second], dim=1)


def print_steps(blocks: dict[str, list[Block]], compared: dict[str, dict[str, Estimate]]) -> None:
    """Prints what was measured of each case, and how it compares."""
    count = sum(len(block.wall_s) for block in blocks[_HEALTHY])
    print(f"Steps: {len(blocks[_HEALTHY])} blocks, {count} steps of each case; milliseconds a step")
    widths = [max(9, len(head) + 2) for head in _COLUMNS]
    print(_row("", _COLUMNS, widths))
    for case, of in blocks.items():
        print(_row(case, _cells(of, count), widths))
    print("\nBoth healthy collectors together being 1, with intervals of 95 %")
    for name in next(iter(compared.values())):
        print(name)
        for case, of_case in compared.items():
            shown = f"{_AGAIN}, {_HEALTHY} being 1" if case == _HEALTHY else case
            print(f"    {shown:34}{_shown(of_case[name])}")


def _cells(blocks: list[Block], count: int) -> list[str]:
    from _blocks import percentile  # noqa: PLC0415

    times = {name: seconds * 1e3 for name, seconds in seconds_of(blocks).items()}
    figures = [
        percentile(times["wall"], 0.5),
        percentile(times["wall"], _P99),
        percentile(times["had core"], _P99),
        percentile(times["cpu"], _P99),
        times["blocked"].mean(),
        percentile(times["blocked"], _P99),
        times["others"].mean(),
    ]
    switches = [sum(b.voluntary for b in blocks), sum(b.involuntary for b in blocks)]
    return [f"{float(f):.3f}" for f in figures] + [f"{number / count:.2f}" for number in switches]


def _row(case: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{case:14}" + "".join(padded)


def _shown(estimate: Estimate) -> str:
    goal = "" if estimate.goal is None else f"   goal <= {estimate.goal:g}: {estimate.verdict}"
    return f"{estimate.value:9.3f}   {estimate.low:.3f}..{estimate.high:.3f}{goal}"


def run_exit(case: str, behaviour: str) -> float:
    """Ends a process with spans queued; returns the seconds from its last line to its end."""
    with collectors([behaviour]) as endpoints:
        done = subprocess.run(
            [sys.executable, __file__, "--case", case],
            env={**os.environ, **_exit_environment(endpoints[behaviour])},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
        return time.time() - float(json.loads(done.stdout.splitlines()[-1])["ended"])


def _exit_environment(endpoint: str) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "500",
    }


def exit_case() -> None:
    """Queues spans and ends."""
    from _span_steps import make_identity, make_step  # noqa: PLC0415 - the case's own process

    from fastvideo.observability.tracing.settings import TraceSettings  # noqa: PLC0415
    from fastvideo.observability.tracing.worker import SpanPipeline  # noqa: PLC0415

    identity = make_identity()
    pipeline = SpanPipeline(TraceSettings.from_env(os.environ), identity, count=_ignore)
    pipeline.start()
    queued = _QUEUED if sys.argv[2] == "exit" else 0
    for step in range(queued // 30):
        pipeline.submit_step(make_step(step, identity))
    print(json.dumps({"ended": time.time()}), flush=True)


def sdk_exit_case() -> None:
    """Queues as many spans with the SDK, and ends."""
    import torch  # noqa: F401, PLC0415 - whose own end takes time, as in the other cases
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("benchmark")
    for _ in range(_QUEUED):
        tracer.start_span("training_forward").end()
    print(json.dumps({"ended": time.time()}), flush=True)


def _ignore(outcome: str, reason: str, spans: int) -> None:
    """Counts nothing."""


def exit_time(case: str, behaviour: str) -> Callable[[], float]:
    """Returns a case of the harness."""
    return lambda: run_exit(case, behaviour)


def measure_exits(exits: int, sdk_exits: int) -> dict[str, list[float]]:
    """Returns the seconds of every exit, by case."""
    ours = {_NOTHING: exit_time("exit_empty", "refusing")}
    ours |= {f"exit, {b}": exit_time("exit", b) for b in _BROKEN}
    ends = measure(ours, rounds=exits, warm_up=0)
    sdk = {f"SDK exit, {b}": exit_time("sdk_exit", b) for b in _BROKEN}
    return ends | measure(sdk, rounds=sdk_exits, warm_up=0)


def parse() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Step times and exit with a dead collector.")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="blocks of each case; 0: none")
    parser.add_argument("--steps", type=int, default=_STEPS, help="measured steps of a block")
    parser.add_argument("--seconds", type=float, default=200.0, help="no more rounds after that")
    parser.add_argument("--exits", type=int, default=3, help="exits of each case; 0: none")
    parser.add_argument("--sdk-exits", type=int, default=1, help="of the SDK, 30 s the longest")
    parser.add_argument("--json", type=Path, help="file that receives the results")
    return parser.parse_args()


def main() -> None:
    """Measures and reports."""
    arguments = parse()
    results: dict[str, object] = {"command": sys.argv, "environment": environment()}
    if arguments.rounds:
        blocks = measure_steps(arguments.rounds, arguments.steps, arguments.seconds)
        compared = compare(blocks)
        print_steps(blocks, compared)
        results["blocks"] = {c: [dataclasses.asdict(b) for b in of] for c, of in blocks.items()}
        results["ratios"] = {
            case: {name: dataclasses.asdict(e) | {"verdict": e.verdict} for name, e in of.items()}
            for case, of in compared.items()
        }
        results["resolves_goal"] = {
            case: {f: compared[case][f].resolved for f in (_P99_FIGURE, _UNDISTURBED, _BLOCKING)}
            for case in _FAULTS
        }
    if arguments.exits:
        report_exits(measure_exits(arguments.exits, arguments.sdk_exits), results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results) + "\n", encoding="utf-8")


def report_exits(ends: dict[str, list[float]], results: dict[str, object]) -> None:
    """Prints how long processes took to end, and adds it to the results."""
    medians = {case: [statistics.median(seconds)] for case, seconds in ends.items() if seconds}
    ratios = [
        ratio(medians, f"exit, {b}", f"SDK exit, {b}")
        for b in _BROKEN
        if f"SDK exit, {b}" in medians
    ]
    longest = max(max(ends[f"exit, {b}"]) for b in _BROKEN)
    print()
    for case, seconds in ends.items():
        if seconds:
            middle, most = statistics.median(seconds), max(seconds)
            print(f"{case:24} {middle:6.2f} s, at most {most:.2f} s of {len(seconds)}")
    empty = statistics.median(ends[_NOTHING])
    added = max(statistics.median(ends[f"exit, {b}"]) for b in _BROKEN) - empty
    print(f"the longest median is {added:.2f} s more than with nothing queued")
    print(f"goal <= {_EXIT_GOAL_S:g} s: {'met' if longest <= _EXIT_GOAL_S else 'MISSED'}")
    if ratios:
        report("Time to exit, the SDK's being 1", ratios, seconds=ends, json_path=None)
    results |= {
        "exits_s": ends,
        "longest_exit_s": longest,
        "exit_goal_s": _EXIT_GOAL_S,
        "added_s": added,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        {"exit": exit_case, "exit_empty": exit_case, "sdk_exit": sdk_exit_case}[sys.argv[2]]()
    else:
        main()
