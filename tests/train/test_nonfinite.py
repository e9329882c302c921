"""Losses that are NaN or infinite: the same decision on every rank."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from fastvideo.train.nonfinite import NonFiniteGuard, NonFiniteLossError

if TYPE_CHECKING:
    from pathlib import Path


def guard(policy: str, *, rank: int = 0, world_size: int = 1) -> NonFiniteGuard:
    """Returns a guard without a process group."""
    return NonFiniteGuard(policy, rank=rank, world_size=world_size, device=torch.device("cpu"))


def test_finite_losses_pass() -> None:
    """Nothing happens to numbers, however large."""
    assert guard("raise").judge({"total_loss": [1e300, -1e300]}, 0.0, 1) is False


def test_a_bad_round_is_found_among_good_ones() -> None:
    """One round out of several is enough, and all bad losses are named."""
    losses = {"a": [1.0, math.nan], "b": [0.0, 0.0], "c": [-math.inf, 1.0]}
    with pytest.raises(NonFiniteLossError, match="step 7: not finite: a = nan, c = -inf; the run"):
        guard("raise").judge(losses, 0.0, 7)


def test_another_ranks_loss_is_said_to_be_that() -> None:
    """A rank whose own losses are fine raises too, and points to the other."""
    with pytest.raises(NonFiniteLossError, match="a loss on another rank, which names it"):
        guard("raise", rank=1, world_size=2).judge({"a": [1.0]}, math.nan, 3)


def test_the_error_is_also_a_floating_point_error() -> None:
    """Callers may catch the built-in exception."""
    assert issubclass(NonFiniteLossError, FloatingPointError)


def test_one_rank_needs_no_message() -> None:
    """Alone, nothing is sent and nothing has to be read."""
    alone = guard("raise")
    alone.begin_agreement([[torch.tensor(math.nan)]])
    assert alone.agreement() == []


WORKER = textwrap.dedent(
    """
    import json, sys
    from types import SimpleNamespace
    import torch, torch.distributed as dist
    from torch import nn
    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.nonfinite import NonFiniteLossError
    from fastvideo.train.trainer import Trainer

    policy, out = sys.argv[1:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    class Method:
        def __init__(self):
            self.student = SimpleNamespace(transformer=nn.Linear(1, 1))
            self.optimizer = torch.optim.SGD(self.student.transformer.parameters(), lr=0.1)
            self.steps = []
        def set_tracker(self, tracker): pass
        def on_train_start(self): pass
        def manages_optimization(self): return False
        def single_train_step(self, batch, iteration):
            loss = self.student.transformer(batch).square().mean()
            if iteration == 2 and rank == 1:
                # An overflow in what is reported only: no gradient shows it.
                return {"total_loss": loss, "reported": torch.tensor(float("inf"))}, {}, {}
            return {"total_loss": loss, "reported": loss.detach()}, {}, {}
        def backward(self, loss_map, outputs, *, grad_accum_rounds=1):
            loss_map["total_loss"].backward()
            for p in self.student.transformer.parameters():
                dist.all_reduce(p.grad)
        def optimizers_schedulers_step(self, iteration):
            self.steps.append(iteration)
            self.optimizer.step()
        def optimizers_zero_grad(self, iteration): self.optimizer.zero_grad()

    config = TrainingConfig()
    config.nonfinite_loss = policy
    config.tracker.trackers = ["jsonl"]
    config.checkpoint.output_dir = out
    method, error = Method(), None
    loader = [torch.ones(1, 1)]
    try:
        Trainer(config).run(method, dataloader=loader, max_steps=3)
    except NonFiniteLossError as caught:
        error = str(caught)
    with open(f"{out}/rank{rank}.json", "w") as file:
        json.dump({"steps": method.steps, "error": error}, file)
    dist.destroy_process_group()
    import os
    os._exit(0)  # torch's own threads sometimes abort a process that ends the usual way
    """
)


def run_two_ranks(tmp_path: Path, *arguments: str) -> None:
    """Runs the worker on two gloo ranks and waits for both."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--master_addr=127.0.0.1", f"--master_port={port}", str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.distributed
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_all_ranks_decide_alike(tmp_path: Path, policy: str) -> None:
    """A loss that only one of two ranks sees as infinite ends, or skips, the step on both."""
    import json  # noqa: PLC0415 - this test only

    run_two_ranks(tmp_path, policy, str(tmp_path))
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    if policy == "raise":
        assert [rank["steps"] for rank in ranks] == [[1, 2], [1, 2]]
        assert "step 2: not finite: a loss on another rank" in ranks[0]["error"]
        assert "step 2: not finite: reported = inf on rank 1" in ranks[1]["error"]
    else:
        assert ranks == [{"steps": [1, 3], "error": None}] * 2
    records = (tmp_path / "tracker" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in records] == [1, 2, 3][: 2 + (policy == "skip")]


@pytest.mark.parametrize(
    ("device", "early", "late"), [("meta", ["begun"], ["begun", "awaited"]), ("cpu", [], ["done"])]
)
def test_a_device_sends_its_losses_while_it_works(
    monkeypatch: pytest.MonkeyPatch, device: str, early: list[str], late: list[str]
) -> None:
    """On a CPU, sending would take the core from the work."""
    seen: list[str] = []

    def all_reduce(total: torch.Tensor, *, async_op: bool = False) -> object:
        assert total.device.type == device
        seen.append("begun" if async_op else "done")
        return SimpleNamespace(wait=lambda: seen.append("awaited"))

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    guard = NonFiniteGuard("raise", rank=0, world_size=2, device=torch.device(device))
    guard.begin_agreement([[1.0]])
    assert seen == early
    assert len(guard.agreement()) == 1
    assert seen == late
    assert guard.agreement() == []
