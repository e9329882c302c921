"""Numbers and ranges in messages."""

from __future__ import annotations

import pytest

from fastvideo.profiler.config import parse_steps
from fastvideo.profiler.trace_words import as_ranges, counted, ranges_text


def test_numbers_agree_with_their_nouns() -> None:
    """Only one is singular."""
    assert [counted(n, "slice") for n in (0, 1, 2)] == ["0 slices", "1 slice", "2 slices"]


@pytest.mark.parametrize("text", ["", "3", "10-12,100", "0-1,7"])
def test_ranges_are_written_as_they_are_read(text: str) -> None:
    """What the variables hold comes back."""
    assert ranges_text(parse_steps(text)) == text


def test_numbers_become_ranges() -> None:
    """Neighbours are joined, in any order and however often they come."""
    assert as_ranges([7, 1, 0, 3, 2, 9, 9]) == [(0, 3), (7, 7), (9, 9)]
    assert as_ranges([]) == []
