"""The clock of all regions: durations in every run, spans in sampled traces."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from fastvideo.observability.device_entries import DeviceRegionTimer, sampled_entry_class
from fastvideo.observability.entries import RegionTimer, SampledEntry
from fastvideo.observability.entry_supply import EntrySupply
from fastvideo.profiler.region import (
    changing_sites,
    get_clock,
    list_profiler_regions,
    set_clock,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastvideo.observability.metrics.device_time import DeviceTimer
    from fastvideo.profiler.region import Site
    from fastvideo.profiler.sinks import ClockTimer

_NS_PER_S: Final = 1e9
_FEW_TIMERS: Final = 16
_NO_TIMERS: Final[list[Any]] = []


class _RegionTimes:
    """The timers of one region, and what its sampled entries took.

    Args:
        region: Short name of the region.
        clock: Says whether an entry is one of a sampled trace.
        device: Measures the device as well; None: there is none.

    Attributes:
        idle: Timers that nobody uses.
        timers: All timers.
        sampled_count: Finished entries in sampled traces.
        sampled_ns: Their duration.
    """

    __slots__ = (
        "_clock",
        "_device",
        "_look_at",
        "_looking",
        "_region",
        "idle",
        "sampled_count",
        "sampled_ns",
        "timers",
    )

    def __init__(self, region: str, clock: TelemetryClock, device: DeviceTimer | None) -> None:
        self.idle: list[RegionTimer] = []
        self.timers: list[RegionTimer] = []
        self.sampled_count = 0
        self.sampled_ns = 0
        self._region = region
        self._clock = clock
        self._device = device
        self._looking = threading.Lock()
        self._look_at = _FEW_TIMERS

    def take(self) -> ClockTimer:
        """Returns what times one entry, in a sampled trace or between them."""
        return self._clock.take_sampled() or self.take_timer()

    def take_timer(self) -> RegionTimer:
        """Returns a timer, idle or new."""
        try:
            return self.idle.pop()
        except IndexError:
            pass
        if len(self.timers) >= self._look_at:
            self._reclaim()
            try:
                return self.idle.pop()
            except IndexError:
                pass
        if self._device is None:
            timer = RegionTimer(self.idle)
        else:
            timer = DeviceRegionTimer(self.idle, self._device, self._region)
        self.timers.append(timer)
        return timer

    def total_ns(self) -> int:
        """Returns the duration of all finished entries."""
        if not self.timers:  # most regions are entered in some methods only
            return self.sampled_ns
        return self.sampled_ns + sum([timer.total_ns for timer in tuple(self.timers)])

    def timed_count(self) -> int:
        """Returns the number of finished entries that timers have counted."""
        return sum([timer.count for timer in tuple(self.timers)])

    def count(self) -> int:
        """Returns the number of finished entries."""
        return self.sampled_count + self.timed_count()

    def _reclaim(self) -> None:
        """Makes timers idle that nobody holds any more: regions that were never entered.

        A timer cannot notice by itself that it is forgotten, for it is on the list of all timers.
        That there is no other reference to it says so, and costs nothing while regions are
        entered as they should be. The list is looked through again when it has doubled.
        """
        if not self._looking.acquire(blocking=False):  # a timer must not become idle twice
            return
        try:
            (alone,) = _reference_counts([object()])
            counts = _reference_counts(self.timers)
            forgotten = [
                timer for timer, count in zip(self.timers, counts, strict=False) if count <= alone
            ]
            self._look_at = max(_FEW_TIMERS, 2 * (len(counts) - len(forgotten)))
            self.idle.extend(forgotten)
        finally:
            self._looking.release()


def _reference_counts(objects: list[Any]) -> list[int]:
    return [sys.getrefcount(each) for each in objects]


class TelemetryClock:
    """Times every region of the process.

    It has two modes. Between sampled traces an entry is timed and nothing else; within one, every
    entry leaves an object behind, which becomes a span, until the trace has as many as it may
    have. Changing the mode changes all call sites; entries that are open then finish in the mode
    they began in.

    Args:
        device: Measures the device as well; None: there is none.

    Attributes:
        new_entry: Makes an entry that leaves a span behind.
    """

    def __init__(self, device: DeviceTimer | None = None) -> None:
        self.new_entry = SampledEntry if device is None else sampled_entry_class(device)
        self._device = device
        self._supply = EntrySupply(self.new_entry)
        self._times: dict[str, _RegionTimes] = {}
        self._roots: dict[str, Callable[[], ClockTimer]] = {}
        self._sites: list[tuple[Site, list[Any], Callable[[], ClockTimer]]] = []
        self._sampling = False
        self._timed_at_limit: int | None = None

    def set_root(self, region: str, make: Callable[[], ClockTimer]) -> None:
        """Makes entries of ``region`` roots of traces.

        Args:
            region: Short name.
            make: Makes the context manager of an entry that may begin a trace.
        """
        self._roots[region] = make

    def start(self) -> None:
        """Begins to time regions."""
        set_clock(self)

    def stop(self) -> None:
        """Ends timing, unless another clock took over."""
        if get_clock() is self:
            set_clock(None)

    def bind(self, sites: Sequence[Site]) -> None:
        """Sets what entries at all call sites do."""
        unheard = []
        for site in sites:
            name = site.short_name
            times = self._of(name)
            root = self._roots.get(name)
            site.time = root or times.take
            if site.sinks:
                continue
            if root is None:
                unheard.append((site, times.idle, times.take))
            else:
                site.idle, site.open = [], root
        self._sites = unheard
        self._set_sites()

    def begin_sampling(self, max_entries: int) -> None:
        """Begins the time in which entries leave spans behind.

        Args:
            max_entries: How many of them do; the others are timed only.
        """
        with changing_sites():
            self._supply.allow(max_entries)
            self._timed_at_limit = None
            self._sample(on=True)

    def end_sampling(self) -> int:
        """Ends that time; returns how many finished entries left no span for want of room."""
        with changing_sites():
            self._sample(on=False)
            at_limit, self._timed_at_limit = self._timed_at_limit, None
            return 0 if at_limit is None else self._timed_count() - at_limit

    def take_sampled(self) -> SampledEntry | None:
        """Returns an entry that leaves a span behind, or None where none does."""
        if not self._sampling:
            return None
        entry = self._supply.take()
        if entry is None:
            with changing_sites():
                if self._sampling and self._supply.is_used_up:
                    self._timed_at_limit = self._timed_count()
                    self._sample(on=False)
        return entry

    def take(self, site: Site) -> ClockTimer:
        """Returns what times one entry, in a sampled trace or between them."""
        return self._of(site.short_name).take()

    def take_timer(self, site: Site) -> RegionTimer:
        """Returns a timer for one entry, idle or new, outside of any trace."""
        return self._of(site.short_name).take_timer()

    def add_sampled(self, entries: Iterable[SampledEntry]) -> None:
        """Adds the durations of sampled entries; only the thread that ends a trace does this."""
        of = self._times
        for entry in entries:
            times = of[entry.site.short_name]
            times.sampled_ns += entry.end_ns - entry.start_ns
            times.sampled_count += 1

    def total_ns(self, regions: Iterable[str]) -> int:
        """Returns the duration of all finished entries of ``regions``, in nanoseconds."""
        return sum([self._of(region).total_ns() for region in regions])

    def snapshot(self) -> dict[str, tuple[int, float]]:
        """Returns count and duration in seconds of finished entries, of every registered region."""
        result = {}
        for region in list_profiler_regions():
            times = self._times.get(region.short_name)
            counted = (times.count(), times.total_ns() / _NS_PER_S) if times else (0, 0.0)
            result[region.short_name] = counted
        return result

    def _sample(self, *, on: bool) -> None:
        if self._sampling != on:
            self._sampling = on
            if get_clock() is self:
                self._set_sites()

    def _set_sites(self) -> None:
        """Sets what entries do where no sink listens and no trace begins."""
        if self._sampling:
            take: Any = self._supply.ready.pop
            for site, _, _ in self._sites:
                site.idle = _NO_TIMERS
                site.open = take
        else:
            for site, idle, take in self._sites:
                site.open = take
                site.idle = idle

    def _timed_count(self) -> int:
        return sum([times.timed_count() for times in tuple(self._times.values())])

    def _of(self, region: str) -> _RegionTimes:
        times = self._times.get(region)
        if times is None:
            times = self._times.setdefault(region, _RegionTimes(region, self, self._device))
        return times
