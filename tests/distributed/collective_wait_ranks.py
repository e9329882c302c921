"""Trains a toy on two gloo ranks with and without clocks; a script started by torchrun.

Rank 0 writes what all ranks found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from fastvideo import distributed
from fastvideo.distributed.collective_wait import CollectiveWait, observe_collectives

STEPS, LATE_S = 3, 0.2


class Toy(nn.Module):
    """Two blocks and a head with uneven shapes, so that shards are padded."""

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 5)])
        self.head = nn.Linear(5, 3)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draws)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        out: torch.Tensor = self.head(x)
        return out


class CountingGather:
    """Communication that a program has set itself."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls = 0

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.allocate(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.inner(*args, **kwargs)


class Seconds:
    """Adds up what it is told."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.total: dict[str, float] = {}

    def __call__(self, collective: str, seconds: float) -> None:
        self.calls[collective] = self.calls.get(collective, 0) + 1
        self.total[collective] = self.total.get(collective, 0.0) + seconds


def communication(unit: Any, name: str) -> Any:
    """Returns what communicates for a unit."""
    return getattr(unit._get_fsdp_state()._fsdp_param_groups[0], f"_{name}_comm")


def sharded(dtype: torch.dtype, mesh: tuple[int, int] = (1, 2)) -> Any:
    """Makes the toy, the same every time."""
    policy = distributed.mixed_precision_policy(dtype)
    return distributed.shard_model(Toy(), distributed.get_fsdp_mesh(*mesh), policy)


def train(model: Any, *, late: bool = False, half: bool = False) -> list[torch.Tensor]:
    """Trains on this rank's own data; returns every output, gradient and weight of this rank."""
    rank = distributed.get_world_rank()
    draws = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen: list[torch.Tensor] = []
    for _ in range(STEPS):
        x = torch.randn(4, 5, generator=draws)
        if late and rank == 1:
            time.sleep(LATE_S)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = model(x)
        out.float().square().mean().backward()
        seen.append(out.detach().clone())
        local = [p.grad.to_local() for p in model.parameters()]
        optimizer.step()
        seen += [t.detach().clone() for t in (*local, *(p.to_local() for p in model.parameters()))]
        optimizer.zero_grad()
    return seen


def same_numbers(dtype: torch.dtype, mesh: tuple[int, int]) -> dict[str, Any]:
    """Compares training with and without clocks bit by bit."""
    half = dtype == torch.bfloat16
    bare = train(sharded(dtype, mesh), half=half)
    model, seconds = sharded(dtype, mesh), Seconds()
    observe_collectives(model, seconds)
    timed = train(model, half=half)
    return {
        "equal": len(bare) == len(timed)
        and all(
            a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            for a, b in zip(bare, timed, strict=True)
        ),
        "calls": seconds.calls,
    }


def late_rank(mesh: tuple[int, int]) -> dict[str, float]:
    """Lets rank 1 come late to every forward."""
    model, seconds = sharded(torch.float32, mesh), Seconds()
    observe_collectives(model, seconds)
    train(model, late=True)
    return seconds.total


def grad_norm() -> dict[str, Any]:
    """Lets rank 1 come late to the reduction of a norm."""
    seconds = Seconds()
    wait = CollectiveWait(seconds)
    mesh = distributed.get_fsdp_mesh(1, 2)
    rank = distributed.get_world_rank()
    square = torch.tensor(float(rank + 1))
    dist.barrier()
    if rank == 1:
        time.sleep(LATE_S)
    with wait.timed("grad_norm", square.device):
        placements = [torch.distributed.tensor.Replicate(), torch.distributed.tensor.Partial()]
        total = DTensor.from_local(square, mesh, placements).full_tensor()
    return {"total": total.item(), "calls": seconds.calls, "waited": seconds.total["grad_norm"]}


def put_on_and_off() -> dict[str, Any]:
    """Observes twice over a program's own communication, and stops."""
    model = sharded(torch.float32)
    unit = model.blocks[0]
    own = CountingGather(communication(unit, "all_gather"))
    scatter = communication(unit, "reduce_scatter")
    unit.set_custom_all_gather(own)
    first, second = Seconds(), Seconds()
    CollectiveWait(first).observe(model)
    wait = CollectiveWait(second)
    units = wait.observe(model)
    train(model)
    CollectiveWait(first).stop(model)
    still_observed = communication(unit, "all_gather") is not own
    wait.stop(model)
    calls = dict(second.calls)
    train(model)
    return {
        "units": units,
        "own_calls": own.calls,
        "first": first.calls,
        "second": calls,
        "still_observed": still_observed,
        "restored": communication(unit, "all_gather") is own
        and communication(unit, "reduce_scatter") is scatter,
        "after": second.calls == calls,
    }


def own_hook() -> dict[str, Any]:
    """Observes twice over a program's own hook of the exchange between replicas, and stops."""
    model = sharded(torch.float32, (2, 1))
    calls: list[int] = []
    units = [model, *model.blocks]

    def own(output: torch.Tensor) -> None:
        calls.append(output.numel())

    for unit in units:
        unit.set_all_reduce_hook(own)
    first, second = Seconds(), Seconds()
    CollectiveWait(first).observe(model)
    wait = CollectiveWait(second)
    wait.observe(model)
    train(model)
    own_calls = len(calls)
    wait.stop(model)
    hooks = [unit._get_fsdp_state()._fsdp_param_groups[0]._all_reduce_hook for unit in units]
    train(model)
    return {
        "first": first.calls,
        "second": second.calls,
        "own_calls": own_calls,
        "restored": hooks == [own] * 3,
        "after": len(calls),
    }


def rounds() -> dict[str, int]:
    """Exchanges in the second of two rounds only."""
    model, seconds = sharded(torch.float32, (2, 1)), Seconds()
    observe_collectives(model, seconds)
    reduction = distributed.GradientReduction(model, every_round=True)
    for last in (False, True):
        reduction.before_backward(last=last)
        model(torch.ones(1, 5)).sum().backward()
    return seconds.calls


def asynchronous() -> dict[str, Any]:
    """Unshards asynchronously, which ends out of sight."""
    model, seconds = sharded(torch.float32), Seconds()
    observe_collectives(model, seconds)
    model(torch.ones(1, 5))
    seconds.calls.clear()
    handle = model.blocks[0].unshard(async_op=True)
    handle.wait()
    weight = model.blocks[0].weight
    return {"calls": seconds.calls, "whole": torch.equal(weight, Toy().blocks[0].weight)}


def broken_receiver() -> dict[str, Any]:
    """Trains with a receiver that raises."""
    calls: list[str] = []

    def add(collective: str, seconds: float) -> None:
        calls.append(collective)
        raise ZeroDivisionError

    model = sharded(torch.float32)
    observe_collectives(model, add)
    train(model)
    return {"calls": calls}


def main(out: str) -> None:
    """Does everything on this rank."""
    distributed.maybe_init_distributed_environment_and_model_parallel(1, 1)
    found = {
        "same_numbers": {
            f"{dtype} {mesh}": same_numbers(dtype, mesh)
            for dtype in (torch.float32, torch.bfloat16)
            for mesh in ((1, 2), (2, 1))
        },
        "late_rank": {str(mesh): late_rank(mesh) for mesh in ((1, 2), (2, 1))},
        "own_hook": own_hook(),
        "rounds": rounds(),
        "grad_norm": grad_norm(),
        "put_on_and_off": put_on_and_off(),
        "asynchronous": asynchronous(),
        "broken_receiver": broken_receiver(),
    }
    results = distributed.get_world_group().all_gather_object(found)
    distributed.cleanup_dist_env_and_memory()
    if os.environ["RANK"] == "0":
        Path(out).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # torch's own threads sometimes abort a process that ends the usual way
