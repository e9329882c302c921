"""Time that regions take on a device, on a device that the tests move on by hand."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import pytest
import torch

from fastvideo.observability.metrics.device_time import DeviceTimer, DeviceToken


class FakeStream:
    """A stream whose work is done when a test says so."""

    def __init__(self, device_index: int, stream_id: int) -> None:
        self.device_index = device_index
        self.stream_id = stream_id
        self.queued_ms = 0.0
        self.done_ms = 0.0

    def work(self, milliseconds: float) -> None:
        """Queues work."""
        self.queued_ms += milliseconds

    def finish(self, milliseconds: float | None = None) -> None:
        """Does all queued work, or so much of it."""
        self.done_ms = self.queued_ms if milliseconds is None else self.done_ms + milliseconds


class FakeEvent:
    """Remembers where in which stream it was recorded; belongs to the first device it sees."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.home: int | None = None
        self.stream: FakeStream | None = None
        self.at_ms = 0.0

    def record(self, stream: Any = None) -> None:
        self.device.check()
        self.home = stream.device_index if self.home is None else self.home
        assert self.home == stream.device_index, "an event stays on its first device"
        self.stream, self.at_ms = stream, stream.queued_ms

    def query(self) -> bool:
        self.device.check()
        self.device.queries += 1
        assert self.stream is not None
        return self.stream.done_ms >= self.at_ms

    def elapsed_time(self, end_event: Any) -> float:
        assert self.query()
        assert end_event.query()
        assert self.stream is end_event.stream
        return float(end_event.at_ms - self.at_ms)


class FakeDevice:
    """Has the functions of torch.cuda that a timer may call, and no way to wait."""

    def __init__(self) -> None:
        self.initialized = True
        self.capturing = False
        self.broken = False
        self.queries = 0
        self.events = 0
        self.stream = FakeStream(0, 0)
        self.other = FakeStream(0, 7)

    def check(self) -> None:
        """Fails as a device does after an error in a kernel."""
        if self.broken:
            message = "CUDA error: device-side assert triggered"
            raise RuntimeError(message)

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self) -> FakeStream:
        return self.stream

    def Event(self, *, enable_timing: bool) -> FakeEvent:  # noqa: N802 - the name in torch.cuda
        assert enable_timing
        self.events += 1
        return FakeEvent(self)


@pytest.fixture
def device() -> FakeDevice:
    """A device with nothing to do."""
    return FakeDevice()


def run(timer: DeviceTimer, device: FakeDevice, region: str, milliseconds: float) -> DeviceToken:
    """Queues the work of one entry."""
    token = timer.begin(region)
    assert token is not None
    device.stream.work(milliseconds)
    timer.end(token)
    return token


def test_times_are_read_once_the_device_is_done(device: FakeDevice) -> None:
    """Before that a drain reads nothing and does not wait."""
    timer = DeviceTimer(4, device)
    token = run(timer, device, "forward", 250.0)
    assert (timer.drain(), timer.pending, token.elapsed_ms) == (0, 1, None)
    device.stream.finish()
    assert (timer.drain(), timer.pending, token.elapsed_ms) == (1, 0, 250.0)
    assert timer.snapshot() == {"forward": (1, 0.25)}
    assert timer.drain() == 0


def test_times_add_up_per_region(device: FakeDevice) -> None:
    """Work outside of the region is not part of it."""
    timer = DeviceTimer(8, device)
    for milliseconds in (1.0, 2.0, 4.0):
        run(timer, device, "forward", milliseconds)
        device.stream.work(100.0)
        run(timer, device, "backward", 2 * milliseconds)
    device.stream.finish()
    timer.drain()
    assert timer.snapshot() == {"forward": (3, 0.007), "backward": (3, 0.014)}


def test_nested_and_re_entered_regions(device: FakeDevice) -> None:
    """Each entry has its own time, and the outer ones contain the inner ones."""
    timer = DeviceTimer(8, device)
    outer = timer.begin("step")
    device.stream.work(1.0)
    inner = timer.begin("step")
    device.stream.work(2.0)
    innermost = timer.begin("forward")
    device.stream.work(4.0)
    for token in (innermost, inner, outer):
        timer.end(token)
    device.stream.finish()
    timer.drain()
    assert timer.snapshot() == {"step": (2, 0.013), "forward": (1, 0.004)}


def test_exits_out_of_order(device: FakeDevice) -> None:
    """A generator closed late is measured as long as it was open."""
    timer = DeviceTimer(8, device)
    first = timer.begin("a")
    device.stream.work(1.0)
    second = timer.begin("b")
    device.stream.work(2.0)
    timer.end(first)
    device.stream.work(4.0)
    timer.end(second)
    device.stream.finish()
    timer.drain()
    assert timer.snapshot() == {"a": (1, 0.003), "b": (1, 0.006)}


def test_a_region_is_measured_in_the_stream_it_began_in(device: FakeDevice) -> None:
    """Even if another stream is current when it is left."""
    timer = DeviceTimer(4, device)
    token = timer.begin("forward")
    device.stream.work(3.0)
    began_in, device.stream = device.stream, device.other
    device.stream.work(50.0)
    timer.end(token)
    began_in.finish()
    timer.drain()
    assert timer.snapshot() == {"forward": (1, 0.003)}


def test_a_slow_stream_holds_up_only_itself(device: FakeDevice) -> None:
    """What another stream has finished is read meanwhile, and asking stays cheap."""
    timer = DeviceTimer(64, device)
    for _ in range(20):
        run(timer, device, "slow", 1.0)
    slow, device.stream = device.stream, device.other
    run(timer, device, "quick", 2.0)
    device.stream.finish()
    device.queries = 0
    assert timer.drain() == 1
    assert device.queries <= 1 + 3  # one look at the slow stream; query and times of the quick one
    assert timer.snapshot() == {"quick": (1, 0.002)}
    slow.finish(5.0)
    assert timer.drain() == 5
    assert timer.snapshot()["slow"] == (5, 0.005)


def test_several_devices(device: FakeDevice) -> None:
    """An event stays on the device that first recorded it."""
    timer = DeviceTimer(1, device)
    streams = [device.stream, FakeStream(1, 0)]
    for _ in range(3):
        for device.stream in streams:
            run(timer, device, "forward", 1.0)
            device.stream.finish()
        timer.drain()
    assert timer.snapshot() == {"forward": (6, 0.006)}
    assert (timer.exhausted, device.events) == (0, 4)


def test_the_pool_is_bounded_and_says_so(device: FakeDevice) -> None:
    """Entries beyond it are counted, not measured, and the pool recovers."""
    timer = DeviceTimer(3, device)
    tokens = [timer.begin("a") for _ in range(5)]
    assert [token is not None for token in tokens] == [True, True, True, False, False]
    for token in tokens:
        timer.end(token)
    assert timer.exhausted == 2
    for _ in range(10):
        run(timer, device, "b", 1.0)
        device.stream.finish()
    assert (timer.exhausted, device.events) == (2, 6)
    timer.drain()
    assert {region: count for region, (count, _) in timer.snapshot().items()} == {"a": 3, "b": 10}


def test_a_pool_that_nobody_drains_serves_on(device: FakeDevice) -> None:
    """An entry that finds it empty reads what has finished."""
    timer = DeviceTimer(2, device)
    for _ in range(50):
        run(timer, device, "a", 1.0)
        device.stream.finish()
    assert (timer.exhausted, timer.pending) == (0, 2)


def test_ending_twice_or_nothing_is_harmless(device: FakeDevice) -> None:
    """The second end must not touch the entry that uses the events by then."""
    timer = DeviceTimer(1, device)
    old = run(timer, device, "a", 1.0)
    device.stream.finish()
    timer.drain()
    new = timer.begin("b")
    device.stream.work(2.0)
    timer.end(old)
    timer.end(None)
    device.stream.work(4.0)
    timer.end(new)
    timer.end(new)
    device.stream.finish()
    timer.drain()
    assert timer.snapshot() == {"a": (1, 0.001), "b": (1, 0.006)}


def test_the_callback_learns_which_entry_took_how_long(device: FakeDevice) -> None:
    """Tokens are told apart by their id."""
    heard: dict[int, tuple[str, float]] = {}

    def hear(token: DeviceToken, milliseconds: float) -> None:
        heard[token.id] = (token.region, milliseconds)

    timer = DeviceTimer(4, device, callback=hear)
    first, second = run(timer, device, "a", 1.0), run(timer, device, "a", 2.0)
    device.stream.finish()
    timer.drain()
    assert heard == {first.id: ("a", 1.0), second.id: ("a", 2.0)}


def test_a_callback_that_raises_is_not_called_again(
    device: FakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """The times are kept; one line says what happened."""
    calls: list[int] = []

    def hear(token: DeviceToken, milliseconds: float) -> None:
        calls.append(token.id)
        raise ZeroDivisionError

    timer = DeviceTimer(4, device, callback=hear)
    run(timer, device, "a", 1.0)
    run(timer, device, "a", 1.0)
    device.stream.finish()
    assert timer.drain() == 2
    assert (len(calls), timer.snapshot(), len(caplog.records)) == (1, {"a": (2, 0.002)}, 1)


def test_nothing_is_measured_while_a_graph_is_captured(device: FakeDevice) -> None:
    """An event in a capture would become part of the graph; asking for one would break it."""
    timer = DeviceTimer(2, device)
    before = run(timer, device, "before", 1.0)
    around = timer.begin("around")
    device.stream.finish()
    device.capturing, device.queries = True, 0
    assert timer.begin("inside") is None
    timer.end(around)
    assert (timer.drain(), device.queries, timer.exhausted) == (0, 0, 0)
    device.capturing = False
    assert timer.drain() == 1
    assert before.elapsed_ms == 1.0
    assert [timer.begin("a") is not None for _ in range(2)] == [True, True]


def test_an_unused_device_stays_unused(device: FakeDevice) -> None:
    """Before the program uses the device, and in forked children, nothing is touched."""
    timer = DeviceTimer(4, device)
    opened = timer.begin("a")
    run(timer, device, "a", 1.0)
    device.initialized, device.broken = False, True
    assert timer.begin("a") is None
    timer.end(opened)
    assert timer.drain() == 0
    assert timer.snapshot() == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_torch_without_cuda() -> None:
    """The default device is torch.cuda, which is not made ready by asking."""
    timer = DeviceTimer()
    timer.end(timer.begin("a"))
    assert (timer.drain(), timer.snapshot(), timer.exhausted) == (0, {}, 0)
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("where", ["begin", "end", "drain"])
def test_a_device_in_error_ends_the_measuring(
    device: FakeDevice, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is the program's to meet; one warning without its text, and silence."""
    timer = DeviceTimer(4, device)
    opened = timer.begin("a")
    run(timer, device, "a", 1.0)
    device.broken = True
    if where == "begin":
        assert timer.begin("a") is None
    elif where == "end":
        timer.end(opened)
    else:
        assert timer.drain() == 0
    device.broken = False
    timer.end(opened)
    assert (timer.begin("a"), timer.drain(), timer.snapshot()) == (None, 0, {})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "RuntimeError" in record.getMessage()
    assert "assert triggered" not in caplog.text


def test_threads_share_a_timer(device: FakeDevice) -> None:
    """Entries of several threads and drains in between lose nothing and count nothing twice."""
    timer = DeviceTimer(16, device)
    entries, measured = 300, [0] * 4

    def work(number: int) -> None:
        for index in range(entries):
            token = timer.begin("a")
            timer.end(token)
            measured[number] += token is not None
            if index % 3 == number % 3:
                timer.drain()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    timer.drain()
    assert timer.snapshot()["a"][0] == sum(measured)
    assert sum(measured) + timer.exhausted == 4 * entries
    assert device.events <= 2 * 16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCuda:
    """The same on a real device."""

    SLEEP_CYCLES = 20_000_000  # about 10 ms

    def test_begin_end_and_drain_do_not_wait(self) -> None:
        """All return while the device still works, and the time read later is the sleep's."""
        timer = DeviceTimer()
        torch.cuda._sleep(1000)
        torch.cuda.synchronize()
        around = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        around[0].record()
        token = timer.begin("sleep")
        torch.cuda._sleep(self.SLEEP_CYCLES)
        timer.end(token)
        around[1].record()
        drained = timer.drain()
        still_working = not around[1].query()
        assert (drained, still_working) == (0, True)
        torch.cuda.synchronize()
        assert timer.drain() == 1
        outside_ms = around[0].elapsed_time(around[1])
        count, seconds = timer.snapshot()["sleep"]
        assert count == 1
        assert 0.8 * outside_ms <= seconds * 1e3 <= outside_ms

    def test_a_busy_stream_is_not_counted_in_another(self) -> None:
        """An empty region of an idle stream takes no time while the default stream sleeps."""
        timer = DeviceTimer()
        side = torch.cuda.Stream()
        long = timer.begin("long")
        torch.cuda._sleep(self.SLEEP_CYCLES)
        timer.end(long)
        with torch.cuda.stream(side):
            timer.end(timer.begin("short"))
        side.synchronize()
        assert timer.drain() >= 1
        torch.cuda.synchronize()
        timer.drain()
        times = timer.snapshot()
        assert times["short"][1] < times["long"][1] / 10

    def test_a_graph_is_captured_with_regions_around_its_kernels(self) -> None:
        """Capturing succeeds and replays give the right numbers."""
        timer = DeviceTimer()
        x = torch.ones(16, device="cuda")
        timer.end(timer.begin("before"))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            token = timer.begin("inside")
            x.mul_(2.0)
            timer.end(token)
            timer.drain()
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        timer.drain()
        assert x[0].item() == 4.0
        assert set(timer.snapshot()) == {"before"}

    @pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the point of the test
    def test_a_forked_child_measures_nothing(self) -> None:
        """A child that inherits an open entry leaves it without an error."""
        timer = DeviceTimer()
        torch.cuda._sleep(1000)
        token = timer.begin("a")
        child = os.fork()
        if child == 0:
            timer.end(token)
            os._exit(0 if timer.begin("b") is None and timer.drain() == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        timer.end(token)
        torch.cuda.synchronize()
        assert timer.drain() == 1

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
    def test_several_devices(self) -> None:
        """Entries on one device never use events of another one."""
        timer = DeviceTimer(1)
        for _ in range(3):
            for index in range(2):
                with torch.cuda.device(index):
                    token = timer.begin("a")
                    torch.cuda._sleep(1000)
                    timer.end(token)
                    torch.cuda.synchronize()
            timer.drain()
        assert (timer.snapshot()["a"][0], timer.exhausted) == (6, 0)
