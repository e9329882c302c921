"""Workers take turns where a test asks for it, and what CI must not overlook fails in each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
MODULE = """
import time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def wait_for(name):
    end = time.monotonic() + 30
    while not (HERE / name).exists():
        assert time.monotonic() < end, name
        time.sleep(0.01)

"""
ALONE = """
@pytest.mark.alone
def test_it():
    (HERE / "busy").touch()
    time.sleep(0.5)
    (HERE / "busy").unlink()
"""
OTHERS = """
@pytest.mark.parametrize("number", range(50))
def test_it(number):
    assert not (HERE / "busy").exists()
    time.sleep(0.01)
"""


def run(directory: Path, *options: str, **modules: str) -> str:
    """Runs pytest on modules beside a copy of the conftest; returns what it says."""
    (directory / "conftest.py").write_text(CONFTEST.read_text())
    (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n alone\n slow\n integration\n")
    for name, text in modules.items():
        (directory / f"test_{name}.py").write_text(MODULE + text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-v", *options, "."],
        cwd=directory,
        env={**os.environ, "CI": "true", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def workers(number: int) -> list[str]:
    """Returns the options for some workers, as the Makefile has them."""
    return ["-n", str(number), "--dist", "loadfile", "--no-loadscope-reorder"]


def test_no_test_runs_beside_one_that_is_alone(tmp_path: Path) -> None:
    """The other worker waits, whatever it is about to begin."""
    said = run(tmp_path, *workers(2), alone=ALONE, others=OTHERS)
    assert "51 passed" in said, said


def test_all_other_tests_run_beside_each_other(tmp_path: Path) -> None:
    """Two that wait for each other both pass."""
    meet = "def test_it():\n    (HERE / '{}').touch()\n    wait_for('{}')\n"
    said = run(tmp_path, *workers(2), one=meet.format("a", "b"), other=meet.format("b", "a"))
    assert "2 passed" in said, said


def test_a_worker_begins_with_slow_modules_and_ends_with_those_that_wait(tmp_path: Path) -> None:
    """One process keeps the usual order."""
    plain = "def test_it(): pass\n"
    modules = {"a": f"@pytest.mark.alone\n{plain}", "b": plain, "c": f"@pytest.mark.slow\n{plain}"}
    orders = [
        re.findall(r"test_([abc])\.py::test_it.* PASSED|PASSED test_([abc])\.py", said)
        for said in (run(tmp_path, *how, **modules) for how in (workers(1), ["-n", "0"]))
    ]
    assert [["".join(names) for names in order] for order in orders] == [list("cba"), list("abc")]


@pytest.mark.parametrize("number", [0, 2])
def test_a_skipped_integration_test_fails_in_ci(tmp_path: Path, number: int) -> None:
    """With workers as without; other tests may be skipped."""
    skipped = "def test_it(): pytest.skip('no promtool')\n"
    modules = {"one": f"@pytest.mark.integration\n{skipped}", "other": skipped}
    said = run(tmp_path, *workers(number), **modules)
    assert "1 failed, 1 skipped" in said, said
    assert "integration tests must run in CI, but this one skipped" in said
    assert "no promtool" in said
