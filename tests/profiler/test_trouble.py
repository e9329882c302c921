"""Traced programs in trouble: what they do works as without tracing, and tracing goes on after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Trouble:
    """What one kind of trouble in ``run_into_trouble.py`` came to."""

    facts: dict[str, Any]
    log: list[str]
    counters: dict[str, int]
    hidden: list[str]

    def logged(self, text: str) -> int:
        """Returns how many log lines hold ``text``."""
        return sum(text in line for line in self.log)


@pytest.fixture(scope="module")
def troubles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trouble]:
    """Gives every kind of trouble by its name; each process ended well and left nothing hidden."""
    folder = tmp_path_factory.mktemp("troubles")
    script = Path(__file__).with_name("run_into_trouble.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    statuses = json.loads((folder / "statuses.json").read_text(encoding="utf-8"))
    failed = [name for name, status in statuses.items() if status != 0]
    assert not failed, [(folder / f"{name}.err").read_text(encoding="utf-8") for name in failed]
    found = {
        name: Trouble(**json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
        for name in statuses
    }
    assert all(trouble.hidden == [] for trouble in found.values())
    return found


def test_what_a_sigterm_handler_raises_reaches_the_program(troubles: dict[str, Trouble]) -> None:
    """Even in the middle of a start, stop or export, and the sink stays attached."""
    facts = troubles["handler_raises"].facts
    ways = ("start", "stop", "export_chrome_trace")
    assert facts == {"sinks detached": {}} | {way: [True, 2] for way in ways}


def test_tracing_goes_on_after_a_handler_that_raises(troubles: dict[str, Trouble]) -> None:
    """The segment that SIGTERM closed is exported, and so is the next one."""
    trouble = troubles["handler_raises_elsewhere"]
    assert trouble.facts == {"caught": True}
    assert trouble.counters == {"recorded": 2, "exported_ok": 2}


def test_an_interrupt_costs_one_segment(troubles: dict[str, Trouble]) -> None:
    """It reaches the program, leaves no profiler and no file, and the next segment works."""
    facts = troubles["interrupt"].facts
    ways = ("start", "stop", "export_chrome_trace")
    assert facts == {"own": 1} | {way: [True, True, 1, 1] for way in ways}


def test_a_segment_of_a_thread_that_ended_is_given_up(troubles: dict[str, Trouble]) -> None:
    """One line says so, later segments are recorded on any thread, and own profilers work."""
    trouble = troubles["ended_thread"]
    assert trouble.facts == {"own inside": 1, "own": 1}
    assert trouble.counters == {"failed": 2, "recorded": 3, "exported_ok": 3}
    assert trouble.logged("has ended inside region training_train") == 1


def test_stop_gives_up_the_segment_of_a_thread_that_ended(troubles: dict[str, Trouble]) -> None:
    """No segment stays open, no file stays, and the controller can be started again."""
    trouble = troubles["ended_thread_at_stop"]
    assert trouble.facts == {"recording": False, "hidden": []}
    assert trouble.counters == {"failed": 1, "recorded": 1, "exported_ok": 1}
    assert trouble.logged("has ended inside region training_train") == 1


def test_a_region_left_on_another_thread_blocks_nobody(troubles: dict[str, Trouble]) -> None:
    """A pool's thread that entered it can trace and profile later, and so can others."""
    trouble = troubles["pool_thread"]
    assert trouble.facts == {"own": 1, "own of the pool": 1}
    assert trouble.counters == {"failed": 1, "recorded": 2, "exported_ok": 2}
    assert trouble.logged("which was left on another one") == 1


def test_a_stop_on_another_thread_leaves_nothing_on_this_one(troubles: dict[str, Trouble]) -> None:
    """The program's own profiler works in the region that was open, and behind it."""
    trouble = troubles["stopped_elsewhere"]
    assert trouble.facts == {"hidden": [], "own inside": 1, "own": 1}
    assert trouble.counters == {"failed": 1, "recorded": 1, "exported_ok": 1}


def test_a_profiler_of_another_thread_is_left_alone(troubles: dict[str, Trouble]) -> None:
    """It sees all its work, though a region ended meanwhile; later profilers and segments work."""
    trouble = troubles["foreign_across"]
    assert trouble.facts == {"found": [2], "own": 1}
    assert trouble.counters == {"failed": 1, "skipped": 1, "recorded": 1, "exported_ok": 1}


def test_calls_nested_to_the_limit_detach_nothing(troubles: dict[str, Trouble]) -> None:
    """What cannot be recorded there is counted and said later; tracing goes on."""
    trouble = troubles["deep"]
    assert trouble.facts["raised"]
    assert trouble.facts["detached"] == {}
    assert trouble.counters["exported_ok"] == 3
    missed = trouble.logged("nested to Python's limit")
    assert missed + trouble.logged("so deep in nested calls") >= 1


def test_sigterm_gives_up_a_segment_it_cannot_close(troubles: dict[str, Trouble]) -> None:
    """The log says so, no empty file stays, and a program that goes on can record."""
    trouble = troubles["terminated_elsewhere"]
    assert trouble.facts == {"handled": True, "hidden": []}
    assert trouble.logged("could not be closed") == 1
    assert trouble.counters == {"failed": 1, "recorded": 1, "exported_ok": 1}


def test_stacks_are_not_recorded_over_cprofile(troubles: dict[str, Trouble]) -> None:
    """The program's cProfile sees everything, one warning says why there is no segment."""
    trouble = troubles["c_profiler"]
    assert trouble.facts == {"seen": True}
    assert trouble.counters == {"skipped": 2, "recorded": 1, "exported_ok": 1}
    assert trouble.logged("cProfile or another profiler written in C") == 1


def test_no_attribute_is_too_much_for_the_exporter(troubles: dict[str, Trouble]) -> None:
    """Numbers of thousands of digits and long texts are cut at hand-over."""
    trouble = troubles["odd_attributes"]
    assert trouble.counters == {"recorded": 2, "exported_ok": 2}


def test_no_directory_name_is_too_much_for_kineto(troubles: dict[str, Trouble]) -> None:
    """Blanks, percent signs, quotes and line breaks in the name do not matter."""
    written = troubles["odd_directories"].facts["written"]
    assert len(written) == 5
    assert all(counts == [1, 0] for counts in written.values())
