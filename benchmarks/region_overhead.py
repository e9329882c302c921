"""What entering and leaving a region costs: with nothing attached, with metrics, with spans.

The unit is ``with contextlib.nullcontext(): pass``. Peers in the same rounds: torch's
``record_function``, the no-op tracer of OpenTelemetry, a region built on a generator, the three
usual ways of timing with prometheus_client, and OpenTelemetry's SDK with a batch processor. All
are timed in the thread's own time. Of a sampled step only its regions are timed here; beginning
and ending a step is in ``step_overhead.py``.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from typing import TYPE_CHECKING

from _harness import measure, parse_arguments, ratio, report
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry, Histogram
from torch.profiler import ProfilerActivity, record_function

from fastvideo.observability.clock import TelemetryClock
from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.step import RootTraces
from fastvideo.profiler import profile_region, profiler_region
from fastvideo.profiler.config import TorchProfilerConfig
from fastvideo.profiler.controller import TorchProfilerController

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

_LOOPS = 50_000
_STEPS = 200
_REGIONS_PER_STEP = 32
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


def in_steps(timed: Callable[[], float]) -> float:
    """Adds up a case over steps of a realistic number of regions."""
    total = 0.0
    for step in range(_STEPS):
        with profiler_region("training_train_one_step", step=step):
            total += timed()
    return total * _LOOPS / (_STEPS * _REGIONS_PER_STEP)


def regions_of_a_step() -> float:
    """Times the regions of one step."""
    began = time.thread_time()
    for _ in range(_REGIONS_PER_STEP):
        with profiler_region("training_forward"):
            pass
    return time.thread_time() - began


def with_telemetry(
    case: Callable[[], float],
    *,
    ratio_of_steps: float | None,
    controller: TorchProfilerController | None = None,
) -> Callable[[], float]:
    """Returns a case that runs while telemetry is on.

    Args:
        case: What is timed.
        ratio_of_steps: The share of steps whose spans are kept; None: there are no spans.
        controller: Kernel tracing that is armed meanwhile, or None.
    """

    def run() -> float:
        clock = TelemetryClock()
        identity = RunIdentity("run", "0", "name", 0, 1, 0, "host", "id", ratio_of_steps or 0, None)
        traces = RootTraces(
            clock,
            identity,
            finished=lambda _: None,
            submit=None if ratio_of_steps is None else lambda _: None,
        )
        traces.prepare()
        clock.start()
        if controller is not None:
            controller.start()
        try:
            return case()
        finally:
            if controller is not None:
                controller.stop()
            clock.stop()

    return run


_registry = CollectorRegistry()
_histogram = Histogram("region_duration_seconds", "Duration", ["region"], registry=_registry)
_bound = _histogram.labels("training_forward")


def prometheus_labels_time() -> float:
    """Times prometheus_client's ``labels().time()``."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        with _histogram.labels("training_forward").time():
            pass
    return time.thread_time() - began


def prometheus_bound_time() -> float:
    """Times prometheus_client's ``time()`` on a child that is kept."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        with _bound.time():
            pass
    return time.thread_time() - began


def prometheus_bound_observe() -> float:
    """Times two readings of the clock and prometheus_client's ``observe``."""
    began = time.thread_time()
    for _ in range(_LOOPS):
        start = time.perf_counter()
        _bound.observe(time.perf_counter() - start)
    return time.thread_time() - began


class _Nowhere(SpanExporter):
    """Takes spans and forgets them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Says that all is well."""
        del spans
        return SpanExportResult.SUCCESS


_provider = TracerProvider()
_provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
_sdk_tracer = _provider.get_tracer("benchmark")


def otel_sdk() -> float:
    """Times a sampled span of OpenTelemetry's SDK; fewer loops, since it takes so long."""
    loops = _LOOPS // 10
    began = time.thread_time()
    for _ in range(loops):
        with _sdk_tracer.start_as_current_span("training_forward"):
            pass
    return (time.thread_time() - began) * _LOOPS / loops


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
    arguments = parse_arguments(
        "Cost of a region, with nothing attached and with telemetry.", rounds=25
    )
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
            "durations on": with_telemetry(region, ratio_of_steps=None),
            "durations on, kernel trace armed": with_telemetry(
                region, ratio_of_steps=None, controller=controller
            ),
            "durations on, step not sampled": with_telemetry(
                lambda: in_steps(regions_of_a_step), ratio_of_steps=0.0
            ),
            "durations and a sampled span": with_telemetry(
                lambda: in_steps(regions_of_a_step), ratio_of_steps=1.0
            ),
            "peer: prometheus_client labels().time()": prometheus_labels_time,
            "peer: prometheus_client bound time()": prometheus_bound_time,
            "peer: prometheus_client bound observe()": prometheus_bound_observe,
            "peer: OpenTelemetry SDK, batch processor": otel_sdk,
            "a call": plain_call,
            "a call of a decorated function": decorated_call,
            "peer: region built on a generator": generator,
            "peer: OpenTelemetry's no-op tracer": otel_no_op,
            "peer: torch's record_function": torch_record_function,
        }
        measured = measure(cases, rounds=arguments.rounds, warm_up=2)
    _provider.shutdown()
    goals = {
        "durations on": 1.8,
        "durations on, kernel trace armed": 2.0,
        "durations and a sampled span": 3.0,
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
