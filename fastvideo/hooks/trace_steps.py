"""Which step of which loop a thread is in, for whatever records what happens in steps."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from types import TracebackType


@final
class TraceStep:
    """One entry of one step.

    Attributes:
        index: Number of the step; None for what happens outside of steps.
        loop: Name of the loop, empty for the loop of training or of one's own.
        entries: What recorders keep here: how often they have seen this step of this loop before.
    """

    __slots__ = ("_calls", "entries", "index", "loop")

    def __init__(self, index: int | None, loop: str = "") -> None:
        self.index = index
        self.loop = loop
        self.entries: dict[Hashable, int] = {}
        self._calls: defaultdict[Hashable, Iterator[int]] = defaultdict(itertools.count)

    def next_call(self, key: Hashable) -> int:
        """Counts something in this step, from 0.

        Args:
            key: What is counted.
        """
        return next(self._calls[key])

    def __enter__(self) -> TraceStep:
        if _listeners:
            _open.append(self)
        _here.stack.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _here.stack.remove(self)
        if self in _open:
            _open.remove(self)
        for listener in tuple(_listeners):
            listener()


class _Here(threading.local):
    """The open steps of a thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[TraceStep] = []


_here = _Here()
_open: list[TraceStep] = []
_listeners: list[Callable[[], None]] = []


def trace_step(index: int, *, loop: str = "") -> TraceStep:
    """Marks the body as a step, in this thread; steps may be inside of others.

    Args:
        index: Number of the step.
        loop: Name of the loop, where a program has several, such as ``denoising``.

    Returns:
        A context manager.
    """
    return TraceStep(index, loop)


def current_step_idx() -> int | None:
    """Returns the number of the innermost step that this thread is in; None outside of steps."""
    stack = _here.stack
    return stack[-1].index if stack else None


def current_step(*, in_backward: bool = False) -> TraceStep | None:
    """Returns the innermost step that this thread is in; None outside of steps.

    Args:
        in_backward: This may be a thread of autograd, which knows no steps of its own: the step
            that was entered last counts there.
    """
    stack = _here.stack
    if stack:
        return stack[-1]
    if in_backward and _open:
        return _open[-1]
    return None


def call_at_step_ends(listener: Callable[[], None]) -> None:
    """Calls ``listener`` at the end of every step of every thread, in that thread.

    Args:
        listener: Must not raise.
    """
    _listeners.append(listener)


def leave_step_ends(listener: Callable[[], None]) -> None:
    """Takes back what :func:`call_at_step_ends` did.

    Args:
        listener: The same; one that is not called does no harm.
    """
    if listener in _listeners:
        _listeners.remove(listener)
