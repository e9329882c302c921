"""Turning a signal that ends the run into an exception, so that everything is flushed first.

SIGTERM can be put off: while a run trains with checkpoints, it only takes note, so that the step
can be finished and saved. That ends after a while, and at once when somebody asks again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fastvideo import envs
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

logger = init_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNAL_STATUS = 128
_REPEAT_S = 2.0
_FLUSH_S: Final = 10.0
_PENDING_S: Final = 30


class Terminated(SystemExit):
    """The process was asked to end; the exit status is 128 plus the signal's number.

    Attributes:
        status: The exit status.
        signal: What asked for it.
        agreed: Whether all ranks end now, after the same step.
        at: When the process began to end, on the monotonic clock.
    """

    def __init__(self, number: int, *, agreed: bool = False) -> None:
        self.status = _SIGNAL_STATUS + number
        super().__init__(self.status)
        self.signal = signal.Signals(number)
        self.agreed = agreed
        self.at = time.monotonic()


class Termination:
    """What has been asked of this process so far.

    Attributes:
        requested: Whether a SIGTERM came that was put off.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred_s = 0.0
        self._first_at: float | None = None
        self._expired = False
        self._over = threading.Event()
        self._closing_s = 0.0
        self._closed = threading.Event()
        self._stop_waiting: Callable[[], bool] | None = None

    @contextmanager
    def deferred(self, timeout_s: float) -> Iterator[None]:
        """Puts SIGTERM off while the body runs: it sets :attr:`requested` and nothing else.

        Args:
            timeout_s: Seconds from the signal after which the process ends all the same: with
                `Terminated` if Python still runs, else without more ado.
        """
        self._deferred_s = timeout_s
        try:
            yield
        finally:
            self._deferred_s = 0.0
            self._over.set()

    @contextmanager
    def closing(self, timeout_s: float) -> Iterator[None]:
        """Lets the body close a run that failed: a first signal does not interrupt it.

        Where one rank dies, the others fail in a collective, and the launcher's SIGTERM reaches
        them while they close. The process ends anyway, with the error that it failed with.

        Args:
            timeout_s: Seconds from the signal after which the process ends all the same.
        """
        self._closing_s = timeout_s
        try:
            yield
        finally:
            self._closed.set()
            self._closing_s = 0.0

    @contextmanager
    def waiting(self, stop: Callable[[], bool]) -> Iterator[None]:
        """Lets a signal end what the body waits for, in place of the process.

        Args:
            stop: Ends the waiting, and tells whether there was any; where there was none, the
                signal does what it does otherwise.
        """
        self._stop_waiting = stop
        try:
            yield
        finally:
            self._stop_waiting = None

    def finish(self) -> None:
        """Ends the process, as the signal that was put off would have done; all ranks do.

        Raises:
            Terminated: Always.
        """
        raise Terminated(signal.SIGTERM, agreed=True)

    def is_final(self, number: int) -> bool:
        """Tells whether a signal that comes now ends the process."""
        if self._expired:
            return True
        if self._first_at is None:
            return number != signal.SIGTERM or not self._deferred_s
        return time.monotonic() - self._first_at > _REPEAT_S

    def on_signal(self, number: int) -> None:
        """Acts on a signal.

        Raises:
            Terminated: It is the first, or the time of one that was put off is over.
        """
        first = self._first_at is None
        if first:
            final = self.is_final(number)
            self._first_at = time.monotonic()
            if self._closing_s:
                self._end_if_stuck(number, self._closing_s)
                return
            if self._ends_waiting():
                return
            if final:
                raise Terminated(number)
            self.requested = True
            self._watch(self._deferred_s)
        elif self._expired:
            self._expired = False
            raise Terminated(number)
        elif self.is_final(number) and not self._ends_waiting():
            os._exit(_SIGNAL_STATUS + number)

    def _ends_waiting(self) -> bool:
        return self._stop_waiting is not None and self._stop_waiting()

    def _end_if_stuck(self, number: int, timeout_s: float) -> None:
        def watch() -> None:
            if not self._closed.wait(timeout_s):
                os._exit(_SIGNAL_STATUS + number)

        threading.Thread(target=watch, name="end-of-closing", daemon=True).start()

    def _watch(self, timeout_s: float) -> None:
        os.write(2, b"fastvideo: stopped by SIGTERM; finishing the step to save it\n")
        threading.Thread(
            target=self._expire, args=(timeout_s,), name="end-of-grace", daemon=True
        ).start()

    def _expire(self, timeout_s: float) -> None:
        """Runs in a thread; the main one may be inside of a collective, deaf to signals."""
        if self._over.wait(timeout_s):
            return
        logger.error(
            "the step was not finished and saved within the %g s of training.checkpoint."
            "sigterm_timeout_s; ending without",
            timeout_s,
        )
        self._expired = True
        os.kill(os.getpid(), signal.SIGTERM)
        if not self._over.wait(_FLUSH_S):
            os._exit(_SIGNAL_STATUS + signal.SIGTERM)


def pending_s(final_scrape_s: int) -> int:
    """Returns how long ranks may take for what is pending before they are killed, in seconds.

    It is half a minute, as torchrun and SLURM have it; longer only if a longer wait is asked for.

    Args:
        final_scrape_s: The longest wait for a scrape that sees the end, which is part of it.
    """
    usual = int(envs.VARIABLES["FASTVIDEO_METRICS_FINAL_SCRAPE_SECONDS"].default)
    return _PENDING_S + max(0, final_scrape_s - usual)


@contextmanager
def terminate_by_exception(*signals: signal.Signals) -> Iterator[Termination]:
    """Raises `Terminated` in the main thread at a signal while the body runs.

    One Ctrl-C reaches a rank twice, from the terminal and from the launcher, so a signal that
    comes within two seconds of the first is ignored. A later one ends the process at once.
    Outside the main thread this does nothing, because Python handles signals there only.

    Args:
        signals: Which; by default SIGTERM and SIGINT.

    Yields:
        What can put SIGTERM off.
    """
    termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        termination.on_signal(number)

    previous = {number: signal.signal(number, on_signal) for number in signals or _SIGNALS}
    try:
        yield termination
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is on_signal:  # else someone chained to it: leave theirs
                signal.signal(number, handler)
