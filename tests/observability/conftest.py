"""Telemetry that samples all or nothing, for the tests of clocks, roots and contexts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from root_traces import HostSpans, Telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sampled() -> Iterator[Telemetry]:
    """Gives telemetry that samples every step."""
    telemetry = Telemetry(1.0)
    yield telemetry
    telemetry.clock.stop()


@pytest.fixture
def unsampled() -> Iterator[Telemetry]:
    """Gives telemetry that samples no step."""
    telemetry = Telemetry(0.0)
    yield telemetry
    telemetry.clock.stop()


@pytest.fixture
def mine() -> Iterator[HostSpans]:
    """Gives the spans of a host program."""
    spans = HostSpans()
    yield spans
    spans.provider.shutdown()
