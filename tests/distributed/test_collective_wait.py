"""Time in collectives: on two gloo ranks, and on a CUDA device that is moved on by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastvideo.distributed.collective_wait import CollectiveWait, observe_collectives
from fastvideo.observability.metrics.device_time import DeviceTimer

LATE_S = 3 * 0.2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank of `collective_wait_ranks.py` found."""
    out = tmp_path_factory.mktemp("collective_wait") / "out.json"
    script = Path(__file__).parent / "collective_wait_ranks.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc_per_node=2", str(script), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[dict[str, Any]] = json.loads(out.read_text())
    return results


@pytest.mark.distributed
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_numbers_are_bit_equal_with_clocks(ranks: list[dict[str, Any]], dtype: str) -> None:
    """Outputs, gradients and weights of all steps; three units gather twice and scatter once."""
    for rank in ranks:
        assert rank["same_numbers"][f"{dtype} (1, 2)"] == {
            "equal": True,
            "calls": {"all_gather": 3 * 3 * 2, "reduce_scatter": 3 * 3},
        }


@pytest.mark.distributed
@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_replicas_have_only_gradients_to_exchange(ranks: list[dict[str, Any]], dtype: str) -> None:
    """In a mesh of replicas numbers are the same as well; each unit exchanges once a step."""
    for rank in ranks:
        assert rank["same_numbers"][f"{dtype} (2, 1)"] == {
            "equal": True,
            "calls": {"all_reduce": 3 * 3},
        }


@pytest.mark.distributed
@pytest.mark.parametrize("mesh", ["(1, 2)", "(2, 1)"])
def test_the_late_rank_waits_least(ranks: list[dict[str, Any]], mesh: str) -> None:
    """Rank 0 waits as long as rank 1 is late."""
    waited = [sum(rank["late_rank"][mesh].values()) for rank in ranks]
    assert waited[0] >= 0.9 * LATE_S
    assert waited[0] - waited[1] >= 0.5 * LATE_S


@pytest.mark.distributed
def test_the_reduction_of_a_norm_is_timed(ranks: list[dict[str, Any]]) -> None:
    """It is reported once, and the sum is right."""
    assert [(r["grad_norm"]["total"], r["grad_norm"]["calls"]) for r in ranks] == [
        (3.0, {"grad_norm": 1})
    ] * 2
    waited = [rank["grad_norm"]["waited"] for rank in ranks]
    assert waited[0] - waited[1] >= 0.5 * LATE_S / 3


@pytest.mark.distributed
def test_a_programs_own_communication_is_kept(ranks: list[dict[str, Any]]) -> None:
    """It goes on communicating below the clock, and comes back when the clock is stopped."""
    for rank in ranks:
        found = rank["put_on_and_off"]
        assert found["units"] == 3
        assert found["own_calls"] == 2 * 3 * 2
        assert found["restored"]
        assert found["after"]


@pytest.mark.distributed
def test_observing_twice_counts_once(ranks: list[dict[str, Any]]) -> None:
    """The later clock replaces the earlier one, which cannot stop it."""
    for rank in ranks:
        found = rank["put_on_and_off"]
        assert (found["first"], found["second"]["all_gather"]) == ({}, 18)
        assert found["still_observed"]


@pytest.mark.distributed
def test_a_programs_own_hook_is_kept(ranks: list[dict[str, Any]]) -> None:
    """It is called below the clock, once for each exchange, and comes back; clocks count once."""
    for rank in ranks:
        assert rank["own_hook"] == {
            "first": {},
            "second": {"all_reduce": 9},
            "own_calls": 9,
            "restored": True,
            "after": 9 + 3 * 3,
        }


@pytest.mark.distributed
def test_rounds_without_exchange_are_not_timed(ranks: list[dict[str, Any]]) -> None:
    """Three units exchange in the second of two rounds."""
    assert [rank["rounds"] for rank in ranks] == [{"all_reduce": 3}] * 2


@pytest.mark.distributed
def test_asynchronous_gathers_pass_untimed(ranks: list[dict[str, Any]]) -> None:
    """Their end is not seen, so no time is made up; the weights arrive."""
    assert [rank["asynchronous"] for rank in ranks] == [{"calls": {}, "whole": True}] * 2


@pytest.mark.distributed
def test_a_receiver_that_raises_ends_no_training(ranks: list[dict[str, Any]]) -> None:
    """It is called once and never again."""
    assert [rank["broken_receiver"]["calls"] for rank in ranks] == [["all_gather"]] * 2


def test_a_model_that_is_not_sharded_has_nothing_to_observe() -> None:
    """Observing and stopping it does nothing."""
    wait = CollectiveWait(lambda collective, seconds: None)
    model = nn.Sequential(nn.Linear(2, 2))
    assert wait.observe(model) == 0
    wait.stop(model)
    assert isinstance(observe_collectives(model, lambda collective, seconds: None), CollectiveWait)


def test_exceptions_pass_unchanged_and_are_timed() -> None:
    """What a failing collective took counts: it is where a rank hangs until its time-out."""
    heard: list[tuple[str, float]] = []
    times = iter([10.0, 12.5])
    wait = CollectiveWait(lambda *said: heard.append(said), clock=lambda: next(times))
    message = "a peer left"
    with (
        pytest.raises(ConnectionError, match="a peer left"),
        wait.timed("grad_norm", torch.device("cpu")),
    ):
        raise ConnectionError(message)
    assert heard == [("grad_norm", 2.5)]


class FakeCuda:
    """As much of torch.cuda as a timer uses: one stream, and events that end when told."""

    device_index = stream_id = 0

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.done = False

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_stream(self) -> FakeCuda:
        return self

    def Event(self, *, enable_timing: bool) -> FakeEvent:  # noqa: N802 - the name in torch.cuda
        return FakeEvent(self)


class FakeEvent:
    """Remembers when it was recorded."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.at_ms = 0.0

    def record(self, stream: Any = None) -> None:
        self.at_ms = self.cuda.now_ms

    def query(self) -> bool:
        return self.cuda.done

    def elapsed_time(self, end_event: Any) -> float:
        return float(end_event.at_ms - self.at_ms)


def test_on_cuda_times_come_later_with_a_drain() -> None:
    """Nothing is reported before the device has finished, and nothing waits for it."""
    cuda, heard = FakeCuda(), []

    def host_clock() -> float:
        message = "the host's clock says nothing about a device"
        raise AssertionError(message)

    wait = CollectiveWait(
        lambda *said: heard.append(said), timer=DeviceTimer(4, cuda), clock=host_clock
    )
    with wait.timed("grad_norm", torch.device("cuda", 0)):
        cuda.now_ms += 1500.0
    wait.drain()
    assert heard == []
    cuda.done = True
    wait.drain()
    wait.drain()
    assert heard == [("grad_norm", 1.5)]


def test_on_cuda_a_collective_that_raises_gives_its_events_back() -> None:
    """The pool does not shrink."""
    cuda = FakeCuda()
    cuda.done = True
    timer = DeviceTimer(1, cuda)
    wait = CollectiveWait(lambda collective, seconds: None, timer=timer)
    for _ in range(3):
        with pytest.raises(KeyError), wait.timed("all_gather", torch.device("cuda")):
            raise KeyError
        wait.drain()
    assert timer.exhausted == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_real_device() -> None:
    """The time of a kernel in a side stream, as FSDP2's collectives are, without waiting for it."""
    heard: list[tuple[str, float]] = []
    wait = CollectiveWait(lambda *said: heard.append(said))
    side = torch.cuda.Stream()
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    with torch.cuda.stream(side), wait.timed("all_gather", torch.device("cuda")):
        torch.cuda._sleep(20_000_000)
    wait.drain()
    assert heard == []
    torch.cuda.synchronize()
    wait.drain()
    ((name, seconds),) = heard
    assert name == "all_gather"
    assert 0.001 < seconds < 1.0
