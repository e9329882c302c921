"""What the log says about the delivery of spans."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastvideo.observability.tracing.delivery_log import DeliveryLog

if TYPE_CHECKING:
    import pytest


class Clock:
    """Seconds that pass when the test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_is_one_line_and_then_a_count_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """An hour of failures, one a second, is one line and at most one more a minute."""
    caplog.set_level(logging.INFO, "fastvideo")
    clock = Clock()
    log = DeliveryLog("http://c:4318/v1/traces", clock)
    for _ in range(3600):
        log.failed("Connection refused")
        log.lost(10, "Connection refused")
        clock.now += 1.0
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == (
        "spans do not reach http://c:4318/v1/traces (Connection refused); the run goes on, and "
        "this is said once a minute at most."
    )
    assert len(lines) == 60
    assert "60 attempts failed and 600 spans were lost" in lines[5]


def test_the_first_delivery_and_a_recovery_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is said when spans arrive for the first time, and when they do again."""
    caplog.set_level(logging.INFO, "fastvideo")
    log = DeliveryLog("c", Clock())
    for _ in range(5):
        log.delivered()
    log.failed("HTTP 503")
    for _ in range(5):
        log.delivered()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "first spans delivered to c"),
        (
            "WARNING",
            (
                "spans do not reach c (HTTP 503); the run goes on, and this is said once a minute "
                "at most."
            ),
        ),
        ("INFO", "spans are delivered to c again"),
    ]
