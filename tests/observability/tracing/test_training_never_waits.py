"""Whatever becomes of spans, the training thread waits for none of it: by construction, not timed.

While a collector or a destination holds our threads, the training thread hands over two hundred
steps and gets to its end. It takes no lock that these threads know, and calls nothing that blocks.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo import observability
from fastvideo.observability import TelemetryConfig
from fastvideo.observability.tracing import fan_out as fan_out_module
from fastvideo.observability.tracing.settings import TraceSettings
from fastvideo.observability.tracing.transport import Outcome
from fastvideo.observability.tracing.worker import SpanPipeline
from fastvideo.profiler import profiler_region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType

STEPS = 200
SPANS = 5
QUEUE = 100
BATCH = 20
PATIENCE_S = 30.0
ENVIRON = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
    "OTEL_BSP_MAX_QUEUE_SIZE": str(QUEUE),
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(BATCH),
    "FASTVIDEO_METRICS_PORT": "0",
}
NEVER_BLOCK = {
    "len",
    "deque.extend",
    "SimpleQueue.put",
    "list.append",
    "setprofile",
}
"""What handing over a step may call of what is not written in Python; none of it can block."""


class HeldTransport:
    """A collector that behaves in some way, and by which the sender can be held."""

    target = "http://c"

    def __init__(self, behaviour: str) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()
        self.inside = 0
        self._behaviour = behaviour

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        self.inside += 1
        self.entered.set()
        if self._behaviour == "silent":
            self.released.wait()
        self.inside -= 1
        return {
            "silent": Outcome(),
            "refusing": Outcome("unreachable", retryable=True, detail="Connection refused"),
            "unavailable": Outcome(
                "unavailable", retryable=True, retry_after_s=60.0, detail="HTTP 503"
            ),
        }[self._behaviour]

    def abort(self) -> None:
        self.released.set()

    def close(self) -> None:
        pass

    def leave_parent(self) -> None:
        pass


class WatchedLock:
    """A lock that remembers which threads took it."""

    def __init__(self, inner: Any, takers: set[int]) -> None:
        self._inner = inner
        self._takers = takers

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002
        self._takers.add(threading.get_ident())
        return bool(self._inner.acquire(blocking, timeout))

    def release(self) -> None:
        self._inner.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class TrainingThread:
    """Runs a loop on a thread of its own, and notes what is called there outside of Python."""

    def __init__(self, step: Callable[[int], None]) -> None:
        self.called: set[str] = set()
        self._step = step
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def finishes(self) -> bool:
        """Runs the loop; returns whether it gets to its end."""
        self._thread.start()
        self._thread.join(PATIENCE_S)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def _run(self) -> None:
        try:
            for number in range(STEPS):
                sys.setprofile(self._note)
                self._step(number)
                sys.setprofile(None)
        except BaseException as error:  # noqa: BLE001 - raised by the test
            self._error = error

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            self.called.add(argument.__qualname__)


@pytest.fixture(params=["silent", "refusing", "unavailable"])
def transport(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HeldTransport]:
    """What the sender gets for a transport."""
    made = HeldTransport(str(request.param))
    monkeypatch.setattr(fan_out_module, "make_transport", lambda *_, **__: made)
    yield made
    made.released.set()


@pytest.fixture
def takers(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that took any lock that was made from here on."""
    found: set[int] = set()
    for kind in ("Lock", "RLock"):
        make = getattr(threading, kind)
        monkeypatch.setattr(threading, kind, lambda make=make: WatchedLock(make(), found))
    return found


def _settings() -> TraceSettings:
    return TraceSettings.from_env(ENVIRON)


def test_the_collector_holds_the_sender_and_nobody_else(
    transport: HeldTransport, steps: ModuleType, request: pytest.FixtureRequest
) -> None:
    """The loop ends while the sender is held; what is kept has a bound, and the rest is counted."""
    given = [steps.make_step(number, children=SPANS - 2) for number in range(STEPS + 1)]
    training = TrainingThread(lambda number: pipeline.submit_step(given[number]))
    takers: set[int] = request.getfixturevalue("takers")
    told: list[tuple[str, str, int]] = []
    pipeline = SpanPipeline(
        _settings(), steps.make_identity(), count=lambda *what: told.append(what)
    )
    pipeline.start()
    for _ in range(BATCH // SPANS):
        pipeline.submit_step(given[STEPS])
    assert transport.entered.wait(PATIENCE_S)

    assert training.finishes()
    assert transport.inside == (transport._behaviour == "silent")
    assert training.called <= NEVER_BLOCK
    assert training.ident not in takers
    assert takers, "the threads behind it do take locks, so they are watched"
    assert len(pipeline._inbox) <= QUEUE

    pipeline.shutdown(1.0)
    counted: Counter[str] = Counter()
    for outcome, _, spans in told:
        counted[outcome] += spans
    submitted = (STEPS + BATCH // SPANS) * SPANS
    assert counted["exported"] + counted["dropped"] == submitted
    assert counted["dropped"] >= submitted - 2 * QUEUE - 2 * BATCH


def test_a_destination_holds_the_worker_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch, steps: ModuleType, request: pytest.FixtureRequest
) -> None:
    """A worker that hangs where it hands spans on leaves a full queue, and counted steps."""
    entered, released = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        entered.set()
        released.wait()

    monkeypatch.setattr(fan_out_module.FanOut, "add", hang)
    given = [steps.make_step(number, children=SPANS - 2) for number in range(STEPS)]
    training = TrainingThread(lambda number: pipeline.submit_step(given[number]))
    takers: set[int] = request.getfixturevalue("takers")
    dropped: list[int] = []
    pipeline = SpanPipeline(
        _settings(), steps.make_identity(), count=lambda _, __, spans: dropped.append(spans)
    )
    pipeline.start()
    for _ in range(BATCH // SPANS):
        pipeline.submit_step(given[0])
    try:
        assert entered.wait(PATIENCE_S)
        assert training.finishes()
        assert training.called <= NEVER_BLOCK
        assert training.ident not in takers
        assert len(pipeline._inbox) <= QUEUE
        assert sum(dropped) >= STEPS * SPANS - QUEUE
    finally:
        released.set()
        pipeline.shutdown(1.0)


def test_steps_of_a_real_loop_end_while_the_sender_is_held(transport: HeldTransport) -> None:
    """Regions, metrics and spans together: nothing on the way of a step waits for the collector."""

    def step(number: int) -> None:
        with profiler_region("training_train_one_step", step=number):
            for _ in range(SPANS):
                with profiler_region("training_forward"):
                    pass
        telemetry.record_step({"total_loss": 1.0}, losses=["total_loss"])

    telemetry = observability.start(TelemetryConfig.from_sources(ENVIRON))
    try:
        for number in range(BATCH):
            step(number)
        assert transport.entered.wait(PATIENCE_S)
        training = TrainingThread(step)
        assert training.finishes()
        blocking = {"lock.acquire", "SimpleQueue.get", "sleep", "select.poll", "socket.recv"}
        assert blocking & training.called == set()
        assert transport.inside == (transport._behaviour == "silent")
    finally:
        telemetry.shutdown()
