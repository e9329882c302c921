"""Callbacks on weights that two ranks share: the same numbers as on one rank."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

WORKER = textwrap.dedent(
    """
    import os, sys
    from types import SimpleNamespace
    import torch, torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from fastvideo.train.callbacks.ema import EMACallback
    from fastvideo.train.callbacks.grad_clip import clip_gradients

    shape, out = tuple(map(int, sys.argv[1].split("x"))), sys.argv[2]
    dist.init_process_group("gloo")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
            self.table = nn.Parameter(torch.randn(1, 3))  # dim 0 of 1: one shard is empty
        def forward(self, x):
            for block in self.blocks:
                x = block(x).tanh()
            return x * self.table

    def build(sharded):
        torch.manual_seed(0)
        net = Net()
        if sharded:
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
            for block in net.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(net, mesh=mesh)
        method = SimpleNamespace(student=SimpleNamespace(transformer=net))
        ema = EMACallback(decay=0.5)
        ema.on_train_start(method)
        return net, method, ema, torch.optim.SGD(net.parameters(), lr=0.1)

    def step(net, method, ema, optimizer, number, data):
        loss = net(data).square().mean() * 100
        loss.backward()
        norm = clip_gradients(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ema.on_training_step_end(method, {}, number)
        return norm

    def whole(tensor):
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    data = torch.arange(12.0).reshape(4, 3) / 10
    own = data[dist.get_rank() :: 2]
    reference, sharded = build(False), build(True)
    for number in (1, 2, 3):
        expected = step(*reference, number, data)
        norm = step(*sharded, number, own)
        torch.testing.assert_close(norm, expected)
    for (name, p), (_, q) in zip(reference[0].named_parameters(), sharded[0].named_parameters()):
        torch.testing.assert_close(whole(q), p, msg=name)
    for name, p in reference[2].student_ema.shadow.items():
        q = sharded[2].student_ema.shadow[name]
        assert isinstance(q, DTensor) and q.dtype == torch.float32, name
        assert q.placements == dict(sharded[0].named_parameters())[name].placements, name
        torch.testing.assert_close(whole(q), p, msg=name)

    # The average takes part in forwards, and the weights come back bit for bit.
    net, _, ema, _ = sharded
    before = [whole(p).clone() for p in net.parameters()]
    with torch.no_grad():
        net(data)  # leaves the gathered weights of the root in place
    with torch.no_grad(), ema.ema_context(net):
        averaged = net(data)
    with torch.no_grad(), reference[2].ema_context(reference[0]):
        torch.testing.assert_close(averaged, reference[0](data))
    assert all(torch.equal(whole(p), b) for p, b in zip(net.parameters(), before))
    with torch.no_grad():
        torch.testing.assert_close(net(data), reference[0](data))

    # A distributed checkpoint keeps every rank's shard.
    dcp.save({"ema": ema.state_dict()}, checkpoint_id=out)
    fresh = build(True)
    target = fresh[2].state_dict()
    dcp.load({"ema": target}, checkpoint_id=out)
    fresh[2].load_state_dict(target)
    assert fresh[2]._ema_started
    for name, p in ema.student_ema.shadow.items():
        assert torch.equal(whole(fresh[2].student_ema.shadow[name]), whole(p)), name

    # Whole tensors, such as an export from one rank, are dealt out.
    alone = {"student_ema": dict(reference[2].student_ema.shadow), "ema_started": True}
    fresh[2].load_state_dict(alone)
    for name, p in alone["student_ema"].items():
        assert torch.equal(whole(fresh[2].student_ema.shadow[name]), p), name
    dist.destroy_process_group()
    os._exit(0)  # torch's own threads sometimes abort a process that ends the usual way
    """
)


@pytest.mark.distributed
@pytest.mark.parametrize("mesh", ["1x2", "2x1"])
def test_clipping_and_averaging_shards_equals_one_rank(tmp_path: Path, mesh: str) -> None:
    """Norms, weights and averages agree with one rank, and a checkpoint restores every shard."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--master_addr=127.0.0.1", f"--master_port={port}", str(script)]
    command += [mesh, str(tmp_path / "checkpoint")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
