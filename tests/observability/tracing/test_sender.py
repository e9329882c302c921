"""The sender: retries, deadlines, backlog, accounts."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.observability.tracing import sender as sender_module
from fastvideo.observability.tracing.sender import Batch, Flush, Sender
from fastvideo.observability.tracing.settings import BatchSettings
from fastvideo.observability.tracing.transport import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

DOWN = Outcome("unreachable", retryable=True, detail="Connection refused")
TAKEN = Outcome()


class ScriptedTransport:
    """Gives the outcomes of a script, then the last one again and again."""

    target = "http://c"

    def __init__(self, *script: Outcome | Exception) -> None:
        self.script = list(script)
        self.sent: list[bytes] = []
        self.timeouts: list[float] = []
        self.held = threading.Event()
        self.held.set()
        self.sending = threading.Event()

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        self.sent.append(body)
        self.timeouts.append(timeout_s)
        self.sending.set()
        self.held.wait(timeout_s)
        outcome = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def abort(self) -> None:
        self.held.set()

    def close(self) -> None:
        self.closed = True

    def leave_parent(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "_FIRST_WAIT_S", 0.02)


@pytest.fixture
def make_sender(counts: Any) -> Iterator[Any]:
    """Makes senders that end with the test."""
    made: list[Sender] = []

    def make(transport: Any, **batch: Any) -> Sender:
        sender = Sender(transport, 5.0, BatchSettings(**batch), counts)
        sender.start()
        made.append(sender)
        return sender

    yield make
    for sender in made:
        if sender._thread.is_alive():
            _flush(sender, 1.0, ends=True)


def _flush(sender: Sender, timeout_s: float, *, ends: bool = False) -> bool | None:
    done: queue.SimpleQueue[bool] = queue.SimpleQueue()
    sender.flush(Flush(time.monotonic() + timeout_s, done, ends))
    try:
        return done.get(timeout=timeout_s)
    except queue.Empty:
        return None


def test_what_fails_for_the_moment_is_sent_again(make_sender: Any, counts: Any) -> None:
    """A batch is tried until it is taken, and batches keep their order."""
    transport = ScriptedTransport(DOWN, DOWN, TAKEN)
    sender = make_sender(transport)
    sender.submit(Batch(b"1", 10))
    sender.submit(Batch(b"2", 5))
    assert counts.wait_for("exported", 15)
    assert transport.sent == [b"1", b"1", b"1", b"2"]
    assert dict(counts.seen) == {("exported", "otlp"): 15}


def test_what_is_refused_is_not_sent_again(make_sender: Any, counts: Any) -> None:
    """A refused batch is counted, and the next one goes out."""
    transport = ScriptedTransport(Outcome("rejected", detail="HTTP 400"), TAKEN)
    sender = make_sender(transport)
    sender.submit(Batch(b"1", 10))
    sender.submit(Batch(b"2", 5))
    assert counts.wait_for("exported", 5)
    assert dict(counts.seen) == {("dropped", "rejected"): 10, ("exported", "otlp"): 5}


def test_partial_success_is_counted(make_sender: Any, counts: Any) -> None:
    """Spans that were refused in a taken request count as dropped."""
    sender = make_sender(ScriptedTransport(Outcome(rejected_spans=3)))
    sender.submit(Batch(b"1", 10))
    assert counts.wait_for("exported", 7)
    assert dict(counts.seen) == {("dropped", "rejected"): 3, ("exported", "otlp"): 7}


def test_a_batch_is_given_up_in_time(make_sender: Any, counts: Any) -> None:
    """Past the export time-out a batch is dropped with the reason, so later ones get their turn."""
    sender = make_sender(ScriptedTransport(DOWN), export_timeout_s=0.05)
    sender.submit(Batch(b"1", 10))
    assert counts.wait_for("dropped", 10)
    assert dict(counts.seen) == {("dropped", "unreachable"): 10}


def test_the_backlog_is_bounded(make_sender: Any, counts: Any) -> None:
    """While nothing gets out, only so many spans are kept; the rest is counted."""
    transport = ScriptedTransport(TAKEN)
    transport.held.clear()
    sender = make_sender(transport, max_queue=100)
    for _ in range(1000):
        sender.submit(Batch(b"x", 10))
    assert counts.seen["dropped", "queue_full"] == 9900
    transport.held.set()
    assert counts.wait_for("exported", 100)


def test_batches_that_belong_together_are_taken_as_one(make_sender: Any, counts: Any) -> None:
    """No span is sent without its parents, however large a step is and however full the backlog."""
    transport = ScriptedTransport(TAKEN)
    transport.held.clear()
    sender = make_sender(transport, max_queue=20, max_batch=10)
    sender.submit(Batch(b"1", 1))
    sender.submit(*[Batch(b"2", 10)] * 3)  # larger than the backlog, of which little is in use
    sender.submit(Batch(b"3", 10))
    sender.submit(*[Batch(b"4", 10)] * 3)
    assert dict(counts.seen) == {("dropped", "queue_full"): 40}
    transport.held.set()
    assert counts.wait_for("exported", 31)
    assert transport.sent == [b"1", b"2", b"2", b"2"]


def test_retry_after_is_honoured(make_sender: Any, counts: Any) -> None:
    """A collector that asks to be left alone is, until its time has passed."""
    wait = Outcome("unavailable", retryable=True, retry_after_s=0.3, detail="HTTP 503")
    transport = ScriptedTransport(wait, TAKEN)
    sender = make_sender(transport)
    begin = time.monotonic()
    sender.submit(Batch(b"1", 1))
    assert counts.wait_for("exported", 1)
    assert time.monotonic() - begin >= 0.3


@pytest.mark.alone
def test_a_flush_does_not_wait_for_retry_after(make_sender: Any, counts: Any) -> None:
    """At the end nobody waits a minute because a collector asked for it."""
    transport = ScriptedTransport(
        Outcome("unavailable", retryable=True, retry_after_s=60.0, detail="HTTP 503")
    )
    sender = make_sender(transport)
    sender.submit(Batch(b"1", 7))
    begin = time.monotonic()
    assert _flush(sender, 2.0, ends=True) is False
    assert time.monotonic() - begin < 1.0
    assert dict(counts.seen) == {("dropped", "shutdown"): 7}


def test_a_flush_cuts_a_wait_short(make_sender: Any, counts: Any) -> None:
    """A flush tries at once what would have been tried later."""
    wait = Outcome("unavailable", retryable=True, retry_after_s=20.0, detail="HTTP 503")
    transport = ScriptedTransport(wait, TAKEN)
    sender = make_sender(transport)
    sender.submit(Batch(b"1", 7))
    assert transport.sending.wait(5)
    assert _flush(sender, 2.0) is True
    assert dict(counts.seen) == {("exported", "otlp"): 7}


def test_a_moments_weakness_at_the_end_is_forgiven(make_sender: Any, counts: Any) -> None:
    """The last batch gets a second try if the collector was fine until now."""
    sender = make_sender(ScriptedTransport(TAKEN, DOWN, TAKEN))
    sender.submit(Batch(b"1", 1))
    assert counts.wait_for("exported", 1)
    sender.submit(Batch(b"2", 2))
    _flush(sender, 2.0, ends=True)
    assert counts.wait_for("exported", 3)


@pytest.mark.alone
def test_no_request_outlasts_the_deadline(make_sender: Any) -> None:
    """Requests of a flush get the time that is left, not the usual time-out."""
    wait = Outcome("unavailable", retryable=True, retry_after_s=20.0, detail="HTTP 503")
    transport = ScriptedTransport(wait, TAKEN)
    sender = make_sender(transport)
    sender.submit(Batch(b"1", 1))
    assert transport.sending.wait(5)
    assert _flush(sender, 1.0) is True
    first, last = transport.timeouts
    assert first == 5.0
    assert last < 1.0


def test_abandoned_spans_are_counted_once(make_sender: Any, counts: Any) -> None:
    """What a hanging request holds is counted as lost, and not again when it returns."""
    transport = ScriptedTransport(TAKEN)
    transport.held.clear()
    sender = make_sender(transport)
    sender.submit(Batch(b"1", 4))
    sender.submit(Batch(b"2", 6))
    assert transport.sending.wait(5)
    sender.abandon()
    sender._thread.join(5)
    assert not sender._thread.is_alive()
    assert dict(counts.seen) == {("dropped", "shutdown"): 10}


def test_a_library_that_raises_costs_one_batch(
    make_sender: Any, counts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An unforeseen exception loses a batch, tells its type, and the thread goes on."""
    sender = make_sender(ScriptedTransport(RuntimeError("password"), TAKEN))
    sender.submit(Batch(b"1", 4))
    sender.submit(Batch(b"2", 6))
    assert counts.wait_for("exported", 6)
    assert counts.seen["dropped", "rejected"] == 4
    assert "RuntimeError" in caplog.text
    assert "password" not in caplog.text


def test_the_hint_for_a_path_that_is_missing(
    make_sender: Any, counts: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """404 is what an endpoint without its path gives, so the log says what to look at."""
    sender = make_sender(ScriptedTransport(Outcome("rejected", detail="HTTP 404")))
    sender.submit(Batch(b"1", 1))
    assert counts.wait_for("dropped", 1)
    assert "usually /v1/traces" in caplog.text
