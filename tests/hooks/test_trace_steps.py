"""Steps of threads."""

from __future__ import annotations

import threading

import pytest

from fastvideo.hooks.trace_steps import (
    call_at_step_ends,
    current_step,
    current_step_idx,
    leave_step_ends,
    trace_step,
)


def _divide_in_step(step: int) -> None:
    assert current_step_idx() == step
    step / 0


def test_steps_nest_and_end_with_exceptions() -> None:
    """The innermost counts, and outside there is none."""
    assert current_step_idx() is None
    with trace_step(1):
        with pytest.raises(ZeroDivisionError), trace_step(7, loop="denoising"):
            _divide_in_step(7)
        assert current_step_idx() == 1
    assert current_step_idx() is None
    assert current_step() is None


def test_steps_belong_to_their_thread() -> None:
    """A thread of autograd, which has none, takes the one that was entered last."""
    ends: list[int] = []

    def end() -> None:
        ends.append(1)

    seen: list[object] = []

    def look() -> None:
        seen.extend([current_step_idx(), current_step(), current_step(in_backward=True)])

    call_at_step_ends(end)
    try:
        with trace_step(4) as step:
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
    finally:
        leave_step_ends(end)
        leave_step_ends(end)
    assert seen == [None, None, step]
    assert ends == [1]
