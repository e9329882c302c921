"""The clock of all regions: durations in every run, spans in sampled traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastvideo.observability.device_entries import DeviceRegionTimer, sampled_entry_class
from fastvideo.observability.entries import RegionTimer, SampledEntry
from fastvideo.profiler.region import get_clock, list_profiler_regions, set_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastvideo.observability.metrics.device_time import DeviceTimer
    from fastvideo.profiler.region import Site
    from fastvideo.profiler.registry import ProfilerRegion
    from fastvideo.profiler.sinks import ClockTimer

_NS_PER_S: Final = 1e9


class _RegionTimes:
    """The timers of one region, and what its sampled entries took.

    Attributes:
        idle: Timers that nobody uses.
        timers: All timers.
        sampled_count: Finished entries in sampled traces.
        sampled_ns: Their duration.
    """

    __slots__ = ("_device", "_region", "idle", "sampled_count", "sampled_ns", "timers")

    def __init__(self, region: str, device: DeviceTimer | None) -> None:
        self.idle: list[RegionTimer] = []
        self.timers: list[RegionTimer] = []
        self.sampled_count = 0
        self.sampled_ns = 0
        self._region = region
        self._device = device

    def new_timer(self) -> RegionTimer:
        """Returns a timer for an entry that finds none idle."""
        if self._device is None:
            timer = RegionTimer(self.idle)
        else:
            timer = DeviceRegionTimer(self.idle, self._device, self._region)
        self.timers.append(timer)
        return timer

    def total_ns(self) -> int:
        """Returns the duration of all finished entries."""
        return self.sampled_ns + sum(timer.total_ns for timer in tuple(self.timers))

    def count(self) -> int:
        """Returns the number of finished entries."""
        return self.sampled_count + sum(timer.count for timer in tuple(self.timers))


class TelemetryClock:
    """Times every region of the process.

    It has two modes. Between sampled traces an entry is timed and nothing else; within one, every
    entry leaves an object behind, which becomes a span. Changing the mode makes call sites ask
    anew; entries that are open then finish in the mode they began in.

    Args:
        device: Measures the device as well; None: there is none.

    Attributes:
        sampled_entry: Makes an entry of a sampled trace.
    """

    def __init__(self, device: DeviceTimer | None = None) -> None:
        self.sampled_entry = SampledEntry if device is None else sampled_entry_class(device)
        self._device = device
        self._times: dict[str, _RegionTimes] = {}
        self._roots: dict[str, Callable[[], ClockTimer]] = {}
        self._sampling = False

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

    def sample(self, *, on: bool) -> None:
        """Begins or ends the time in which entries leave spans behind."""
        if self._sampling != on:
            self._sampling = on
            if get_clock() is self:
                set_clock(self)

    def idle_timers(self, region: ProfilerRegion) -> list[Any]:
        """Returns the idle timers of a region, or an empty list where a timer is not enough."""
        if self._sampling or region.short_name in self._roots:
            return []
        return self._of(region.short_name).idle

    def opener(self, region: ProfilerRegion) -> Callable[[], ClockTimer]:
        """Returns what makes the timer of one entry."""
        root = self._roots.get(region.short_name)
        if root is not None:
            return root
        if self._sampling:
            return self.sampled_entry
        return self._of(region.short_name).new_timer

    def new_timer(self, site: Site) -> RegionTimer:
        """Returns a timer for one entry, idle or new, outside of any trace."""
        times = self._of(site.region.short_name)
        try:
            return times.idle.pop()
        except IndexError:
            return times.new_timer()

    def add_sampled(self, entries: Iterable[SampledEntry]) -> None:
        """Adds the durations of sampled entries; only the thread that ends a trace does this."""
        for entry in entries:
            times = self._of(entry.region)
            times.sampled_ns += entry.end_ns - entry.start_ns
            times.sampled_count += 1

    def total_ns(self, regions: Iterable[str]) -> int:
        """Returns the duration of all finished entries of ``regions``, in nanoseconds."""
        return sum(self._of(region).total_ns() for region in regions)

    def snapshot(self) -> dict[str, tuple[int, float]]:
        """Returns count and duration in seconds of finished entries, of every registered region."""
        result = {}
        for region in list_profiler_regions():
            times = self._times.get(region.short_name)
            counted = (times.count(), times.total_ns() / _NS_PER_S) if times else (0, 0.0)
            result[region.short_name] = counted
        return result

    def _of(self, region: str) -> _RegionTimes:
        times = self._times.get(region)
        if times is None:
            times = self._times.setdefault(region, _RegionTimes(region, self._device))
        return times
