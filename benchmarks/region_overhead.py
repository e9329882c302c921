"""What entering and leaving a region costs while nobody records it.

The unit is ``with contextlib.nullcontext(): pass``. Peers in the same rounds: torch's
``record_function``, the no-op tracer of OpenTelemetry, and a region built on a generator. All are
timed in the thread's own time.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from typing import TYPE_CHECKING

from _harness import measure, parse_arguments, ratio, report
from opentelemetry.trace import NoOpTracer
from torch.profiler import ProfilerActivity, record_function

from fastvideo.profiler import profile_region, profiler_region
from fastvideo.profiler.config import TorchProfilerConfig
from fastvideo.profiler.controller import TorchProfilerController

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOPS = 50_000
_UNIT = "nullcontext"
_tracer = NoOpTracer()


@contextlib.contextmanager
def generator_region(_name: str) -> Iterator[None]:
    """Is what a region costs when it is written the short way."""
    yield


def function() -> None:
    """Does nothing."""


@profile_region("training_forward")
def decorated() -> None:
    """Does nothing, inside of a region."""


def nullcontext() -> float:
    """Times the unit."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        with contextlib.nullcontext():
            pass
    return time.thread_time() - began


def region() -> float:
    """Times a region."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        with profiler_region("training_forward"):
            pass
    return time.thread_time() - began


def region_with_attributes() -> float:
    """Times a region that is given a step."""
    began = time.thread_time()
    for step in range(_LOOPS):
        with profiler_region("training_forward", step=step):
            pass
    return time.thread_time() - began


def unknown_region() -> float:
    """Times a region whose name is not registered."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        with profiler_region("benchmark_is_not_registered"):
            pass
    return time.thread_time() - began


def plain_call() -> float:
    """Times a call of a function."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        function()
    return time.thread_time() - began


def decorated_call() -> float:
    """Times a call of a function that is a region."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        decorated()
    return time.thread_time() - began


def torch_record_function() -> float:
    """Times torch's own annotation."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        with record_function("training_forward"):
            pass
    return time.thread_time() - began


def otel_no_op() -> float:
    """Times OpenTelemetry's tracer that records nothing."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        with _tracer.start_as_current_span("training_forward"):
            pass
    return time.thread_time() - began


def generator() -> float:
    """Times a region that is a generator."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        with generator_region("training_forward"):
            pass
    return time.thread_time() - began


def armed(controller: TorchProfilerController, case: Callable[[], float]) -> Callable[[], float]:
    """Returns a case that runs while kernel tracing waits for another region."""

    def run() -> float:
        controller.start()
        try:
            return case()
        finally:
            controller.stop()

    return run


def main() -> None:
    """Measures and reports."""
    arguments = parse_arguments("Cost of a region while nobody records it.", rounds=25)
    logging.getLogger("fastvideo").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        config = TorchProfilerConfig(frozenset({"training_validation"}))
        controller = TorchProfilerController(
            None, [ProfilerActivity.CPU], config=config, trace_dir=directory
        )
        cases = {
            _UNIT: nullcontext,
            "region, nothing attached": region,
            "region with a step, nothing attached": region_with_attributes,
            "region not registered, nothing attached": unknown_region,
            "region not selected, kernel trace armed": armed(controller, region),
            "region not registered, kernel trace armed": armed(controller, unknown_region),
            "a call": plain_call,
            "a call of a decorated function": decorated_call,
            "peer: region built on a generator": generator,
            "peer: OpenTelemetry's no-op tracer": otel_no_op,
            "peer: torch's record_function": torch_record_function,
        }
        measured = measure(cases, rounds=arguments.rounds, warm_up=2)
    goals = {
        "region, nothing attached": 0.8,
        "region not selected, kernel trace armed": 2.0,
    }
    ratios = [ratio(measured, case, _UNIT, goals.get(case)) for case in cases if case != _UNIT]
    report(
        "Cost of a region, in units of `with contextlib.nullcontext(): pass`",
        ratios,
        seconds=measured,
        json_path=arguments.json,
        loops=_LOOPS,
    )


if __name__ == "__main__":
    main()
