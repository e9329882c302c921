"""What listens to regions: the sink protocol, and the one process-global, the attached sinks."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from fastvideo.profiler.region import Site
    from fastvideo.profiler.registry import ProfilerRegion

logger = init_logger(__name__)

Attributes = dict[str, object]
ContextManager = AbstractContextManager[object, bool | None]


class ClockTimer(Protocol):
    """Times one entry of a region.

    Attributes:
        site: The call site's region; set before the entry.
        attributes: What the call site said about this entry; set before the entry.
    """

    site: Site
    attributes: Attributes

    def note_segment(self, file_name: str) -> None:
        """Is told, before the entry, that it records a kernel trace of this name."""
        ...

    def __enter__(self) -> object:
        """Begins the entry."""
        ...

    def __exit__(
        self,
        error: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Ends the entry, whatever leaves it."""
        ...


class RegionClock(Protocol):
    """Times every region, in every run: what always-on telemetry is made of.

    It stands apart from the sinks because its cost is paid at every entry. An entry that only the
    clock hears of is a timer taken from the list of idle ones, and nothing else; the timer puts
    itself back when it is left.
    """

    def bind(self, sites: Sequence[Site]) -> None:
        """Sets what entries at all call sites do; called when sites, sinks or the clock change.

        It sets ``time`` of each site, and ``idle`` and ``open`` of those that no sink listens to.
        These two the clock may set again by itself, holding what
        :func:`~fastvideo.profiler.region.changing_sites` returns.
        """
        ...


@runtime_checkable
class RegionSink(Protocol):
    """Receives the entries and exits of regions.

    The methods run on the thread that enters the region, between the lines of the program that
    is observed: they must be quick, and must not block, synchronise a device or read a tensor. A
    sink that raises is detached, and that is reported once.
    """

    def wants(self, region: ProfilerRegion) -> bool:
        """Tells whether this sink is to be called for ``region``; asked once, when attaching."""
        ...

    def enter(self, region: ProfilerRegion, annotation: str, attributes: Attributes) -> object:
        """Handles the entry of a region.

        Args:
            region: The region.
            annotation: ``fastvideo.region::<name as the call site wrote it>``.
            attributes: What the call site said about this entry; not to be changed.

        Returns:
            A token that ``exit`` receives; exits may come out of order, and on another thread.
        """
        ...

    def exit(self, token: object, error: type[BaseException] | None) -> None:
        """Handles the exit of the entry that returned ``token``.

        Args:
            token: What ``enter`` returned.
            error: The type of the exception that leaves the region, or None.
        """
        ...


class RecordingSink:
    """A sink that remembers what it was told, for tests.

    Attributes:
        events: ``("enter" | "exit", short region name)`` in order.
        attributes: The attributes of each entry, in the order of the entries.
        errors: The exception type of each exit, in the order of the exits.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.attributes: list[Attributes] = []
        self.errors: list[type[BaseException] | None] = []

    def wants(self, region: ProfilerRegion) -> bool:
        """Wants every region."""
        del region
        return True

    def enter(self, region: ProfilerRegion, annotation: str, attributes: Attributes) -> object:
        """Records the entry."""
        del annotation
        self.events.append(("enter", region.short_name))
        self.attributes.append(attributes)
        return region.short_name

    def exit(self, token: object, error: type[BaseException] | None) -> None:
        """Records the exit."""
        self.events.append(("exit", str(token)))
        self.errors.append(error)


class SinkList:
    """The attached sinks, replaced as a whole so that readers need no lock.

    Args:
        changed: Called after every change, while the change is still exclusive.
        in_child: Called first in a forked child.

    Attributes:
        lock: Held while sinks, and what they make of call sites, change.
        starved: Calls of sinks that found neither stack nor memory, which were skipped and are
            reported when a sink is detached.
    """

    def __init__(self, changed: Callable[[], None], *, in_child: Callable[[], None]) -> None:
        self.current: tuple[RegionSink, ...] = ()
        self.generation = 0
        self.errors: Counter[str] = Counter()
        self.starved = 0
        self._changed = changed
        self._in_child = in_child
        self.lock = threading.RLock()
        self._watches_fork = False

    def attach(self, sink: RegionSink) -> None:
        """Adds ``sink`` behind those already there; a second time changes nothing."""
        self.watch_forks()
        with self.lock:
            if not any(present is sink for present in self.current):
                self.current = (*self.current, sink)
                self._changed()

    def watch_forks(self) -> None:
        """Makes sure that nothing stays attached in forked children."""
        with self.lock:
            if not self._watches_fork:
                os.register_at_fork(after_in_child=self._leave_parent)
                self._watches_fork = True

    def detach(self, sink: RegionSink) -> None:
        """Removes ``sink``; one that is not attached changes nothing."""
        with self.lock:
            starved, self.starved = self.starved, 0
            if starved:
                logger.warning(
                    "region sinks missed %d entries or exits, for calls were nested to Python's "
                    "limit or memory was short",
                    starved,
                )
            kept = tuple(present for present in self.current if present is not sink)
            if len(kept) != len(self.current):
                self.current = kept
                self._changed()

    def drop(self, sink: RegionSink, error: Exception) -> None:
        """Detaches a sink that raised ``error``, and reports that once."""
        with self.lock:
            name = type(sink).__name__
            self.errors[name] += 1
            if any(present is sink for present in self.current):
                self.detach(sink)
                logger.error(
                    "region sink %s raised and was detached; the run goes on", name, exc_info=error
                )

    def error_counts(self) -> Mapping[str, int]:
        """Returns how often sinks raised, by the name of their class."""
        return dict(self.errors)

    def _leave_parent(self) -> None:
        """Turns everything off in a forked child, whose threads and files are not its own."""
        self.lock = threading.RLock()
        self.generation += 1
        self.current = ()
        self._in_child()
        self._changed()
