"""Numbers with their units, as Grafana writes them."""

from __future__ import annotations

import math

import pytest

from fastvideo.dashboards.units import format_value


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.0, "s", "0 s"),
        (2.5e-7, "s", "250 ns"),
        (0.0123, "s", "12.3 ms"),
        (1.234, "s", "1.23 s"),
        (90.0, "s", "1.50 mins"),
        (7200.0, "s", "2 hours"),
        (1500.0, "ms", "1.50 s"),
        (0.1234, "percentunit", "12.3%"),
        (1.0, "percentunit", "100%"),
        (12.5, "percent", "12.5%"),
        (3 * 2**30, "bytes", "3 GiB"),
        (3e9, "decbytes", "3 GB"),
        (2048.0, "binBps", "2 KiB/s"),
        (12345.0, "short", "12.3 K"),
        (12345.0, "none", "12345"),
        (1.0, "bool_yes_no", "Yes"),
        (0.9, "suffix: steps/min", "0.900 steps/min"),
        (3725.0, "dthms", "01:02:05"),
        (1e12, "dateTimeAsIso", "2001-09-09 01:46:40"),
        (1234567.0, "locale", "1,234,567"),
        (1e-4, "sci", "1e-4"),
        (2.5e7, "sci", "2.5e+7"),
        (0.0, "sci", "0"),
        (math.nan, "s", "NaN"),
        (-math.inf, "s", "-∞"),
    ],
)
def test_values_are_written_with_three_digits_and_their_unit(
    value: float, unit: str, expected: str
) -> None:
    """The unit that fits the size is taken."""
    assert format_value(value, unit) == expected


def test_digits_can_be_asked_for() -> None:
    """As many behind the point as a panel says; no minus before a zero."""
    assert format_value(0.125, "percentunit", 1) == "12.5%"
    assert format_value(2.0, "s", 2) == "2.00 s"
    assert format_value(-0.001, "none", 1) == "0.0"
