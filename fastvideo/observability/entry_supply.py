"""Entries of sampled traces, made some at a time before they are needed; each trace has a limit.

Taking one from a list is quicker than making one, so the limit costs nothing: it is looked at
where the list runs out.
"""

from __future__ import annotations

from itertools import repeat, starmap
from operator import length_hint
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastvideo.observability.entries import SampledEntry

_AT_ONCE: Final = 64


class EntrySupply:
    """What threads take entries from. Has no lock: each change is one step of the interpreter.

    Args:
        make: Makes an entry.

    Attributes:
        ready: Entries that may be taken.
    """

    def __init__(self, make: Callable[[], SampledEntry]) -> None:
        self.ready: list[SampledEntry] = []
        self._make = make
        self._limit = 0
        self._batches: Iterator[int] = iter(())

    @property
    def is_used_up(self) -> bool:
        """Whether the trace has had all that it may have."""
        return not self.ready and not length_hint(self._batches)

    def allow(self, entries: int) -> None:
        """Begins a trace of at most so many entries."""
        del self.ready[entries:]
        self._limit = entries - len(self.ready)
        self._batches = iter(range(0, self._limit, _AT_ONCE))

    def take(self) -> SampledEntry | None:
        """Returns an entry, or None when the trace has had all that it may have."""
        while True:
            try:
                return self.ready.pop()
            except IndexError:
                start = next(self._batches, None)
            if start is None:
                return None
            number = min(_AT_ONCE, self._limit - start)
            self.ready.extend(starmap(self._make, repeat((), number)))
