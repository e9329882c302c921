"""Asking a Prometheus server."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from fake_prometheus import FakePrometheus

from fastvideo.dashboards.prometheus import Prometheus, PrometheusError, Series, parse_duration
from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    """A server."""
    server = FakePrometheus()
    yield server
    server.close()


def test_instant_queries_return_series(fake: FakePrometheus) -> None:
    """Labels, one time, one value; a scalar has no labels."""
    client = Prometheus(fake.url + "/")
    found = client.instant("up", at=12.5)
    assert [(one.labels["rank"], one.times, one.values) for one in found] == [
        ("0", (12.5,), (0.25,)),
        ("1", (12.5,), (0.25,)),
    ]
    assert client.instant("scalar(1)", at=0.0) == [Series({}, (7.0,), (1.0,))]


def test_range_queries_return_samples_at_each_step(fake: FakePrometheus) -> None:
    """From the start, never beyond the end."""
    found = Prometheus(fake.url).range("up", start=100.0, end=131.0, step_s=10.0)
    assert found[0].times == (100.0, 110.0, 120.0, 130.0)
    assert len(found[0].values) == 4


def test_label_values_are_sorted_as_people_count(fake: FakePrometheus) -> None:
    """Rank 2 comes before rank 10; the selector is sent as match[]."""
    client = Prometheus(fake.url)
    values = client.label_values('x{run="a"}', "rank", start=0.0, end=9.0)
    assert values == ["0", "2", "10"]
    assert fake.asked[-1][1]["match[]"] == ['x{run="a"}']


def test_exemplars_and_alerts_are_returned(fake: FakePrometheus) -> None:
    """Each exemplar with the labels of its series."""
    client = Prometheus(fake.url)
    assert client.exemplars("x", start=0.0, end=9.0) == [
        {
            "labels": {"trace_id": "t"},
            "value": "1",
            "timestamp": 3.5,
            "seriesLabels": {"rank": "0"},
        }
    ]
    assert [alert["state"] for alert in client.alerts()] == ["firing"]


def test_the_scrape_interval_is_read_from_the_server(fake: FakePrometheus) -> None:
    """Out of its global section."""
    assert Prometheus(fake.url).scrape_interval_s() == 5.0


def test_a_refused_query_is_told_in_prometheus_own_words(fake: FakePrometheus) -> None:
    """With the kind of the error."""
    with pytest.raises(PrometheusError, match="refuses the query: bad_data: parse error"):
        Prometheus(fake.url).instant("refused", at=0.0)


def test_a_server_that_is_no_prometheus_is_told(fake: FakePrometheus) -> None:
    """By its status, and by what it does not send."""
    with pytest.raises(PrometheusError, match="status 404, as a Prometheus does not"):
        Prometheus(fake.url).get("elsewhere")


def test_nobody_at_the_address_is_one_clear_error() -> None:
    """With the address, and what to ask oneself."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PrometheusError, match=f"no Prometheus answers at {url}: .*running"):
            Prometheus(url).alerts()


def test_a_server_that_says_nothing_is_given_up() -> None:
    """After the time-out."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(PrometheusError, match="no Prometheus answers"):
            Prometheus(url, timeout_s=0.1).alerts()


@pytest.mark.parametrize("url", ["127.0.0.1:9090", "file:///etc/passwd", "http://", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    """Only http and https, with a host."""
    with pytest.raises(ConfigError, match=r"expected a URL such as"):
        Prometheus(url)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15.0), ("1h30m", 5400.0), ("250ms", 0.25), ("2d", 172800.0)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """As Prometheus writes them."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "1.5h", "5 m", "m5"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """With an example."""
    with pytest.raises(ConfigError, match="expected a duration such as 15s"):
        parse_duration(text)
