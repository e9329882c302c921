"""Entries of regions that measure the device too: events at entry and exit, read later.

The bases keep functions as default arguments because that is quicker; nobody passes them, so
leaving them out here takes nothing from callers.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from fastvideo.observability.entries import NotedEntry, RegionTimer, SampledEntry

if TYPE_CHECKING:
    from types import TracebackType

    from fastvideo.observability.metrics.device_time import DeviceTimer, DeviceToken


class DeviceRegionTimer(RegionTimer):
    """Times host and device; the device's part is added up by the :class:`DeviceTimer`.

    Args:
        idle: The list it puts itself on when the region is left.
        device: Measures the device.
        region: Short name of the region.
    """

    __slots__ = ("_device", "_region", "_token")

    def __init__(self, idle: list[RegionTimer], device: DeviceTimer, region: str) -> None:
        super().__init__(idle)
        self._device = device
        self._region = region
        self._token: DeviceToken | None = None

    def __enter__(self) -> None:  # type: ignore[override]
        self._token = self._device.begin(self._region)
        self._start_ns = perf_counter_ns()

    def __exit__(  # type: ignore[override]
        self, error: object, raised: object, traceback: object
    ) -> None:
        self.total_ns += perf_counter_ns() - self._start_ns
        self.count += 1
        self._device.end(self._token)
        self.idle.append(self)


def sampled_entry_class(device: DeviceTimer) -> type[SampledEntry]:
    """Returns a class of sampled entries that measure with ``device``."""

    class DeviceSampledEntry(SampledEntry):
        """An entry in a sampled trace that knows its time on the device once it has been read."""

        __slots__ = ("_device_token",)

        _device_token: DeviceToken | None

        def __enter__(self) -> None:  # type: ignore[override]
            super().__enter__()
            self._device_token = device.begin(self.region)

        def __exit__(  # type: ignore[override]
            self,
            error: type[BaseException] | None,
            raised: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            device.end(self._device_token)
            super().__exit__(error, raised, traceback)

        @property
        def device_ms(self) -> float | None:  # type: ignore[override]
            """Time on the device in milliseconds, or None while it is not known."""
            token = self._device_token
            return None if token is None else token.elapsed_ms

    class NotedDeviceEntry(DeviceSampledEntry, NotedEntry):
        """One that has something to remember that few have."""

        __slots__ = ()

    DeviceSampledEntry.noted_class = NotedDeviceEntry
    return DeviceSampledEntry
