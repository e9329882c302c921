"""Time that regions take on a CUDA device, measured by events and read without waiting for it.

An entry records one event into the stream that is current, its exit another one into the same
stream. Nobody waits for them: :meth:`DeviceTimer.drain` asks which pairs the device has passed and
adds up their times, some steps later if the device is that far behind.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable

logger = init_logger(__name__)


class DeviceStream(Protocol):
    """A stream of a device, as ``torch.cuda.Stream`` is one."""

    @property
    def device_index(self) -> int:
        """Number of the device."""
        ...

    @property
    def stream_id(self) -> int:
        """Number of the stream on its device."""
        ...


class DeviceEvent(Protocol):
    """An event with a time, as ``torch.cuda.Event(enable_timing=True)`` is one."""

    def record(self, stream: Any = None) -> None:  # noqa: ANN401 - the backend's own streams
        """Puts the event at the end of ``stream``."""
        ...

    def query(self) -> bool:
        """Tells, without waiting, whether the device has passed the event."""
        ...

    def elapsed_time(self, end_event: Any) -> float:  # noqa: ANN401 - the backend's own events
        """Returns the milliseconds from this event to ``end_event``; both have been passed."""
        ...


class DeviceBackend(Protocol):
    """What is needed of a device; the module ``torch.cuda`` is one."""

    def is_initialized(self) -> bool:
        """Tells whether this process uses the device; a forked child never does."""
        ...

    def is_current_stream_capturing(self) -> bool:
        """Tells whether the current stream records a graph instead of running."""
        ...

    def current_stream(self) -> DeviceStream:
        """Returns the stream that work of this thread goes to."""
        ...

    def Event(self, *, enable_timing: bool) -> DeviceEvent:  # noqa: N802 - the name in torch.cuda
        """Makes an event."""
        ...


class _Pair:
    """Two events, used again and again on one device."""

    __slots__ = ("end", "start")

    def __init__(self, start: DeviceEvent, end: DeviceEvent) -> None:
        self.start = start
        self.end = end


class DeviceToken:
    """One entry of a region, on one stream.

    Attributes:
        id: Number of this entry, unique in its timer.
        region: The region.
        stream: The stream that was current at the entry.
        pair: The events of an entry that is open, for the timer only.
        elapsed_ms: Milliseconds on the device; None until a drain has read them.
    """

    __slots__ = ("elapsed_ms", "id", "pair", "region", "stream")

    def __init__(self, token_id: int, region: str, pair: _Pair, stream: DeviceStream) -> None:
        self.id = token_id
        self.region = region
        self.stream = stream
        self.pair: _Pair | None = pair
        self.elapsed_ms: float | None = None


class DeviceTimer:
    """Adds up the device time of regions, over any number of threads, streams and devices.

    Nothing here waits for a device, makes a process use one, or raises: without an initialised
    device, in a forked child, and while a stream captures a graph, nothing is measured. A device
    that reports an error ends the measuring, which is said once.

    Args:
        pool_size: Entries per device that may be open or unread at a time. What goes beyond is not
            measured, and counted. A device is rarely more than a thousand launches behind.
        backend: The device; None: ``torch.cuda``.
        callback: Called with each token and its milliseconds when they are read: by :meth:`drain`,
            or by :meth:`begin` with an empty pool. One that raises is not called again.

    Attributes:
        callback: As given; it may be replaced.
        exhausted: Entries that were not measured because the pool was empty.
    """

    def __init__(
        self,
        pool_size: int = 2048,
        backend: DeviceBackend | None = None,
        *,
        callback: Callable[[DeviceToken, float], None] | None = None,
    ) -> None:
        self.exhausted = 0
        self._pool_size = pool_size
        self._backend = cast(DeviceBackend, torch.cuda) if backend is None else backend
        self.callback = callback
        self._ids = itertools.count(1)
        self._idle: dict[int, list[_Pair]] = {}
        self._made: dict[int, int] = {}
        self._making = threading.Lock()
        self._ended: deque[tuple[DeviceToken, _Pair]] = deque()
        self._unread: list[tuple[DeviceToken, _Pair]] = []
        self._draining = threading.Lock()
        self._totals: dict[str, tuple[int, float]] = {}
        self._failed = False

    def begin(self, region: str) -> DeviceToken | None:
        """Marks the entry of a region in the current stream.

        Args:
            region: Short name of the region.

        Returns:
            What :meth:`end` takes; None if this entry cannot be measured.
        """
        if self._failed:
            return None
        backend = self._backend
        try:
            if not backend.is_initialized() or backend.is_current_stream_capturing():
                return None
            stream = backend.current_stream()
            device = stream.device_index
            try:
                pair = self._idle[device].pop()
            except LookupError:
                made = self._make_pair(device)
                if made is None:
                    return None
                pair = made
            pair.start.record(stream)
        except Exception as error:  # noqa: BLE001 - telemetry never breaks what it observes
            self._fail(error)
            return None
        return DeviceToken(next(self._ids), region, pair, stream)

    def end(self, token: DeviceToken | None) -> None:
        """Marks the exit of an entry, in the stream that it began in; a second time does nothing.

        Args:
            token: What :meth:`begin` returned; None does nothing.
        """
        if token is None or token.pair is None:
            return
        pair, token.pair = token.pair, None
        if self._failed:
            return
        backend = self._backend
        try:
            if not backend.is_initialized():
                return
            if backend.is_current_stream_capturing():
                self._idle[token.stream.device_index].append(pair)
                return
            pair.end.record(token.stream)
        except Exception as error:  # noqa: BLE001 - telemetry never breaks what it observes
            self._fail(error)
            return
        self._ended.append((token, pair))

    def drain(self) -> int:
        """Reads the times of the entries that the device has finished with; never waits.

        Belongs on the thread that launches work, such as once per step: an event must not be asked
        from elsewhere while that thread captures a graph. If another thread drains, it returns.

        Returns:
            How many entries were read.
        """
        if self._failed or not self._draining.acquire(blocking=False):
            return 0
        backend = self._backend
        try:
            if not backend.is_initialized() or backend.is_current_stream_capturing():
                return 0
            return self._read_finished()
        except Exception as error:  # noqa: BLE001 - telemetry never breaks what it observes
            self._fail(error)
            return 0
        finally:
            self._draining.release()

    def snapshot(self) -> dict[str, tuple[int, float]]:
        """Returns, for each region, how many entries were read and their seconds in all."""
        read = dict(self._totals)  # in one piece: another thread may be draining
        return {region: (count, total_ms / 1e3) for region, (count, total_ms) in read.items()}

    @property
    def pending(self) -> int:
        """Entries that have ended and are not read yet."""
        return len(self._ended) + len(self._unread)

    def _make_pair(self, device: int) -> _Pair | None:
        """Returns a pair when none is idle: one just drained, a new one, or None at the limit."""
        if self._made.get(device, 0) >= self._pool_size and self.drain():
            try:
                return self._idle[device].pop()
            except LookupError:  # what was drained belongs to other devices or threads
                pass
        with self._making:
            if self._made.get(device, 0) >= self._pool_size:
                self.exhausted += 1
                return None
            self._made[device] = self._made.get(device, 0) + 1
            self._idle.setdefault(device, [])
        event = self._backend.Event
        return _Pair(event(enable_timing=True), event(enable_timing=True))

    def _read_finished(self) -> int:
        """Reads in the order of each stream, up to its first entry that is not finished."""
        entries = self._unread
        while self._ended:
            entries.append(self._ended.popleft())
        unread: list[tuple[DeviceToken, _Pair]] = []
        busy: set[tuple[int, int]] = set()
        for entry in entries:
            token, pair = entry
            stream = token.stream
            key = (stream.device_index, stream.stream_id)
            if key in busy or not pair.end.query():
                busy.add(key)
                unread.append(entry)
            else:
                self._read(token, pair, stream.device_index)
        self._unread = unread
        return len(entries) - len(unread)

    def _read(self, token: DeviceToken, pair: _Pair, device: int) -> None:
        milliseconds = pair.start.elapsed_time(pair.end)
        self._idle[device].append(pair)
        count, total_ms = self._totals.get(token.region, (0, 0.0))
        self._totals[token.region] = (count + 1, total_ms + milliseconds)
        token.elapsed_ms = milliseconds
        callback = self.callback
        if callback is None:
            return
        try:
            callback(token, milliseconds)
        except Exception:
            self.callback = None
            logger.exception("the receiver of device times raised and is not called again")

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            logger.warning(
                "device times are no longer measured: the device answered with %s; the run goes on",
                type(error).__name__,
            )
