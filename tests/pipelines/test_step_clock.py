"""The times of denoising steps, and the bar over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fastvideo.pipelines import step_clock
from fastvideo.pipelines.step_clock import StepBar, StepClock

if TYPE_CHECKING:
    import pytest


def test_durations_are_those_between_the_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fewer than moments; none where nothing was noted."""
    moments = iter([1.0, 1.5, 3.5])
    monkeypatch.setattr(step_clock, "perf_counter", lambda: next(moments))
    clock = StepClock(torch.device("cpu"))
    assert clock.durations_s() == []
    for _ in range(3):
        clock.note()
    assert clock.durations_s() == [0.5, 2.0]


def test_the_bar_names_each_request_and_counts_its_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever is markup to rich is shown as it is; long prompts are cut, and of one line."""
    with StepBar(enabled=True) as bar:
        bar.request("a [red] \\[/ball]\nin {task}", 1, 2)(3, 4)
        bar.request("x" * 60, 2, 2)(4, 4)
    shown = capsys.readouterr().err
    assert "[1/2] a [red] \\[/ball] in {task}" in shown
    assert "[2/2] " + "x" * 39 + "…" in shown
    assert "3/4" in shown
    assert "4/4" in shown


def test_without_a_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Logs of a batch have no bars in them."""
    with StepBar() as bar:
        bar.request("a", 1, 1)(1, 4)
    assert capsys.readouterr().err == ""
