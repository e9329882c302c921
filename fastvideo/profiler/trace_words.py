"""Words that messages about traces share. The export helper imports it: standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, such as ``"1 segment"`` or ``"2 segments"``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranges_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Returns ranges the way the variables spell them, such as ``"10-12,100"``.

    Args:
        ranges: First and last numbers.
    """
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in sorted(ranges)
    )


def as_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Joins numbers that follow each other into ranges with both ends included."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
