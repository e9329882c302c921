"""Who is waited for at the end of a run, and how long: with a clock that does not run by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastvideo.observability.metrics.scrape_rhythm import POLL_S, Scraper, ScrapeRhythm

if TYPE_CHECKING:
    from collections.abc import Callable

PROMETHEUS = Scraper("10.0.0.1", "Prometheus/3.1.0", is_regular=True)
ITS_TWIN = Scraper("10.0.0.2", "Prometheus/3.1.0", is_regular=True)
AGENT = Scraper("10.0.0.3", "agent/7", is_regular=False)
CURL = Scraper("10.0.0.4", "curl/8", is_regular=False)

LIMIT_S = 20.0


class Time:
    """A clock that sleeping moves on, and things that happen at some moments."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events: list[tuple[float, Callable[[], object]]] = []
        self.rhythm = ScrapeRhythm(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        """Lets time pass, and what lies in it happen."""
        self.now += seconds
        for event in [event for event in self.events if event[0] <= self.now]:
            self.events.remove(event)
            event[1]()

    def scrape(self, scraper: Scraper = PROMETHEUS) -> None:
        """Scrapes, and gets the whole answer at once."""
        self.rhythm.begin(scraper)()

    def scraped(self, *seconds: float, scraper: Scraper = PROMETHEUS) -> Time:
        """Scrapes now, and again some seconds later, and so on."""
        for pause in (0.0, *seconds):
            self.now += pause
            self.scrape(scraper)
        return self

    def after(self, seconds: float, happens: Callable[[], object]) -> Time:
        """Lets something happen in some seconds."""
        self.events.append((self.now + seconds, happens))
        return self

    def wait(
        self,
        scrapes: int = 1,
        limit_s: float = LIMIT_S,
        is_over: Callable[[], bool] = lambda: False,
    ) -> tuple[bool, float]:
        """Waits; returns whether all came, and how long it took."""
        start = self.now
        outlook = self.rhythm.outlook(scrapes=scrapes, limit_s=limit_s)
        came = self.rhythm.wait(outlook, scrapes=scrapes, is_over=is_over)
        return came, pytest.approx(self.now - start, abs=2 * POLL_S)


@pytest.fixture
def time() -> Time:
    """A clock."""
    return Time()


def test_the_wait_ends_with_the_next_scrape(time: Time) -> None:
    """The last scrape was 5 s ago and they come each 15 s: 10 s it is."""
    time.scraped(15, 15).sleep(5)
    time.after(10, time.scrape)
    assert time.wait() == (True, 10)


def test_a_scrape_that_does_not_come_is_waited_for_an_interval_and_a_second(time: Time) -> None:
    """Scrapes are as regular as the clock, or somebody has left."""
    time.scraped(15, 15).sleep(5)
    assert time.wait() == (False, 16)


def test_nobody_waits_longer_than_is_allowed(time: Time) -> None:
    """The limit counts where it is the shorter of the two."""
    time.scraped(15, 15).sleep(13)
    assert time.wait(limit_s=4) == (False, 4)


def test_nobody_is_waited_for_who_cannot_come_in_time(time: Time) -> None:
    """A wait that must be in vain is left out, and it is known how long it would have been."""
    time.scraped(60, 60).sleep(5)
    outlook = time.rhythm.outlook(scrapes=1, limit_s=LIMIT_S)
    assert (outlook.until, outlook.longest_s, outlook.too_late_s) == ({}, 0, 55)
    assert time.wait() == (False, 0)
    assert time.after(55, time.scrape).wait(limit_s=61) == (True, 55)


def test_a_scrape_that_was_missed_does_not_change_the_rhythm(time: Time) -> None:
    """The intervals were 15, 15, 30 and 15 s."""
    time.scraped(15, 15, 30, 15).after(15, time.scrape)
    assert time.wait() == (True, 15)


def test_without_scrapes_there_is_no_wait(time: Time) -> None:
    """Nobody came: the process ends at once."""
    assert time.wait() == (False, 0)


def test_who_has_left_is_not_waited_for(time: Time) -> None:
    """Three scrapes in a row did not come."""
    time.scraped(15, 15).sleep(47)
    assert time.wait() == (False, 0)


def test_prometheus_is_expected_after_one_scrape(time: Time) -> None:
    """It says that it will come again, and when is not known: at most as long as is allowed."""
    time.scraped().after(14, time.scrape)
    assert time.wait() == (True, 14)
    assert Time().scraped().wait() == (False, LIMIT_S)


def test_others_are_expected_when_their_rhythm_is_known(time: Time) -> None:
    """Two requests of a person are no rhythm; three of a program are."""
    time.scraped(3, scraper=CURL)
    assert time.wait() == (False, 0)
    time.scraped(10, 10, scraper=AGENT).after(10, lambda: time.scrape(AGENT))
    assert time.wait() == (True, 10)


def test_a_person_who_looks_does_not_change_the_rhythm(time: Time) -> None:
    """Requests of somebody else are neither counted as intervals nor taken for the last scrape."""
    time.scraped(15).sleep(7)
    time.scrape(CURL)
    time.sleep(8)
    time.scrape()
    time.after(1, lambda: time.scrape(CURL)).after(15, time.scrape)
    assert time.wait() == (True, 15)


def test_each_of_two_is_waited_for(time: Time) -> None:
    """Two Prometheus servers that watch the same run both see its end."""
    for _ in range(3):
        time.scrape()
        time.sleep(2)
        time.scrape(ITS_TWIN)
        time.sleep(13)
    time.scrape()
    time.after(2, lambda: time.scrape(ITS_TWIN)).after(15, time.scrape)
    assert time.wait() == (True, 15)


def test_two_scrapes_take_two_intervals(time: Time) -> None:
    """Where two are wanted, one is not enough."""
    time.scraped(15, 15).after(15, time.scrape).after(30, time.scrape)
    assert time.wait(scrapes=2, limit_s=40) == (True, 30)


def test_an_answer_that_was_begun_before_does_not_count(time: Time) -> None:
    """It may show the time before the end; only the next one shows it for certain."""
    time.scraped(15, 14)
    answered = time.rhythm.begin(PROMETHEUS)
    time.after(1, answered).after(15, time.scrape)
    assert time.wait() == (True, 15)


def test_an_answer_that_was_never_sent_is_no_scrape(time: Time) -> None:
    """The client has left in the middle of it."""
    time.scraped(15, 15).after(5, lambda: time.rhythm.begin(PROMETHEUS))
    assert time.wait() == (False, 16)


def test_the_wait_can_be_called_off(time: Time) -> None:
    """A second signal ends it within a moment."""
    over: list[bool] = []
    time.scraped(15, 15).after(3, lambda: over.append(True))
    assert time.wait(is_over=lambda: bool(over)) == (False, 3)


def test_strangers_take_no_memory(time: Time) -> None:
    """However many ask, a few are remembered, and before all others those that come regularly."""
    time.scraped(15, 15)
    for number in range(100):
        time.scraped(1, 1, scraper=Scraper("10.0.0.9", f"agent/{number}", is_regular=False))
        time.now -= 2
    outlook = time.rhythm.outlook(scrapes=1, limit_s=LIMIT_S)
    assert PROMETHEUS in outlook.until
    assert len(outlook.until) == 8
