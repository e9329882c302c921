"""Cells: what the program writes and a scrape reads."""

from __future__ import annotations

import math
import threading
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fastvideo.observability.metrics.cells import (
    CounterCell,
    Exemplar,
    GaugeCell,
    HistogramCell,
    SummaryCell,
    SummaryValue,
    plain_number,
)

TRACE = "ab" * 16
SPAN = "cd" * 8


class _Distributed:
    """A tensor spread over ranks: reading it would wait for the others."""

    device = SimpleNamespace(type="cpu")

    def full_tensor(self) -> Any:
        raise AssertionError

    def item(self) -> float:
        raise AssertionError


class _OnDevice:
    """A tensor on a GPU: reading it would synchronise."""

    device = SimpleNamespace(type="cuda")

    def item(self) -> float:
        raise AssertionError

    def __float__(self) -> float:
        raise AssertionError


class _Refusals(list[object]):
    """Remembers what was refused."""

    __call__ = list.append


def _histogram(refuse: Any = None, now: float = 100.0) -> HistogramCell:
    return HistogramCell(_Refusals() if refuse is None else refuse, (1.0, 2.0), lambda: now)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (True, 1.0),
        (2.5, 2.5),
        (Decimal("1.5"), 1.5),
        (np.float32(3), 3.0),
        (np.int64(4), 4.0),
        (np.array([5.0]), 5.0),
        (torch.tensor(6.0), 6.0),
        (torch.tensor([7], dtype=torch.bfloat16), 7.0),
        (torch.tensor([8.0], requires_grad=True), 8.0),
        (None, None),
        ("9", None),
        (b"9", None),
        (10**400, None),
        ([1.0], None),
        (torch.zeros(2), None),
        (torch.empty(1, device="meta"), None),
        (_OnDevice(), None),
        (_Distributed(), None),
    ],
)
def test_numbers_in_host_memory_are_coerced_and_nothing_else_is_read(
    value: Any, expected: float | None
) -> None:
    """NumPy and host tensors become floats; tensors on devices or over ranks are never read."""
    assert plain_number(value) == expected


def test_a_counter_adds_up() -> None:
    """A counter starts at zero and grows by what is added, one by default."""
    cell = CounterCell(_Refusals())
    assert cell.read() == 0.0
    cell.add()
    cell.add(2.5)
    assert cell.read() == 3.5


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, None, "x", _OnDevice()])
def test_a_counter_leaves_out_what_would_spoil_it(value: Any) -> None:
    """A value that is negative, not finite or no number is refused and changes nothing."""
    refused = _Refusals()
    cell = CounterCell(refused)
    cell.add(value)
    assert (cell.read(), len(refused)) == (0.0, 1)


def test_writes_of_many_threads_all_count() -> None:
    """No addition is lost between threads, though there is no lock."""
    counter, histogram, summary = CounterCell(_Refusals()), _histogram(), SummaryCell(_Refusals())

    def write() -> None:
        for _ in range(3000):
            counter.add(1.0)
            histogram.observe(1.5)
            summary.observe(2.0)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        value = histogram.read()
        assert value.total == pytest.approx(1.5 * value.count)
    for thread in threads:
        thread.join()
    assert counter.read() == 18_000
    assert histogram.read().counts == (0, 18_000, 0)
    assert summary.read() == SummaryValue(18_000, 36_000.0)


def test_threads_that_come_and_go_leave_no_trail() -> None:
    """Slots of ended threads are used again, so a cell does not grow with the run."""
    cell = CounterCell(_Refusals())
    for _ in range(500):
        thread = threading.Thread(target=cell.add)
        thread.start()
        thread.join()
    assert cell.read() == 500
    assert len(cell._slots) < 50


def test_a_gauge_keeps_the_last_number() -> None:
    """A gauge is what was set last; NaN is a number here, and None is not."""
    cell = GaugeCell(_Refusals())
    assert cell.read() == 0.0
    cell.set(4)
    cell.set(None)  # type: ignore[arg-type]
    assert cell.read() == 4.0
    cell.set(math.nan)
    assert math.isnan(cell.read())


def test_histogram_bounds_are_inclusive() -> None:
    """An observation belongs to the first bucket whose bound it does not exceed."""
    cell = _histogram()
    for value in (0.0, 1.0, 1.5, 2.0, 2.1, 1e9):
        cell.observe(value)
    state = cell.read()
    assert (state.counts, state.count) == ((2, 2, 2), 6)
    assert state.total == pytest.approx(1e9 + 6.6)


def test_durations_below_zero_count_as_zero() -> None:
    """A clock that steps back lowers no sum."""
    histogram, summary = _histogram(), SummaryCell(_Refusals())
    histogram.observe(-5.0)
    summary.observe(-5.0)
    assert histogram.read().counts == (1, 0, 0)
    assert (histogram.read().total, summary.read()) == (0.0, SummaryValue(1, 0.0))


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_observations_that_are_not_finite_are_left_out(value: Any) -> None:
    """One NaN would make every later sum NaN."""
    refused = _Refusals()
    histogram, summary = _histogram(refused), SummaryCell(refused)
    histogram.observe(value)
    summary.observe(value)
    assert (histogram.read().count, summary.read().count, len(refused)) == (0, 0, 2)


def test_each_bucket_remembers_its_last_traced_observation() -> None:
    """An exemplar has the time of its observation, and observations without a trace keep it."""
    times = iter([10.0, 20.0, 30.0])
    cell = HistogramCell(_Refusals(), (1.0, 2.0), lambda: next(times))
    cell.observe(0.5, TRACE, SPAN)
    cell.observe(0.6, TRACE)
    cell.observe(0.7)
    cell.observe(5.0, TRACE, SPAN)
    assert cell.read().exemplars == (
        Exemplar(0.6, 20.0, TRACE, None),
        None,
        Exemplar(5.0, 30.0, TRACE, SPAN),
    )


def test_exemplars_beyond_the_limit_of_openmetrics_are_left_out() -> None:
    """OpenMetrics allows 128 characters of labels; the observation itself counts."""
    cell = _histogram()
    cell.observe(0.5, "a" * 120)
    assert (cell.read().count, cell.read().exemplars) == (1, (None, None, None))
