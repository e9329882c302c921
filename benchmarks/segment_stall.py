"""How long a kernel-trace segment holds up the training thread, besides what it records.

The peer is what people write: ``torch.profiler`` with ``tensorboard_trace_handler(use_gzip=True)``
and the table of ``key_averages``. Both record the same operators. Measured is the time from before
the region to its body, plus the time from the end of the body to behind the region.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from _harness import measure, parse_arguments, ratio, report
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

from fastvideo.profiler import profiler_region
from fastvideo.profiler.config import TorchProfilerConfig
from fastvideo.profiler.controller import TorchProfilerController
from fastvideo.profiler.export import SegmentExporter

if TYPE_CHECKING:
    from collections.abc import Callable

_EVENTS = 20_000
_GROWTH = (5_000, 20_000, 80_000)
_EVENTS_PER_LOOP = 6
_GOAL = 0.1
_EXPORT_S = 120.0


class Work:
    """Runs a number of operators, half of which are called by another one.

    Attributes:
        began: When the last run began, in seconds.
        ended: When it ended.
    """

    def __init__(self, events: int) -> None:
        self._loops = events // _EVENTS_PER_LOOP
        self._x = torch.randn(8, 8)
        self.began = self.ended = 0.0

    def run(self) -> None:
        """Runs them and notes when."""
        self.began = time.perf_counter()
        x = self._x
        for _ in range(self._loops):
            torch.relu(x).t().add(x)
        self.ended = time.perf_counter()

    def stall_since(self, before: float) -> float:
        """Returns what passed since ``before`` without the work itself, in seconds."""
        return time.perf_counter() - before - (self.ended - self.began)


class Segments:
    """Records segments the way this package does."""

    def __init__(self, directory: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._exporters: list[SegmentExporter] = []
        config = TorchProfilerConfig(frozenset({"training_forward"}))
        self._controller = TorchProfilerController(
            None,
            [ProfilerActivity.CPU],
            config=config,
            trace_dir=directory,
            exporter_factory=self._new_exporter,
        )

    def _new_exporter(
        self, directory: Path, rank: int, *, on_finished: Callable[[dict[str, Any]], None]
    ) -> SegmentExporter:
        exporter = SegmentExporter(directory, rank, on_finished=on_finished)
        self._exporters.append(exporter)
        return exporter

    def case(self, work: Work) -> Callable[[], float]:
        """Returns what records one segment and returns how long it stalled, in seconds."""

        def run() -> float:
            self._controller.start()
            before = time.perf_counter()
            with profiler_region("training_forward"):
                work.run()
            stall = work.stall_since(before)
            # The export goes on meanwhile in training; here it must not disturb the next case.
            for exporter in self._exporters:
                exporter.flush(_EXPORT_S)
                self.lines += exporter.poll()
            return stall

        return run

    def stop(self) -> None:
        """Ends recording."""
        self._controller.stop()


def peer_case(work: Work, directory: Path) -> Callable[[], float]:
    """Returns what records, writes and sums up the usual way, and how long that stalls."""
    handler = tensorboard_trace_handler(str(directory), use_gzip=True)

    def run() -> float:
        before = time.perf_counter()
        with profile(activities=[ProfilerActivity.CPU], on_trace_ready=handler) as session:
            work.run()
        session.key_averages().table(sort_by="self_cpu_time_total")
        return work.stall_since(before)

    return run


def main() -> None:
    """Measures and reports."""
    arguments = parse_arguments("Stall of the training thread for each segment.", rounds=7)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    logging.getLogger("fastvideo").setLevel(logging.ERROR)
    work = {events: Work(events) for events in _GROWTH}
    peer = f"peer, {_EVENTS} events"
    unit = f"a segment, {_EVENTS} events"
    with tempfile.TemporaryDirectory() as directory:
        segments = Segments(Path(directory, "ours"))
        cases = {f"a segment, {n} events": segments.case(work[n]) for n in _GROWTH}
        cases[peer] = peer_case(work[_EVENTS], Path(directory, "theirs"))
        measured = measure(cases, rounds=arguments.rounds)
        segments.stop()
    statuses = {line["status"] for line in segments.lines}
    if statuses != {"ok"}:
        message = f"segments were not exported: {statuses}"
        raise RuntimeError(message)
    ratios = [ratio(measured, unit, peer, _GOAL)]
    ratios += [ratio(measured, f"a segment, {n} events", unit) for n in _GROWTH if n != _EVENTS]
    report(
        f"Stall of the training thread: a segment of {_EVENTS} events, the peer's being 1; then "
        "segments of other sizes, that segment being 1",
        ratios,
        seconds=measured,
        json_path=arguments.json,
        segments=[
            {key: line[key] for key in ("event_count", "raw_bytes", "bytes", "export_s")}
            for line in segments.lines
        ],
    )


if __name__ == "__main__":
    main()
