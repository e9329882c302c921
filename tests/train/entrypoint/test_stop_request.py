"""Stopping after the same step; that ranks agree is tested with the real trainer on two of them."""

from __future__ import annotations

import signal

import pytest

from fastvideo.train.entrypoint.stop_request import StopRequest
from fastvideo.train.entrypoint.termination import Terminated, Termination


def test_a_signal_during_a_step_ends_the_run_after_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The ranks tell each other at the start of a step."""
    termination = Termination()
    stop = StopRequest(termination, timeout_s=60)
    with stop.awaited():
        stop.begin_step()
        assert not stop.agreed()
        stop.begin_step()
        termination.on_signal(signal.SIGTERM)
        assert not stop.agreed()
        stop.begin_step()
        assert stop.agreed()
    with pytest.raises(Terminated):
        stop.leave(3)
    assert "stopping after step 3, as SIGTERM asked" in caplog.text
