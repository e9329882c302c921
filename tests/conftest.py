"""What every test shares, and how tests share a machine when several workers run them."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


# Runs that tests start must not meet each other, nor whatever else runs on the machine.
os.environ.setdefault("FASTVIDEO_METRICS_PORT", "0")

TURNS = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives all workers of pytest-xdist one directory where they take turns."""
    config: pytest.Config = node.config
    if TURNS not in config.stash:
        directory = tempfile.TemporaryDirectory(prefix="pytest-turns-")
        config.add_cleanup(directory.cleanup)
        config.stash[TURNS] = directory.name
    node.workerinput["turns"] = config.stash[TURNS]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets workers begin with the modules that take longest, and end with those that wait."""
    if hasattr(config, "workerinput"):
        slow, waiting = (
            {item.path for item in items if item.get_closest_marker(name)}
            for name in ("slow", "alone")
        )
        items.sort(key=lambda item: (item.path in waiting) - (item.path in slow))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test marked ``alone`` when no other worker runs one, its fixtures included."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with turn(Path(item.config.workerinput["turns"]), alone=alone):
        return (yield)


@contextmanager
def turn(directory: Path, *, alone: bool) -> Iterator[None]:
    """Waits until it is this process's turn.

    Args:
        directory: Where all processes that take turns keep their locks.
        alone: Whether nobody else may have a turn at the same time.
    """
    with (directory / "gate").open("w") as gate, (directory / "room").open("w") as room:
        # Who waits for the room holds the gate, so that nobody else goes in before.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Closing is not enough: a process that a test has forked may have it open still.
            fcntl.flock(room, fcntl.LOCK_UN)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skipped integration test into a failure where CI=true."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and item.get_closest_marker("integration"):
        report.outcome = "failed"
        report.longrepr = (
            f"integration tests must run in CI, but this one skipped: {report.longrepr}"
        )
    return report
