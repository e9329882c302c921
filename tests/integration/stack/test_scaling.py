"""Making rules and dashboards faster changes their durations and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import promql_parser
import pytest
import yaml
from live_stack import RULES, scale_dashboard, scale_expression, scale_rules
from scenario import FACTOR, SECONDS

from fastvideo.dashboards import all_dashboards, to_json
from fastvideo.dashboards.prometheus import parse_duration

if TYPE_CHECKING:
    from pathlib import Path

_SELECTOR = re.compile(r"\[[^\]]*\]|\boffset\s+\w+|\"[^\"]*\"")
_NUMBER = re.compile(r"(?<![\w.:])(\d+(?:\.\d+)?)(?![\w.:])")


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("rate(x[5m])", "rate(x[5000ms])"),
        ("rate(x[$__rate_interval])", "rate(x[$__rate_interval])"),
        ("max_over_time(x[1h30m:1m])", "max_over_time(x[90000ms:1000ms])"),
        ("max_over_time(x[1h:])", "max_over_time(x[60000ms:])"),
        ("max_over_time(x[$__range:1m])", "max_over_time(x[$__range:1000ms])"),
        ("x offset 1h", "x offset 60000ms"),
        ("run:x:mean10m > 10", "run:x:mean10m > 10"),
        ("y > 300 or y1300 > 1300 or 300.5", "y > 5 or y1300 > 1300 or 300.5"),
    ],
)
def test_windows_offsets_and_named_seconds_are_scaled(expr: str, expected: str) -> None:
    """Names that say a window keep it, as do numbers that are no seconds."""
    assert scale_expression(expr, 60.0, ("300",)) == expected


def test_shipped_rules_differ_in_durations_only(tmp_path: Path) -> None:
    """What is evaluated in the scenario is what is shipped, 60 times as fast."""
    scale_rules(RULES, tmp_path, FACTOR, interval="1s", seconds=SECONDS)
    for file in RULES.glob("*.yaml"):
        shipped, scaled = (
            [
                rule
                for group in yaml.safe_load(path.read_text())["groups"]
                for rule in group["rules"]
            ]
            for path in (file, tmp_path / file.name)
        )
        assert len(shipped) == len(scaled)
        for before, after in zip(shipped, scaled, strict=True):
            for key in before.keys() - {"expr", "for", "keep_firing_for"}:
                assert after[key] == before[key]
            promql_parser.parse(after["expr"])
            kept = [_SELECTOR.sub("[]", rule["expr"]) for rule in (before, after)]
            assert scale_expression(kept[0], FACTOR, SECONDS) == kept[1]
            if "for" in before:
                ratio = parse_duration(before["for"]) / parse_duration(after["for"])
                assert ratio == pytest.approx(FACTOR, rel=0.01)


def test_no_number_of_a_rule_is_taken_for_none_of_seconds() -> None:
    """Every number of a minute or more is either named as seconds, or a rule has changed."""
    large = {
        number
        for file in RULES.glob("*.yaml")
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
        for number in _NUMBER.findall(_SELECTOR.sub("", rule["expr"]))
        if float(number) >= 60
    }
    assert large == set(SECONDS)


def test_scaled_dashboards_are_queries_still() -> None:
    """Nothing but minimal intervals, windows and offsets changes."""
    for board in all_dashboards():
        shipped = to_json(board)
        scaled = scale_dashboard(shipped, FACTOR)
        for before, after in zip(shipped["panels"], scaled["panels"], strict=True):
            assert after.keys() == before.keys()
            for one, other in zip(before.get("targets", []), after.get("targets", []), strict=True):
                changed = {key for key in one if one[key] != other[key]}
                assert changed <= {"expr", "interval"}
