"""What measuring the device time of regions costs a training step on a CUDA device.

A step of about 100 ms launches matrix products in 32 regions. It is run bare, with a
:class:`DeviceTimer` around each region, with events made anew and waited for at the end of each
step, and with the usual clock between two synchronisations. A second table has what one entry
costs the thread that launches work, compared with two records of bare events.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
from _harness import measure, parse_arguments, ratio, report

from fastvideo.observability.metrics.device_time import DeviceTimer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_REGIONS = 32
_STEP_S = 0.1
_STEPS = 5
_ENTRIES = 500
_SIZE = 2048
_NAMES = tuple(f"region_{number}" for number in range(_REGIONS))


def timed_event() -> Any:  # noqa: ANN401 - torch.cuda.Event has no types
    """Returns a bare event."""
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Workload:
    """Matrix products, as many in each region as make a step take about 100 ms."""

    def __init__(self) -> None:
        self.a = torch.randn(_SIZE, _SIZE, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.a)
        self.products = 8
        for _ in range(3):
            seconds = self.run(self.bare)
            self.products = max(1, round(self.products * _STEP_S / seconds))

    def region(self) -> None:
        """Launches the work of one region."""
        for _ in range(self.products):
            torch.mm(self.a, self.a, out=self.out)

    def run(self, step: Callable[[], object]) -> float:
        """Returns the seconds of a step, over a few steps with one wait at the end."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(_STEPS):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / _STEPS

    def bare(self) -> None:
        """Runs a step that nobody measures."""
        for _ in _NAMES:
            self.region()

    def timed(self, timer: DeviceTimer) -> None:
        """Runs a step with the timer, drained once at its end as in training."""
        for name in _NAMES:
            token = timer.begin(name)
            self.region()
            timer.end(token)
        timer.drain()

    def waited_for(self, totals: dict[str, float]) -> None:
        """Runs a step with new events for each region, read at its end by waiting."""
        pairs: list[tuple[str, Any, Any]] = []
        for name in _NAMES:
            start = timed_event()
            end = timed_event()
            start.record()
            self.region()
            end.record()
            pairs.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in pairs:
            totals[name] = totals.get(name, 0.0) + start.elapsed_time(end)

    def synchronised(self, totals: dict[str, float]) -> None:
        """Runs a step with the host's clock between two synchronisations per region."""
        for name in _NAMES:
            torch.cuda.synchronize()
            began = time.perf_counter()
            self.region()
            torch.cuda.synchronize()
            totals[name] = totals.get(name, 0.0) + time.perf_counter() - began


def entry_cases(timer: DeviceTimer) -> dict[str, Callable[[], float]]:
    """Returns what one entry costs the launching thread, in seconds."""
    start = timed_event()
    end = timed_event()

    def per_entry(loop: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        timer.drain()
        began = time.perf_counter()
        loop()
        return (time.perf_counter() - began) / _ENTRIES

    def two_records() -> None:
        for _ in range(_ENTRIES):
            start.record()
            end.record()

    def timed() -> None:
        for _ in range(_ENTRIES):
            timer.end(timer.begin("entry"))

    return {
        "two records of events": lambda: per_entry(two_records),
        "entry with the timer": lambda: per_entry(timed),
    }


def drain_seconds(timer: DeviceTimer) -> float:
    """Returns what reading one finished entry costs, in seconds."""
    times = []
    for _ in range(20):
        for _ in range(_ENTRIES):
            timer.end(timer.begin("entry"))
        torch.cuda.synchronize()
        began = time.perf_counter()
        read = timer.drain()
        times.append((time.perf_counter() - began) / read)
    return statistics.median(times)


def main() -> int:
    """Measures and prints."""
    arguments = parse_arguments(__doc__ or "", rounds=15)
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device", file=sys.stderr)
        return 1
    timer = DeviceTimer()
    work = Workload()
    totals: dict[str, float] = {}
    cases: dict[str, Callable[[], float]] = {
        "bare step": lambda: work.run(work.bare),
        "step with the timer": lambda: work.run(lambda: work.timed(timer)),
        "step, events waited for": lambda: work.run(lambda: work.waited_for(totals)),
        "step, synchronised regions": lambda: work.run(lambda: work.synchronised(totals)),
    }
    steps = measure(cases, rounds=arguments.rounds)
    entries = measure(entry_cases(timer), rounds=arguments.rounds)
    goals = {"step with the timer": 1.001}
    ratios = [ratio(steps, case, "bare step", goals.get(case)) for case in list(cases)[1:]]
    ratios.append(ratio(entries, "entry with the timer", "two records of events"))
    more: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "step_s": statistics.median(steps["bare step"]),
        "entry_s": statistics.median(entries["entry with the timer"]),
        "drain_per_entry_s": drain_seconds(timer),
        "exhausted": timer.exhausted,
    }
    json_path: Path | None = arguments.json
    report(
        f"device time of {_REGIONS} regions per step",
        ratios,
        seconds=steps | entries,
        json_path=json_path,
        **more,
    )
    print(", ".join(f"{name} {value}" for name, value in more.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
