"""Turning a signal that ends the run into an exception, so that everything is flushed first."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

logger = init_logger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNAL_STATUS = 128
_REPEAT_S = 2.0


class Terminated(SystemExit):
    """The process was asked to end; the exit status is 128 plus the signal's number.

    Attributes:
        status: The exit status.
        signal: What asked for it.
    """

    def __init__(self, number: int) -> None:
        self.status = _SIGNAL_STATUS + number
        super().__init__(self.status)
        self.signal = signal.Signals(number)


@contextmanager
def terminate_by_exception() -> Iterator[None]:
    """Raises `Terminated` in the main thread at SIGTERM or SIGINT while the body runs.

    One Ctrl-C reaches a rank twice, from the terminal and from the launcher, so a signal that
    comes within two seconds of the first is ignored. A later one ends the process at once.
    Outside the main thread this does nothing, because Python handles signals there only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: list[float] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if not first:
            first.append(now)
            raise Terminated(number)
        if now - first[0] > _REPEAT_S:
            os._exit(_SIGNAL_STATUS + number)

    previous = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is on_signal:  # else someone chained to it: leave theirs
                signal.signal(number, handler)
