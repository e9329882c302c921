"""How ranks tell a run that was stopped from one that has lost a rank."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from fastvideo.train.entrypoint.stop_file import (
    VARIABLE,
    StopFile,
    stopping_for_s,
    was_stopped,
)
from fastvideo.train.entrypoint.termination import Terminated

ASKED = Terminated(signal.SIGTERM)


@pytest.mark.parametrize(
    ("error", "world_size", "expected"),
    [
        (Terminated(signal.SIGINT), 2, True),
        (Terminated(signal.SIGTERM, agreed=True), 2, True),
        (ASKED, 1, True),
        (ASKED, 2, False),
        (RuntimeError("broken"), 1, False),
    ],
)
def test_without_a_launcher_sigterm_of_several_ranks_is_no_stop(
    *, error: BaseException, world_size: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be that another rank has failed; Ctrl-C and what all agreed on are plain."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert was_stopped(error, world_size=world_size) is expected


def test_the_launcher_says_that_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ended the rank then is the stop, also a peer that is gone; before, it is not."""
    environ = {VARIABLE: "of another launcher"}
    stop_file = StopFile(environ)
    stop_file.announce()
    path = Path(environ[VARIABLE])
    monkeypatch.setenv(VARIABLE, str(path))
    assert not was_stopped(ASKED, world_size=2, settle_s=0.0)
    stop_file.write()
    assert was_stopped(ASKED, world_size=2)
    assert was_stopped(RuntimeError("a peer is gone"), world_size=2)
    stop_file.remove()
    assert not path.parent.exists()
    assert environ == {}


def test_the_file_may_come_a_little_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler signals all processes of a job at once, in any order."""
    path = tmp_path / "stopped"
    monkeypatch.setenv(VARIABLE, str(path))
    timer = threading.Timer(0.1, path.touch)
    timer.start()
    assert was_stopped(ASKED, world_size=2, settle_s=10.0)
    timer.join()


def test_a_file_that_cannot_be_written_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are not told then, and end as they do without."""

    def full(prefix: str) -> str:
        raise OSError(28, prefix)

    monkeypatch.setattr("tempfile.mkdtemp", full)
    environ = {VARIABLE: "of another launcher"}
    stop_file = StopFile(environ)
    stop_file.announce()
    stop_file.write()
    stop_file.remove()
    assert environ == {}


def test_the_time_runs_from_when_the_launcher_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that waits for its device hears of a signal late; saving has its own time."""
    monkeypatch.delenv(VARIABLE, raising=False)
    asked, saved = Terminated(signal.SIGTERM), Terminated(signal.SIGTERM, agreed=True)
    asked.at, saved.at = time.monotonic() - 3, time.monotonic() - 2
    assert stopping_for_s(asked) == pytest.approx(3, abs=1)
    assert stopping_for_s(RuntimeError("broken")) == 0
    monkeypatch.setenv(VARIABLE, str(tmp_path / "stopped"))
    assert stopping_for_s(asked) == pytest.approx(3, abs=1)
    (tmp_path / "stopped").touch()
    long_ago = time.time() - 100
    os.utime(tmp_path / "stopped", (long_ago, long_ago))
    assert stopping_for_s(asked) == pytest.approx(100, abs=1)
    assert stopping_for_s(RuntimeError("a peer is gone")) == pytest.approx(100, abs=1)
    assert stopping_for_s(saved) == pytest.approx(2, abs=1)
