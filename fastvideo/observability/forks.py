"""Forked children get nothing that lives: what a process serves or sends with is its own."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class ParentOnly(Protocol):
    """Something with sockets or threads that a forked child must not have."""

    def leave_parent(self) -> None:
        """Lets go, in a forked child, of what is the parent's, without a word to anybody."""


class _Forks:
    """What every fork of this process passes through.

    Attributes:
        lock: Whoever holds it keeps other threads from forking: held while a socket is made or
            closed, when no object knows of it that a child could use to close its copy.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._parents_only: weakref.WeakSet[ParentOnly] = weakref.WeakSet()
        self._watches = False

    def watch(self, thing: ParentOnly) -> None:
        """Sees that forked children leave ``thing`` to this process.

        What is registered with Python for forks stays for ever, so that is done once.
        """
        self._parents_only.add(thing)
        if not self._watches:
            self._watches = True
            os.register_at_fork(
                before=lambda: self.lock.acquire(),  # noqa: PLW0108 - a child has another lock
                after_in_parent=lambda: self.lock.release(),  # noqa: PLW0108 - as above
                after_in_child=self._in_child,
            )

    def _in_child(self) -> None:
        self.lock = threading.RLock()
        for thing in list(self._parents_only):
            thing.leave_parent()


FORKS = _Forks()
"""Of this process."""
