"""The account of spans."""

from __future__ import annotations

from typing import Any

import pytest

from fastvideo.observability.tracing.ledger import Ledger


@pytest.fixture
def ledger(counts: Any) -> Ledger:
    """An account of ten spans."""
    made = Ledger(counts)
    made.expect(10)
    return made


def test_what_is_settled_is_counted_as_it_was(ledger: Ledger, counts: Any) -> None:
    """Nothing is left to be lost at the end."""
    ledger.settle("exported", "file", 7)
    ledger.settle("dropped", "host", 3)
    ledger.close()
    assert dict(counts.seen) == {("exported", "file"): 7, ("dropped", "host"): 3}


def test_what_is_left_at_the_end_is_dropped(ledger: Ledger, counts: Any) -> None:
    """It is counted once, and whoever comes back later changes nothing."""
    ledger.settle("exported", "file", 4)
    ledger.close()
    ledger.settle("exported", "file", 6)
    ledger.close()
    assert dict(counts.seen) == {("exported", "file"): 4, ("dropped", "shutdown"): 6}


def test_what_comes_after_the_end_is_dropped(ledger: Ledger, counts: Any) -> None:
    """A thread that took spans at the last moment loses none of them unseen."""
    ledger.close()
    ledger.expect(5)
    ledger.expect(-1)
    assert dict(counts.seen) == {("dropped", "shutdown"): 15}


def test_expectations_can_be_corrected(ledger: Ledger, counts: Any) -> None:
    """Fewer spans than were expected leave nothing open."""
    ledger.expect(-3)
    ledger.settle("exported", "file", 7)
    ledger.close()
    assert dict(counts.seen) == {("exported", "file"): 7}
