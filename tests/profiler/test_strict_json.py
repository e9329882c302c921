"""JSON that every reader accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastvideo.profiler.strict_json import dumps, loads


@pytest.mark.parametrize(
    "text", ["[NaN]", "[Infinity]", "[-Infinity]", "[nan]", '["a\tb"]', "[1,]"]
)
def test_what_is_no_json_is_refused(text: str) -> None:
    """The tokens that Python lets through are refused like any other fault."""
    with pytest.raises(ValueError, match=r".+"):
        loads(text)


def test_json_is_parsed() -> None:
    """Strict JSON is parsed as usual."""
    assert loads('{"a": [1, 2.5, null, "\\u00e9"]}') == {"a": [1, 2.5, None, "é"]}


def test_everything_can_be_encoded_strictly() -> None:
    """Numbers and types that JSON has no word for become strings; lone surrogates go."""
    value = {
        "bad": [float("nan"), float("-inf"), 1.5],
        "path": Path("/a"),
        ("odd", "key"): {1},
        "text": "ok \ud800 \n ✓",
    }
    line = dumps(value)
    assert b"\n" not in line
    assert loads(line.decode("utf-8")) == {
        "bad": ["nan", "-inf", 1.5],
        "path": "/a",
        "('odd', 'key')": [1],
        "text": "ok ? \n ✓",
    }


def test_ordinary_values_are_encoded_as_json_does() -> None:
    """The common case is plain JSON."""
    assert json.loads(dumps({"a": None, "b": True, "c": [1]})) == {"a": None, "b": True, "c": [1]}


class Nameless:
    """Cannot be made a string."""

    def __str__(self) -> str:
        """Raises."""
        raise ArithmeticError


def test_whatever_cannot_be_encoded_is_named_by_its_type() -> None:
    """Numbers that are too long, objects without a string and endless lists raise nothing."""
    endless: list[object] = []
    endless.append(endless)
    line = dumps({"long": [10**5000], "nameless": Nameless(), Nameless(): 1, "endless": endless})
    found = loads(line.decode("utf-8"))
    assert found["long"] == ["<int of 16610 bits>"]
    assert (found["nameless"], found["<Nameless>"]) == ("<Nameless>", 1)
    assert line.count(b"<list>") == 1
