"""Signals as exceptions, in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from fastvideo.train.entrypoint.termination import (
    Terminated,
    Termination,
    pending_s,
    terminate_by_exception,
)

CHILD = """
import os, signal, sys, time
from fastvideo.train.entrypoint.termination import terminate_by_exception

def wait_for_signal(seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)

with terminate_by_exception() as termination:
    try:
        print("ready", flush=True)
        wait_for_signal()
    finally:
        {body}
        print("flushed", flush=True)
"""


def _child(body: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(body=body)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_runs_the_finally_blocks(number: signal.Signals) -> None:
    """The first signal unwinds the stack; the status is 128 plus its number."""
    child = _child("pass")
    child.send_signal(number)
    output, _ = child.communicate(timeout=30)
    assert (output, child.returncode) == ("flushed\n", 128 + number)


def test_repeated_signal_does_not_break_the_flush() -> None:
    """The launcher's second signal right after the terminal's first is ignored."""
    child = _child("os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGTERM)")
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=30)
    assert (output, child.returncode) == ("flushed\n", 143)


def test_late_second_signal_ends_a_stuck_flush() -> None:
    """Who asks again after two seconds means it."""
    child = _child("time.sleep(2.1); os.kill(os.getpid(), signal.SIGTERM); wait_for_signal()")
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=30)
    assert (output, child.returncode) == ("", 143)


CLOSING = """
import os, signal, sys, time
from fastvideo.train.entrypoint.termination import terminate_by_exception

with terminate_by_exception() as termination:
    try:
        raise RuntimeError("a peer is gone")
    finally:
        with termination.closing({timeout}):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep({takes})
            print("closed", flush=True)
"""


@pytest.mark.parametrize(
    ("timeout", "takes", "expected"), [(30, 0, ("closed\n", 1, True)), (0.2, 30, ("", 143, False))]
)
def test_a_run_that_failed_is_closed_first(
    timeout: float, takes: float, expected: tuple[str, int, bool]
) -> None:
    """The launcher's signal hides neither the error nor what is closed; what is stuck it ends."""
    child = subprocess.run(
        [sys.executable, "-c", CLOSING.format(timeout=timeout, takes=takes)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (child.stdout, child.returncode, "a peer is gone" in child.stderr) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_wait_in_place_of_the_process(number: signal.Signals) -> None:
    """It is the wait that somebody has had enough of; the next one is a signal again."""
    termination = Termination()
    ends = [True, False]
    with termination.waiting(lambda: ends.pop(0)):
        termination.on_signal(number)
    assert ends == [False]
    termination = Termination()
    with termination.waiting(lambda: False), pytest.raises(Terminated):
        termination.on_signal(number)


def test_a_second_signal_ends_the_wait_after_the_first() -> None:
    """The first ended the run, which then waits; the status stays that of the first."""
    body = (
        "waits = [True]; time.sleep(2.1)\n"
        "        with termination.waiting(waits.pop):\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "        assert waits == []"
    )
    child = _child(body)
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=30)
    assert (output, child.returncode) == ("flushed\n", 143)


def test_what_is_pending_has_half_a_minute() -> None:
    """As launchers have it; longer only for a longer wait than usual."""
    assert [pending_s(seconds) for seconds in (0, 20, 61)] == [30, 30, 71]


def test_handlers_are_restored() -> None:
    """Afterwards the signals do what they did before."""
    before = signal.getsignal(signal.SIGTERM)
    with terminate_by_exception():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_handler_that_chained_is_left_alone() -> None:
    """A handler that someone installed on top stays."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with terminate_by_exception():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_are_no_error() -> None:
    """Outside the main thread, where signals cannot be handled, the body just runs."""
    ran: list[bool] = []

    def body() -> None:
        with terminate_by_exception():
            ran.append(True)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert ran == [True]


def test_exception_carries_status_and_signal() -> None:
    """The exception is a SystemExit with the shell's status for the signal."""
    stop = Terminated(signal.SIGTERM)
    assert isinstance(stop, SystemExit)
    assert (stop.code, stop.status, stop.signal) == (143, 143, signal.SIGTERM)


DEFERRED = """
import os, signal, sys, time
from fastvideo.train.entrypoint.termination import terminate_by_exception

with terminate_by_exception() as termination:
    try:
        with termination.deferred({timeout}):
            print("ready", flush=True)
            end = time.monotonic() + 60
            while time.monotonic() < end and not ({until}):
                time.sleep(0.01)
            print("saved", flush=True)
            if termination.requested:
                termination.finish()
        print("complete", flush=True)
    finally:
        print("flushed", flush=True)
"""


def _deferred(*, timeout: float = 60.0, until: str = "termination.requested") -> tuple[str, int]:
    """Sends one SIGTERM to a process that puts it off; returns what it said, and its status."""
    program = DEFERRED.format(timeout=timeout, until=until)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=60)
    return output, child.returncode


def test_sigterm_can_be_put_off_until_the_step_is_saved() -> None:
    """Then it ends the process as it would have done."""
    assert _deferred() == ("saved\nflushed\n", 143)


def test_putting_off_has_an_end() -> None:
    """The process ends without having saved, and still writes what is pending."""
    assert _deferred(timeout=0.2, until="False") == ("flushed\n", 143)


def test_a_signal_that_comes_twice_at_once_is_one() -> None:
    """A cluster's scheduler and the launcher both send it."""
    again = "termination.requested and os.kill(os.getpid(), signal.SIGTERM) is None"
    assert _deferred(until=again) == ("saved\nflushed\n", 143)


def test_a_later_second_signal_ends_at_once() -> None:
    """Nothing is saved or written then."""
    body = (
        "termination.requested and (setattr(termination, '_first_at', time.monotonic() - 9) "
        "or os.kill(os.getpid(), signal.SIGTERM))"
    )
    assert _deferred(until=body) == ("", 143)


def test_what_ends_the_process_is_known_beforehand() -> None:
    """Connections to other ranks are closed only for a signal that does."""
    termination = Termination()
    assert termination.is_final(signal.SIGTERM)
    with termination.deferred(60.0):
        assert not termination.is_final(signal.SIGTERM)
        assert termination.is_final(signal.SIGINT)
        termination.on_signal(signal.SIGTERM)
        assert termination.requested
        assert not termination.is_final(signal.SIGTERM)
        termination._first_at = 0.0
        assert termination.is_final(signal.SIGTERM)
    with pytest.raises(Terminated) as caught:
        termination.finish()
    assert caught.value.status == 143
