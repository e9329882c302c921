"""Strict JSON out of what the native writer leaves bare."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from fastvideo.profiler.json_repair import repair
from fastvideo.profiler.strict_json import loads

NAMES = {
    "plain": "plain",
    'a"b': 'a"b',
    'say("a", "b")': 'say("a", "b")',
    'x", "pid": 3': 'x", "pid": 3',
    "tab\there": "tab\there",
    "two\nlines": "two\nlines",
    "bell\x07": "bell\x07",
    "C:\\dir": "C:\\dir",
    "ends in \\": "ends in \\",
    'he said "no"': 'he said "no"',
    "value is nan, inf": "value is nan, inf",
    '"': '"',
    "": "",
    r"kept \" escape \u00e9": 'kept " escape é',
}


def event(name: str, args: str = '"External id": 1,"Ev Idx": 2') -> str:
    """Returns an event as kineto writes it, which is without escaping the name."""
    return (
        '  {\n    "ph": "X",\n    "cat": "cpu_op",\n'
        f'    "name": "{name}",\n'
        '    "pid": 1,\n    "tid": 2,\n    "ts": 10.5,\n    "dur": 2.25\n    ,\n'
        f'    "args": {{\n      {args}\n    }}\n  }}'
    )


@pytest.mark.parametrize(("raw", "name"), NAMES.items())
def test_names_survive(raw: str, name: str) -> None:
    """A name with quotes, backslashes or control characters is the name that was given."""
    fixed = loads(repair(event(raw)))
    assert fixed["name"] == name
    assert (fixed["pid"], fixed["ts"], fixed["dur"]) == (1, 10.5, 2.25)
    assert fixed["args"] == {"External id": 1, "Ev Idx": 2}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ('"per SM": inf, "warps": -nan,"n": 0', {"per SM": None, "warps": None, "n": 0}),
        ('"a": NaN,"b": [inf, 1, -Infinity]', {"a": None, "b": [None, 1, None]}),
        ('"a": nan(0x7),"b": null', {"a": None, "b": None}),
        ('"a": "inf","b": "nan"', {"a": "inf", "b": "nan"}),
        ('"name": "thread 1 (my "pool")"', {"name": 'thread 1 (my "pool")'}),
        ('"Inputs": ["a"b", "", "c"d"],"n": 1', {"Inputs": ['a"b', "", 'c"d'], "n": 1}),
        ('"file": "a"b.py","line": 3', {"file": 'a"b.py', "line": 3}),
    ],
)  # fmt: skip
def test_arguments_survive(args: str, expected: dict[str, Any]) -> None:
    """Impossible numbers become null; quotes inside of values stay inside."""
    assert loads(repair(event("op", args)))["args"] == expected


def test_strict_json_is_left_alone() -> None:
    """Repairing what needs no repair changes no value."""
    value = {"a": ["x\\y", 'q"q', -1.5e-3, None, True], "b": {"c": "\u00e9\n", "inf": 1, "d": {}}}
    assert loads(repair(json.dumps(value))) == value


def test_no_name_breaks_its_event() -> None:
    """Whatever the name, the event is either repaired with its times intact or still refused."""
    draw = random.Random(20)
    alphabet = '"\\ ,:{}[]()\n\ta1'
    repaired = 0
    for _ in range(500):
        name = "".join(draw.choices(alphabet, k=draw.randrange(1, 12)))
        try:
            fixed = loads(repair(event(name)))
        except ValueError:
            continue
        repaired += 1
        assert (fixed["ph"], fixed["ts"], fixed["dur"]) == ("X", 10.5, 2.25)
    assert repaired > 450
