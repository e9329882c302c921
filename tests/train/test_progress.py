"""What a person sees: log lines, the live line of a terminal, and nothing."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from fastvideo.train import progress
from fastvideo.train.progress import (
    LiveProgress,
    LogProgress,
    NoProgress,
    Snapshot,
    describe,
    make_progress,
)

if TYPE_CHECKING:
    from pathlib import Path


class FakeClock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def scalars(loss: float = 0.5, step_s: float = 1.0, wait_s: float = 0.25) -> dict[str, float]:
    """Returns what a step reports."""
    return {"total_loss": loss, "step_time_sec": step_s, "dataloader_time_sec": wait_s}


def test_a_line_says_where_the_run_is() -> None:
    """Step, loss, step time, wait and time left, with units that can be read."""
    state = Snapshot(3, 10, loss=0.123456, step_s=1.5, wait_s=0.0125, eta_s=3700.0)
    expected = "step 3/10 · loss 0.1235 · 1.50 s/step · waited for data 12.5 ms · 1:01:40 left"
    assert describe(state) == expected


def test_a_line_leaves_out_what_is_not_known() -> None:
    """A managed method without total_loss, at its last step."""
    state = Snapshot(10, 10, loss=None, step_s=0.002, wait_s=None, eta_s=0.0)
    assert describe(state) == "step 10/10 · 2.0 ms/step"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (59.6, "1:00"), (3599.0, "59:59"), (86_399.0, "23:59:59"), (1e5, "1d 03h")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    """Minutes, hours, and days from one day on."""
    assert progress._duration(seconds) == text


def test_log_lines_become_rarer(caplog: pytest.LogCaptureFixture) -> None:
    """The first step is logged, then one after 5, 10, 20, 40 and every 60 s, and the last."""
    caplog.set_level("INFO", "fastvideo")
    clock = FakeClock()
    with LogProgress(range(1, 301), clock=clock) as shown:
        for step in range(1, 301):
            clock.now += 1.0
            shown.update(step, scalars())
    steps = [int(r.getMessage().split()[1].partition("/")[0]) for r in caplog.records]
    assert steps == [1, 6, 16, 36, 76, 136, 196, 256, 300]


def test_the_time_left_counts_what_lies_between_steps(caplog: pytest.LogCaptureFixture) -> None:
    """Saving and validating between steps makes the rest longer, too."""
    caplog.set_level("INFO", "fastvideo")
    clock = FakeClock()
    with LogProgress(range(1, 11), clock=clock) as shown:
        clock.now += 3.0
        shown.update(1, scalars(step_s=1.0))
    assert (
        caplog.records[0]
        .getMessage()
        .endswith("1.00 s/step · waited for data 250.0 ms · 0:27 left")
    )


def test_a_resumed_run_counts_from_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Steps done earlier are no part of the estimate."""
    caplog.set_level("INFO", "fastvideo")
    clock = FakeClock()
    with LogProgress(range(91, 101), clock=clock) as shown:
        clock.now += 2.0
        shown.update(91, scalars())
    assert "step 91/100" in caplog.records[0].getMessage()
    assert caplog.records[0].getMessage().endswith("0:18 left")


def test_the_live_line_shows_bar_and_state() -> None:
    """The last state drawn has the bar and the whole text."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    clock = FakeClock()
    with LiveProgress(range(1, 5), console=console, clock=clock) as shown:
        for step in range(1, 5):
            clock.now += 2.0
            shown.update(step, scalars(loss=step / 10))
    text = out.getvalue()
    assert "starting the first step" in text
    assert "step 4/4 · loss 0.4 · 1.00 s/step · waited for data 250.0 ms" in text
    assert "━" * 24 in text


def test_the_live_line_fits_narrow_terminals() -> None:
    """What does not fit is cut, so that no line is longer than the terminal is wide."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=40, color_system=None)
    with LiveProgress(range(1, 5), console=console, clock=FakeClock()) as shown:
        shown.update(1, scalars())
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    drawn = [line.split("\r")[-1] for line in text.split("\n")]
    assert any(line.startswith("step 1/4 · loss 0.5 · 1.00 s/step") for line in drawn)
    assert max(map(len, drawn)) <= 40


def test_other_ranks_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that is not enabled gets a silent stand-in."""
    with make_progress(range(1, 3), enabled=False) as shown:
        assert isinstance(shown, NoProgress)
        shown.update(1, scalars())
    assert capsys.readouterr().err == ""


def test_without_a_terminal_lines_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe, a file and a terminal that cannot move its cursor get log lines."""
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_progress(range(1, 3)), LogProgress)
    monkeypatch.setattr(sys, "stderr", _Terminal())
    assert isinstance(make_progress(range(1, 3)), LiveProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress(range(1, 3)), LogProgress)


class _Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_log_lines_appear_above_the_live_line(tmp_path: Path) -> None:
    """On a real terminal a log record starts on its own line, and logging works afterwards."""
    code = textwrap.dedent(
        """
        import logging
        from fastvideo.logger import configure_logging, init_logger
        from fastvideo.train.progress import LiveProgress, make_progress
        configure_logging()
        log = init_logger("fastvideo.test")
        with make_progress(range(1, 3)) as shown:
            assert isinstance(shown, LiveProgress)
            shown.update(1, {"total_loss": 0.5, "step_time_sec": 1.0})
            log.info("during the run")
            shown.update(2, {"total_loss": 0.25, "step_time_sec": 1.0})
        log.info("after the run")
        """
    )
    text = _in_terminal([sys.executable, "-c", code])
    during = next(line for line in text.split("\n") if "during the run" in line)
    assert during.split("\x1b[2K")[-1].startswith("INFO ")  # what was drawn there is erased
    assert "step 2/2 · loss 0.25" in text
    assert text.rstrip().endswith("after the run")


def _in_terminal(command: list[str]) -> str:
    """Runs a command on a terminal of its own and returns what that received."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True
    ) as process:
        os.close(theirs)
        received = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the terminal closes with its last user
                break
            if not chunk:
                break
            received += chunk
    os.close(ours)
    text = received.decode().replace("\r\n", "\n")
    assert process.returncode == 0, text
    return text


def test_updating_costs_no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step leaves its state and draws nothing itself."""
    shown = LiveProgress(range(1, 5), clock=FakeClock())
    monkeypatch.setattr(shown, "_line", None)
    shown.update(1, scalars())
    assert shown._state is not None
    assert shown._state.step == 1


def test_handlers_get_their_stream_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the run the package's handler writes where it wrote before."""
    log = logging.getLogger("fastvideo")
    handler = logging.StreamHandler(sys.__stderr__)
    log.addHandler(handler)
    stand_in = io.StringIO()
    try:
        with progress._log_through(stand_in):
            assert handler.stream is stand_in
        assert handler.stream is sys.__stderr__
    finally:
        log.removeHandler(handler)
