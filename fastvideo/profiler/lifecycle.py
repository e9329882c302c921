"""The ends of a process: normal exit, SIGTERM, and the beginning of a forked child."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from fastvideo.profiler.passing import let_pass

if TYPE_CHECKING:
    from types import FrameType


class Ending(Protocol):
    """What is told about the end of a process."""

    def at_exit(self) -> None:
        """Finishes at the normal end of the process."""

    def on_sigterm(self, chain: Chain) -> None:
        """Finishes quickly, and calls ``chain`` afterwards: what SIGTERM did before."""

    def in_child(self) -> None:
        """Becomes inert in a forked child."""


class Chain:
    """What SIGTERM did before: a handler of the program, or the end of the process.

    Args:
        handler: The Python handler, or None for the default action.
        frame: The frame that the signal interrupted.
    """

    def __init__(self, handler: object, frame: FrameType | None) -> None:
        self._handler = handler
        self._frame = frame

    def __call__(self) -> None:
        """Goes on with it; the default action ends the process with status 143 as ever.

        Raises:
            BaseException: What the handler of the program raised. It is marked as the program's.
        """
        if callable(self._handler):
            try:
                self._handler(signal.SIGTERM, self._frame)
            except BaseException as error:
                let_pass(error)
                raise
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


class LifecycleHooks:
    """Tells one object about the end of the process, from :meth:`install` to :meth:`remove`.

    SIGTERM is left alone where it is ignored, where a handler cannot be chained because it is not
    a Python one, and outside the main thread, where Python cannot install any.
    """

    def __init__(self, ending: Ending) -> None:
        self._ending = ending
        self._previous: object = None
        self._handles_sigterm = False
        self._installed = False

    def install(self) -> None:
        """Registers everything; a second time changes nothing."""
        if self._installed:
            return
        self._installed = True
        atexit.register(self._ending.at_exit)
        _watch_forks(self)
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGTERM)
            if previous is not None and previous is not signal.SIG_IGN:
                self._previous = previous
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._handles_sigterm = True

    def remove(self) -> None:
        """Takes everything back, except a SIGTERM handler that was chained by a later one."""
        if not self._installed:
            return
        self._installed = False
        atexit.unregister(self._ending.at_exit)
        in_main_thread = threading.current_thread() is threading.main_thread()
        if self._handles_sigterm and in_main_thread:
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, self._disposition())
            self._handles_sigterm = False

    def leave_parent(self) -> None:
        """Takes everything back in a forked child and makes the object inert."""
        if self._installed:
            self._ending.in_child()
            self.remove()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        del number
        chain = Chain(self._previous, frame)
        if self._installed:
            self._ending.on_sigterm(chain)
        else:
            chain()

    def _disposition(self) -> signal.Handlers | signal._HANDLER:
        return self._previous  # type: ignore[return-value]


_watched: weakref.WeakSet[LifecycleHooks] = weakref.WeakSet()
_watches = threading.Event()


def _watch_forks(hooks: LifecycleHooks) -> None:
    """Registers one fork handler per process; Python has no way to take one back."""
    _watched.add(hooks)
    if not _watches.is_set():
        _watches.set()
        os.register_at_fork(after_in_child=_leave_parent)


def _leave_parent() -> None:
    for hooks in list(_watched):
        hooks.leave_parent()
