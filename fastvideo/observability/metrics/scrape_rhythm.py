"""Who scrapes this process and how often, and when the end of a run has been seen.

A process that ends takes its last numbers with it, and the word that it ended well. The endpoint
sees its own scrapes, so it knows whether anybody comes regularly, and when the next one is due.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from statistics import median_low
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ANNOUNCEMENT: Final = "x-prometheus-scrape-timeout-seconds"
"""Header of a request, in small letters, that only programs send which scrape again and again."""

POLL_S: Final = 0.05
"""How often a wait looks whether it is over. A lock would not do: signal handlers end waits too."""

_MOST_SCRAPERS: Final = 8
_REMEMBERED: Final = 5
_TELLING_INTERVALS: Final = 2
_USUAL_INTERVAL_S: Final = 60.0
_MISSED: Final = 3
_SLACK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Scraper:
    """What scrapes.

    Attributes:
        address: Where it comes from.
        program: What it calls itself.
        is_regular: Whether it has said that it scrapes again and again.
    """

    address: str
    program: str
    is_regular: bool


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be expected once the run is over.

    Attributes:
        until: The scrapers that are worth a wait, with the end of it on the rhythm's clock.
        longest_s: The longest of these waits, in seconds from now.
        too_late_s: In how many seconds those come that no wait is long enough for; 0: there are
            none.
    """

    until: Mapping[Scraper, float]
    longest_s: float
    too_late_s: float


@dataclass(slots=True)
class _Visits:
    """When one scraper came.

    Attributes:
        last: When it came last.
        intervals: Seconds between its latest scrapes.
        at_the_end: Its scrapes since the run is over.
    """

    last: float
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    at_the_end: int = 0


class ScrapeRhythm:
    """Remembers scrapes, and waits for those that are to come.

    Args:
        clock: Seconds that only grow.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._visits: OrderedDict[Scraper, _Visits] = OrderedDict()
        self._over_since: float | None = None
        self._lock = threading.Lock()

    def begin(self, scraper: Scraper) -> Callable[[], None]:
        """Takes note that an answer is being made.

        Returns:
            What to call when the whole answer is sent; a scrape that is not answered never was.
        """
        began = self._clock()
        return lambda: self._answered(scraper, began)

    def outlook(self, *, scrapes: int, limit_s: float) -> Outlook:
        """Tells who will come how soon.

        Who has come once only is expected if it has said that it comes again, others if their
        rhythm is known. Who has missed some scrapes has left.

        Args:
            scrapes: How many scrapes of each are wanted.
            limit_s: The longest wait, in seconds.
        """
        now = self._clock()
        until: dict[Scraper, float] = {}
        too_late_s = 0.0
        with self._lock:
            for scraper, visits in self._visits.items():
                known = len(visits.intervals) >= (1 if scraper.is_regular else _TELLING_INTERVALS)
                if not known and not scraper.is_regular:
                    continue
                # One scrape that was missed does not make the interval twice as long.
                interval = median_low(visits.intervals) if known else _USUAL_INTERVAL_S
                if now - visits.last > _MISSED * interval + _SLACK_S:
                    continue
                due_s = visits.last + scrapes * interval - now
                if known and due_s > limit_s:
                    too_late_s = max(too_late_s, due_s)
                    continue
                wait_s = min(limit_s, scrapes * interval + _SLACK_S)
                if wait_s > 0:
                    until[scraper] = now + wait_s
        longest_s = max(until.values(), default=now) - now
        return Outlook(until, longest_s, too_late_s)

    def wait(
        self, outlook: Outlook, *, scrapes: int, is_over: Callable[[], bool] = lambda: False
    ) -> bool:
        """Waits until everybody who is expected has been told of the end.

        Scrapes that began before are not counted: they may have seen the time before.

        Args:
            outlook: Who is expected.
            scrapes: How many scrapes of each are waited for.
            is_over: Tells whether the wait has been called off.

        Returns:
            Whether all of them came.
        """
        with self._lock:
            self._over_since = self._clock()
            for known in self._visits.values():
                known.at_the_end = 0
        awaited = dict(outlook.until)
        came = True
        while awaited and not is_over():
            self._sleep(POLL_S)
            now = self._clock()
            with self._lock:
                for scraper, end in list(awaited.items()):
                    visits = self._visits.get(scraper)
                    if visits is not None and visits.at_the_end >= scrapes:
                        del awaited[scraper]
                    elif now >= end:
                        del awaited[scraper]
                        came = False
        return came and not awaited and bool(outlook.until)

    def _answered(self, scraper: Scraper, began: float) -> None:
        with self._lock:
            visits = self._visits.get(scraper)
            if visits is None:
                visits = self._visits[scraper] = _Visits(began)
                if len(self._visits) > _MOST_SCRAPERS:
                    del self._visits[min(self._visits, key=lambda known: known.is_regular)]
            else:
                visits.intervals.append(began - visits.last)
                visits.last = began
                self._visits.move_to_end(scraper)
            if self._over_since is not None and began > self._over_since:
                visits.at_the_end += 1
