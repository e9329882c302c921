"""What every test shares."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


# Runs that tests start must not meet each other, nor whatever else runs on the machine.
os.environ.setdefault("FASTVIDEO_METRICS_PORT", "0")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skipped integration test into a failure where CI=true."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and item.get_closest_marker("integration"):
        report.outcome = "failed"
        report.longrepr = (
            f"integration tests must run in CI, but this one skipped: {report.longrepr}"
        )
    return report
