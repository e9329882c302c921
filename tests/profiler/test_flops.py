"""Floating point operations by torch's formulas."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import pytest

from fastvideo.profiler.flops import count_flops


def test_counts_are_torchs(sessions: dict[str, dict[str, Any]]) -> None:
    """Counted from the shapes in a real trace, every operator has the number that torch gives."""
    counted: collections.Counter[str] = collections.Counter()
    for event in json.loads(Path(sessions["flops"]["trace"]).read_bytes())["traceEvents"]:
        counted[event["name"]] += count_flops(event["name"], event.get("args", {})) or 0
    expected = {row["name"]: row["flops"] for row in sessions["flops"]["rows"] if row["flops"]}
    assert {name: flops for name, flops in counted.items() if flops} == expected
    assert expected.keys() == {
        "aten::add",
        "aten::addmm",
        "aten::baddbmm",
        "aten::bmm",
        "aten::conv2d",
        "aten::mm",
        "aten::mul",
    }


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("aten::conv3d", {"Input Dims": [[1, 2, 4, 4, 4], [2, 2, 2, 2, 2]]}),
        ("aten::mm", {}),
        ("aten::mm", {"Input Dims": []}),
        ("aten::bmm", {"Input Dims": [[2, 3], [3, 4]]}),
        ("aten::conv2d", {"Input Dims": [[1, 3, 4, 4], [2, 3, 1, 1]], "Concrete Inputs": []}),
        ("aten::conv2d", {"Input Dims": [[3, 4, 4], [2, 3, 1, 1]], "Concrete Inputs": []}),
    ],
)
def test_what_cannot_be_counted(name: str, args: dict[str, Any]) -> None:
    """Operators without a formula, and calls without usable shapes, count for nothing."""
    assert count_flops(name, args) is None


def test_an_empty_product_is_nothing() -> None:
    """A matrix without columns takes no operation."""
    assert count_flops("aten::mm", {"Input Dims": [[4, 0], [0, 5]]}) == 0
