"""What two gloo ranks do with the functions of the package; a script started by torchrun.

Rank 0 writes the results as JSON. The toy network has two blocks and a head, like a transformer.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastvideo import distributed
from fastvideo.errors import ConfigError


class Toy(nn.Module):
    """Two blocks and a head, small enough to print."""

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 3)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draws)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).tanh()
        out: torch.Tensor = self.head(x)
        return out


def _groups() -> dict[str, Any]:
    world = distributed.get_world_group()
    rank = world.rank
    if world.rank_in_group == 0:
        world.send_object({"from": 0}, dst=1)
        received = world.recv_object(src=1)
    else:
        received = world.recv_object(src=0)
        world.send_object({"from": 1}, dst=0)
    try:
        world.send_object(None, dst=rank)
    except ValueError as error:
        refused = str(error)
    world.barrier()
    return {
        "rank": rank,
        "local_rank": distributed.get_local_rank(),
        "world_size": distributed.get_world_size(),
        "first": world.is_first_rank,
        "broadcast": world.broadcast(torch.tensor(float(rank)), src=1).item(),
        "max": world.all_reduce_max(torch.tensor([rank, -rank])).tolist(),
        "broadcast_object": world.broadcast_object({"rank": rank}, src=0),
        "received": received,
        "refused": refused,
        "sp": [distributed.get_sp_rank(), distributed.get_sp_world_size()],
        "tp": [distributed.get_tp_rank(), distributed.get_tp_world_size()],
        "dp": [distributed.get_dp_rank(), distributed.get_dp_world_size()],
        "alone": distributed.get_sp_group().all_gather_object(rank),
    }


def _gradients(mesh_shape: tuple[int, int]) -> dict[str, Any]:
    """Compares with the mean of both ranks' losses on a whole model."""
    mesh = distributed.get_fsdp_mesh(*mesh_shape)
    model, whole = Toy(), Toy()
    policy = distributed.mixed_precision_policy(torch.float32)
    same = distributed.shard_model(model, mesh, policy) is model
    inputs = [torch.full((2, 4), float(rank + 1)) for rank in range(2)]
    out = model(inputs[distributed.get_world_rank()])
    out.square().mean().backward()
    losses = [whole(x).square().mean() for x in inputs]
    ((losses[0] + losses[1]) / 2).backward()
    differences = [
        (p.grad.full_tensor() - q.grad).abs().max().item()  # type: ignore[union-attr, operator]
        for p, q in zip(model.parameters(), whole.parameters(), strict=True)
    ]
    return {
        "same_object": same,
        "sharded": [distributed.is_sharded(model), distributed.is_sharded(whole)],
        "mesh_names": list(mesh.mesh_dim_names or ()),
        "same_mesh": distributed.get_fsdp_mesh(*mesh_shape) is mesh,
        "blocks_sharded": all(distributed.is_sharded(block) for block in model.blocks),
        "gradient": max(differences),
        "local_rows": next(model.parameters()).to_local().shape[0],  # type: ignore[operator]
    }


def _stale_weights(mesh_shape: tuple[int, int]) -> float:
    """Changes the shards between two forwards without a backward; returns the error after."""
    model, whole = Toy(), Toy()
    mesh = distributed.get_fsdp_mesh(*mesh_shape)
    distributed.shard_model(model, mesh, distributed.mixed_precision_policy(torch.float32))
    x = torch.ones(1, 4)
    shards = list(model.parameters())  # what an optimizer or an EMA callback holds on to
    with torch.no_grad():
        model(x)
        for parameter in (*shards, *whole.parameters()):
            parameter.mul_(2.0)
        return float((model(x) - whole(x)).abs().max())


def _frozen() -> dict[str, Any]:
    """Counts what FSDP remembers of a frozen model's forwards, before and after forgetting."""
    model = Toy().requires_grad_(False)
    mesh = distributed.get_fsdp_mesh(1, 2)
    distributed.shard_model(model, mesh, distributed.mixed_precision_policy(torch.float32))
    notes = model._get_fsdp_state()._comm_ctx  # type: ignore[operator]
    x = torch.ones(1, 4)
    with torch.no_grad():
        outs = [model(x) for _ in range(5)]
        remembered = len(notes.post_forward_order)
        distributed.forget_forwards(model)
        forgotten = len(notes.post_forward_order)
        outs.append(model(x))
    distributed.forget_forwards(Toy())
    equal = all(torch.equal(out, outs[0]) for out in outs)
    return {"remembered": remembered, "forgotten": forgotten, "equal": equal}


def _bf16() -> dict[str, str]:
    model = Toy()
    mesh = distributed.get_fsdp_mesh(1, 2)
    distributed.shard_model(model, mesh, distributed.mixed_precision_policy(torch.bfloat16))
    seen = {}

    def look(module: nn.Module, args: tuple[torch.Tensor]) -> None:
        seen["input"] = str(args[0].dtype)
        seen["gathered"] = str(module.head.weight.dtype)

    # FSDP gathers in a pre-forward hook of its own, which was registered first.
    model.register_forward_pre_hook(look)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(torch.ones(1, 4))
    out.float().sum().backward()
    parameter = model.head.weight
    return {**seen, "weights": str(parameter.dtype), "gradient": str(parameter.grad.dtype)}  # type: ignore[union-attr]


def _wrong_mesh() -> str:
    try:
        distributed.get_fsdp_mesh(2, 2)
    except ConfigError as error:
        return str(error)
    return ""


def main(out: str) -> None:
    """Does everything on this rank, twice over the life of the process group."""
    before = [distributed.get_world_rank(), distributed.get_world_size()]
    try:
        distributed.get_world_group()
        too_early = ""
    except RuntimeError as error:
        too_early = str(error)
    distributed.maybe_init_distributed_environment_and_model_parallel(1, 1)
    distributed.maybe_init_distributed_environment_and_model_parallel(1, 1)
    groups = distributed.get_world_group().all_gather_object(_groups())
    results = {
        "before": before,
        "too_early": too_early,
        "groups": groups,
        "gradients": {str(shape): _gradients(shape) for shape in ((1, 2), (2, 1))},
        "stale": {str(shape): _stale_weights(shape) for shape in ((1, 2), (2, 1))},
        "bf16": _bf16(),
        "frozen": _frozen(),
        "wrong_mesh": _wrong_mesh(),
    }
    distributed.cleanup_dist_env_and_memory()
    results["left"] = not torch.distributed.is_initialized()
    if os.environ["RANK"] == "0":
        Path(out).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # torch's own threads sometimes abort a process that ends the usual way
