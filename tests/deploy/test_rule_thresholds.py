"""Every number of every rule is pinned: with another one, a unit test fails."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"
FILES = sorted((PROMETHEUS / "rules").glob("*.yaml"))
UNIT_TESTS = sorted((PROMETHEUS / "tests").glob("*.yaml"))
GROUPS: list[dict[str, Any]] = [
    group for path in FILES for group in yaml.safe_load(path.read_text())["groups"]
]
RULES: dict[str, dict[str, Any]] = {
    str(rule.get("alert") or rule["record"]): rule for group in GROUPS for rule in group["rules"]
}

NUMBER = re.compile(r'(?<![\w.:"])(\d+(?:\.\d+)?)(?![\w.])')
DURATION = re.compile(r"(?<=[\[ ])(\d+)([smh])(?=[\])])")
SECONDS = {"s": 1, "m": 60, "h": 3600}

# What is remembered over failed scrapes may be remembered a little longer or shorter. How long a
# rank is, is what those two rules are about.
REMEMBERED = re.compile(r"(?:last|max)_over_time\([^\[]*\[\d+[smh]\]")
STRICT = {"run:fastvideo_ranks_expected:last30m", "run:fastvideo_ranks_missing:last30m"}
# test_rules.py looks after these.
GUARD = re.compile(
    r"/\s*(?:on \([^)]*\) (?:group_left \(\) )?)?\(sum by .*? > 0\)"
    r"|/ clamp_min\(last_over_time\([^)]*\), 1\)"
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule with one number changed."""

    name: str
    what: str
    rule: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One unit test of rules.

    Attributes:
        file: The settings of the file it stands in.
        test: What it gives and expects.
        text: The same, as one text.
    """

    file: dict[str, Any]
    test: dict[str, Any]
    text: str


class _Loader(yaml.SafeLoader):
    """Leaves ``0x80``, eighty zeros for promtool, as it stands; to YAML it is a number."""


_Loader.yaml_implicit_resolvers = {
    **yaml.SafeLoader.yaml_implicit_resolvers,
    "0": [
        ("tag:yaml.org,2002:str", re.compile("0x")),
        *yaml.SafeLoader.yaml_implicit_resolvers["0"],
    ],
}

CASES = [
    Case(content, test, json.dumps(test))
    for path in UNIT_TESTS
    for content in [yaml.load(path.read_text(), _Loader)]  # noqa: S506
    for test in content["tests"]
]


def mutants(name: str) -> Iterator[Mutant]:
    """Yields a rule with each of its numbers changed, up and down."""
    rule = RULES[name]
    expr = rule["expr"]
    exempt = {found.end() - 2 for found in GUARD.finditer(expr)}
    for found in NUMBER.finditer(expr):
        value = float(found[1])
        if found.start() in exempt:
            continue
        for other in (value * 1.25, value * 0.8) if value else (2.0, -1.0):
            changed = f"{expr[: found.start()]}{other:g}{expr[found.end() :]}"
            yield Mutant(name, f"{found[1]} -> {other:g}", {**rule, "expr": changed})
    lenient = set()
    if name not in STRICT:
        lenient = {each.end() - 1 for each in REMEMBERED.finditer(expr)}
    for found in DURATION.finditer(expr):
        if found.end() in lenient:
            continue
        seconds = int(found[1]) * SECONDS[found[2]]
        for other in (seconds * 2, seconds // 2):
            changed = f"{expr[: found.start()]}{other}s{expr[found.end() :]}"
            what = f"{expr[max(0, found.start() - 30) : found.end()]} -> {other}s"
            yield Mutant(name, what, {**rule, "expr": changed})
    if "for" in rule:
        minutes = int(rule["for"].removesuffix("m"))
        for seconds in (minutes * 120, minutes * 30):
            yield Mutant(name, f"for {rule['for']} -> {seconds}s", {**rule, "for": f"{seconds}s"})


def needed(case: Case) -> set[str]:
    """Returns the rules that a unit test names, and those that these are made of."""
    found: set[str] = set()
    wanted = {name for name in RULES if name in case.text}
    while wanted:
        found |= wanted
        exprs = " ".join(RULES[name]["expr"] for name in wanted)
        # FastVideo(DataBound|Straggler): a pattern for alerts.
        exprs += " ".join(
            f"FastVideo{each}"
            for pattern in re.findall(r"FastVideo\((.*?)\)", exprs)
            for each in pattern.split("|")
        )
        wanted = {name for name in RULES if name in exprs} - found
    return found


def cases_about(name: str) -> list[Case]:
    """Returns the unit tests that a rule has a part in: first those that name it, the short first.

    Most mutants fail in the first of them, so few unit tests are evaluated for each.
    """
    about = [case for case in CASES if name in needed(case)]
    return sorted(about, key=lambda case: (name not in case.text, len(case.text)))


def write_case(case: Case, directory: Path, rules: dict[str, dict[str, Any]]) -> Path:
    """Writes a unit test alone, with the rules it needs only; returns the file for promtool.

    Args:
        case: The unit test.
        directory: Where to; must not exist.
        rules: Rules in the place of those of the same name.
    """
    directory.mkdir()
    kept = needed(case)
    groups = [
        {
            **group,
            "rules": [
                rules.get(name, rule)
                for rule in group["rules"]
                if (name := str(rule.get("alert") or rule["record"])) in kept
            ],
        }
        for group in GROUPS
    ]
    # JSON is YAML, and is written a hundred times as quickly.
    (directory / "rules.yaml").write_text(json.dumps({"groups": groups}))
    file = directory / "test.yaml"
    file.write_text(json.dumps({**case.file, "rule_files": ["rules.yaml"], "tests": [case.test]}))
    return file


def passed(files: list[Path]) -> list[bool]:
    """Runs promtool once on files of unit tests; tells which of them pass."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool, in Debian's package prometheus")
    done = subprocess.run(
        [promtool, "test", "rules", *map(str, files)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # Success is told on one stream and failure on the other.
    verdicts = dict(re.findall(r"^Unit Testing: +(\S+)\n( +SUCCESS)?", done.stdout, re.MULTILINE))
    assert verdicts.keys() == set(map(str, files)), done.stdout + done.stderr
    return [bool(verdicts[str(file)]) for file in files]


@pytest.mark.integration
def test_each_unit_test_passes_alone_with_the_rules_it_needs(tmp_path: Path) -> None:
    """Otherwise it would fail with any number, and pin none."""
    files = [write_case(case, tmp_path / str(i), {}) for i, case in enumerate(CASES)]
    verdicts = zip(CASES, passed(files), strict=True)
    assert [case.test["name"] for case, passes in verdicts if not passes] == []


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RULES if list(mutants(name))])
def test_another_number_breaks_a_unit_test(name: str, tmp_path: Path) -> None:
    """Each threshold, factor, window and waiting time of a rule is pinned from both sides."""
    alive = list(mutants(name))
    for number, case in enumerate(cases_about(name)):
        files = [
            write_case(case, tmp_path / f"{number}-{i}", {name: mutant.rule})
            for i, mutant in enumerate(alive)
        ]
        alive = [mutant for mutant, passes in zip(alive, passed(files), strict=True) if passes]
        if not alive:
            break
    assert [mutant.what for mutant in alive] == []
