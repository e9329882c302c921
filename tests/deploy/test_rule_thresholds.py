"""Every number of every rule is pinned: with another one, a unit test fails."""

from __future__ import annotations

import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
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
RULES: dict[str, dict[str, Any]] = {
    str(rule.get("alert") or rule["record"]): rule
    for path in FILES
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
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


def files_about(name: str) -> list[Path]:
    """Returns the files of unit tests that name a rule, then those about what uses it."""
    users = {other for other, rule in RULES.items() if name in rule["expr"]}
    named = [path for path in UNIT_TESTS if name in path.read_text()]
    of_users = [path for path in UNIT_TESTS if any(user in path.read_text() for user in users)]
    return [*named, *(path for path in of_users if path not in named)]


def needed(text: str) -> set[str]:
    """Returns the rules that some unit tests name, and those that these are made of."""
    found: set[str] = set()
    wanted = {name for name in RULES if name in text}
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


def survives(mutant: Mutant, directory: Path, promtool: str) -> bool:
    """Tells whether all unit tests pass with a mutant in the place of its rule."""
    (directory / "rules").mkdir(parents=True)
    (directory / "tests").mkdir()
    for test in files_about(mutant.name):
        shutil.copy(test, directory / "tests")
        kept = needed(test.read_text()) | {mutant.name}
        for path in FILES:
            content = yaml.safe_load(path.read_text())
            for group in content["groups"]:
                names = [str(rule.get("alert") or rule["record"]) for rule in group["rules"]]
                group["rules"] = [
                    mutant.rule if name == mutant.name else RULES[name]
                    for name in names
                    if name in kept
                ]
            (directory / "rules" / path.name).write_text(yaml.safe_dump(content, sort_keys=False))
        command = [promtool, "test", "rules", str(directory / "tests" / test.name)]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        if done.returncode != 0:
            return False
    return True


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RULES if list(mutants(name))])
def test_another_number_breaks_a_unit_test(name: str, tmp_path: Path) -> None:
    """Each threshold, factor, window and waiting time of a rule is pinned from both sides."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool, in Debian's package prometheus")
    changed = list(mutants(name))
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(
            pool.map(
                lambda item: survives(item[1], tmp_path / str(item[0]), promtool),
                enumerate(changed),
            )
        )
    assert [each.what for each, alive in zip(changed, verdicts, strict=True) if alive] == []
