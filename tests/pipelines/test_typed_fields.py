"""Dataclasses filled from mappings, with errors that name paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from fastvideo.errors import ConfigError
from fastvideo.pipelines.typed_fields import checked_values, from_mapping


@dataclass
class Inner:
    """A nested section."""

    backend: Literal["mp", "ray"] = "mp"
    steps: list[int] | None = None


@dataclass
class Outer:
    """A section."""

    name: str
    rate: float = 1.0
    count: int = 1
    on: bool = False
    inner: Inner = field(default_factory=Inner)
    more: dict[str, Any] = field(default_factory=dict)


def test_values_get_the_types_of_their_fields() -> None:
    """Text becomes what the field holds, as it comes from a command line."""
    given = {
        "name": "n",
        "rate": "1e-3",
        "count": "4",
        "on": "True",
        "inner": {"steps": "[1000, 500]"},
    }
    outer = from_mapping(Outer, given, where="x")
    assert outer == Outer("n", 0.001, 4, on=True, inner=Inner(steps=[1000, 500]))
    assert from_mapping(Outer, {"name": "n", "inner": {"steps": "null"}}, where="").inner == Inner()
    assert from_mapping(Outer, {"name": "n", "count": 4.0}, where="").count == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"x\.name: missing required field"),
        ({"name": "n", "bogus": 1}, r"x\.bogus: unknown field"),
        ({"name": "n", "cuont": 1, "b": 2}, r"x\.cuont: unknown field \(as are b\).*'count'"),
        ({"name": "n", "inner": {"backend": "tcp"}}, r"backend: expected one of \['mp', 'ray'\]"),
        ({"name": "n", "inner": {"steps": [1, "a"]}}, r"x\.inner\.steps\[1\]: expected a whole"),
        ({"name": "n", "inner": 3}, r"x\.inner: expected a mapping, got 3"),
        ({"name": "n", "count": 1.5}, r"x\.count: expected a whole number, got 1\.5"),
        ({"name": "n", "count": True}, r"x\.count: expected a whole number, got True"),
        ({"name": "n", "rate": "nan"}, r"x\.rate: expected a number"),
        ({"name": "n", "on": 1}, r"x\.on: expected true or false, got 1"),
        ({"name": 3}, r"x\.name: expected text, got 3"),
        ({"name": "n", "more": [1]}, r"x\.more: expected a mapping"),
        ([], r"x: expected a mapping"),
    ],
)  # fmt: skip
def test_errors_name_the_path(values: Any, message: str) -> None:
    """What is wrong is said with the path of the field."""
    with pytest.raises(ConfigError, match=message):
        from_mapping(Outer, values, where="x")


def test_some_fields_can_be_checked_alone() -> None:
    """Fields that are not given are not there."""
    assert checked_values(Outer, {"count": "2"}, where="") == {"count": 2}
