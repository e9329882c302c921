"""Entries of regions that measure the device too."""

from __future__ import annotations

from typing import Any

from fastvideo.observability.clock import TelemetryClock
from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.metrics.device_time import DeviceTimer
from fastvideo.observability.step import RootTraces
from fastvideo.profiler import profiler_region


class Event:
    """An event of the stream below."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at_ms = 0.0

    def record(self, stream: Any = None) -> None:
        self.at_ms = self.stream.queued_ms

    def query(self) -> bool:
        return self.stream.done_ms >= self.at_ms

    def elapsed_time(self, end_event: Event) -> float:
        return end_event.at_ms - self.at_ms


class Stream:
    """A device with one stream; work is queued at once and done when a test says so."""

    device_index = stream_id = 0

    def __init__(self) -> None:
        self.queued_ms = 0.0
        self.done_ms = 0.0

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_stream(self) -> Stream:
        return self

    def Event(self, *, enable_timing: bool) -> Event:  # noqa: N802 - the name in torch.cuda
        return Event(self)


def _run(device: Stream, timer: DeviceTimer, ratio: float) -> list[Any]:
    clock = TelemetryClock(timer)
    spans: list[Any] = []
    traces = RootTraces(
        clock,
        RunIdentity("run", "0", "name", 0, 1, 0, "host", "id", ratio, None),
        finished=lambda _: None,
        submit=spans.append,
    )
    traces.prepare()
    clock.start()
    for step in (1, 2):
        with profiler_region("training_train_one_step", step=step):
            with profiler_region("training_forward"):
                device.queued_ms += 5.0
                with profiler_region("dmd2_critic_loss"):
                    device.queued_ms += 3.0
            with profiler_region("training_backward"):
                device.queued_ms += 11.0
    clock.stop()
    assert clock.snapshot()["training_forward"][0] == 2
    return spans


def test_device_time_is_measured_between_sampled_steps() -> None:
    """Nested regions have their own device time, read when the device has got there."""
    device = Stream()
    timer = DeviceTimer(backend=device)  # type: ignore[arg-type]
    _run(device, timer, ratio=0.0)
    timer.drain()
    before = timer.snapshot()
    device.done_ms = device.queued_ms
    timer.drain()
    assert before == {}
    assert timer.snapshot()["training_forward"] == (2, 0.016)
    assert timer.snapshot()["dmd2_critic_loss"] == (2, 0.006)
    assert timer.snapshot()["training_backward"] == (2, 0.022)


def test_sampled_entries_know_their_device_time_once_it_is_read() -> None:
    """The time appears on the entry, and in the sums, without anybody waiting for it."""
    device = Stream()
    timer = DeviceTimer(backend=device)  # type: ignore[arg-type]
    spans = _run(device, timer, ratio=1.0)
    (forward,) = [e for e in spans[0].entries if e.region == "training_forward"]
    before = forward.device_ms
    device.done_ms = device.queued_ms
    timer.drain()
    assert (before, forward.device_ms) == (None, 8.0)
    assert timer.snapshot()["training_forward"] == (2, 0.016)
