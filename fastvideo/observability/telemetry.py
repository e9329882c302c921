"""The telemetry of one process: what a program tells it, and what becomes of that."""

from __future__ import annotations

import math
import platform
import time
from typing import TYPE_CHECKING, Final

import torch

from fastvideo import __version__
from fastvideo.observability.current import current_trace
from fastvideo.observability.metrics.cells import plain_number
from fastvideo.observability.step import REQUEST_REGION, STEP_REGION
from fastvideo.profiler import get_global_controller, sink_error_counts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fastvideo.observability.clock import TelemetryClock
    from fastvideo.observability.identity import RunIdentity
    from fastvideo.observability.metrics.accumulators import Instruments
    from fastvideo.observability.metrics.device_time import DeviceTimer
    from fastvideo.observability.step import FinishedRoot

_NS_PER_S: Final = 1e9
_EVENT_DURATIONS: Final = {
    "training_validation": "fastvideo_training_validation_duration_seconds",
    "training_save_checkpoint": "fastvideo_training_checkpoint_duration_seconds",
    REQUEST_REGION: "fastvideo_inference_request_duration_seconds",
}
_ONE_KIND: Final = "step"


class StepMetrics:
    """Turns steps into numbers.

    Args:
        instruments: Where the numbers go.
        device: Measures the device, or None.
    """

    def __init__(self, instruments: Instruments, device: DeviceTimer | None = None) -> None:
        self._instruments = instruments
        self._device = device
        self._step = instruments.gauge("fastvideo_training_step")
        self._steps = instruments.counter("fastvideo_training_steps_total")
        self._samples = instruments.counter("fastvideo_training_samples_total")
        self._unattributed = instruments.counter("fastvideo_training_unattributed_seconds_total")
        self._nonfinite = instruments.counter("fastvideo_training_nonfinite_loss_total")
        self._wait = instruments.histogram("fastvideo_training_dataloader_time_seconds")

    def finished(self, root: FinishedRoot) -> None:
        """Counts a step or an event that ended.

        What a signal or Ctrl-C ends was stopped, and is neither finished nor an error.
        """
        if root.error is not None and not issubclass(root.error, Exception):
            return
        seconds = root.duration_ns / _NS_PER_S
        if root.region == REQUEST_REGION and root.error is not None:
            failed = self._instruments.counter(
                "fastvideo_inference_errors_total", root.error.__name__
            )
            failed.add(1)
            return
        if root.region != STEP_REGION:
            self._instruments.histogram(_EVENT_DURATIONS[root.region]).observe(
                seconds, root.sampled_trace_id
            )
            return
        if self._device is not None:
            self._device.drain()
        if root.error is not None:
            name = root.error.__name__
            self._instruments.counter("fastvideo_training_errors_total", name).add(1)
            return
        self._instruments.histogram(
            "fastvideo_training_step_duration_seconds", root.step_kind or _ONE_KIND
        ).observe(seconds, root.sampled_trace_id)
        self._unattributed.add(max(0, root.duration_ns - root.children_ns) / _NS_PER_S)
        self._steps.add(1)
        if root.step is not None:
            self._step.set(root.step)
        self._instruments.gauge("fastvideo_training_last_step_timestamp_seconds").set(time.time())

    def record(
        self, scalars: Mapping[str, float], *, losses: Collection[str], samples: int
    ) -> None:
        """Takes the scalars of a step, already in host memory.

        Args:
            scalars: By the names the trackers have; ``dataloader_time_sec`` is the wait for data.
            losses: Those of them that are loss terms.
            samples: How many samples the step trained on, in this process.
        """
        self._samples.add(samples)
        nonfinite = False
        for name, given in scalars.items():
            value = plain_number(
                given
            )  # None for what is no number, or would have to be waited for
            if value is None:
                continue
            if name == "dataloader_time_sec":
                self._wait.observe(value, current_trace()[0])
            elif name in losses:
                nonfinite = nonfinite or not math.isfinite(value)
                self._instruments.gauge("fastvideo_training_loss", name).set(value)
            elif name != "step_time_sec":
                self._instruments.gauge("fastvideo_training_metric", name).set(value)
        if nonfinite:
            self._nonfinite.add(1)


def describe_process(
    instruments: Instruments, identity: RunIdentity, *, method: str, model: str, device: str
) -> None:
    """Sets the gauges that say what runs where.

    Args:
        instruments: Where they are.
        identity: The run and this process.
        method: What is trained, for people.
        model: The model, for people.
        device: Where it runs, such as ``"cpu"`` or the name of a GPU.
    """
    instruments.gauge("fastvideo_run_active").set(1)
    world_size = str(identity.world_size)
    instruments.info("fastvideo_run_info", identity.run_name, method, model, world_size)
    instruments.gauge("fastvideo_run_world_size").set(identity.world_size)
    local_rank = str(identity.local_rank)
    instruments.info("fastvideo_rank_info", identity.host_name, local_rank, device)
    instruments.info(
        "fastvideo_build_info",
        __version__,
        platform.python_version(),
        torch.__version__,
        torch.version.cuda or "none",
    )


def connect_sources(
    instruments: Instruments, clock: TelemetryClock, device: DeviceTimer | None
) -> None:
    """Lets scrapes read what is counted elsewhere.

    Args:
        instruments: Who is asked.
        clock: Knows the durations of regions.
        device: Knows the device time of regions, or None.
    """

    def regions() -> Iterator[tuple[tuple[str, ...], int, float]]:
        for name, (count, seconds) in clock.snapshot().items():
            yield (name,), count, seconds

    instruments.summary_source("fastvideo_region_duration_seconds", regions)
    instruments.counter_source("fastvideo_profiler_segments_total", _segments)
    instruments.counter_source("fastvideo_profiler_written_bytes_total", _written)
    instruments.summary_source("fastvideo_profiler_export_duration_seconds", _exports)
    instruments.counter_source("fastvideo_telemetry_sink_errors_total", _sink_errors)
    if device is None:
        return

    def on_device() -> Iterator[tuple[tuple[str, ...], int, float]]:
        for name, (count, seconds) in device.snapshot().items():
            yield (name,), count, seconds

    instruments.summary_source("fastvideo_region_device_duration_seconds", on_device)
    instruments.gauge_source("fastvideo_device_memory_bytes", _device_memory)


def _segments() -> Iterator[tuple[tuple[str, ...], float]]:
    controller = get_global_controller()
    if controller is None:
        return
    counters = controller.counters
    for name, count in counters.items():
        if name.startswith("exported_"):
            yield (name.removeprefix("exported_"),), count
    for name in ("failed", "skipped"):
        yield (name,), counters.get(name, 0)


def _written() -> Iterator[tuple[tuple[str, ...], float]]:
    controller = get_global_controller()
    if controller is not None:
        yield (), controller.exports.written_bytes


def _exports() -> Iterator[tuple[tuple[str, ...], int, float]]:
    controller = get_global_controller()
    if controller is not None:
        totals = controller.exports
        yield (), totals.segments, totals.seconds


def _sink_errors() -> Iterator[tuple[tuple[str, ...], float]]:
    for name, count in sink_error_counts().items():
        yield ("segments" if name == "SegmentRecorder" else name,), count


def _device_memory() -> Iterator[tuple[tuple[str, ...], float]]:
    """Gives the memory of this process on its devices, and what those have.

    The current device is a thread's own, and a scrape's thread has not chosen any: all are asked.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    stats = {device: torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())}
    kinds = {
        "allocated": "allocated_bytes.all.current",
        "reserved": "reserved_bytes.all.current",
        "peak": "allocated_bytes.all.peak",
    }
    for kind, name in kinds.items():
        yield (kind,), sum(each.get(name, 0) for each in stats.values())
    used = [device for device, each in stats.items() if each.get("reserved_bytes.all.peak", 0)]
    total = sum(torch.cuda.get_device_properties(device).total_memory for device in used)
    yield ("capacity",), total
