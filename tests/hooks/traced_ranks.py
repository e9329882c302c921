"""What two gloo ranks trace: the tiny Wan model sharded, right and with one layer wrong.

A script; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set by who starts it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from fastvideo.dataset.encoders import load_transformer
from fastvideo.dataset.model_files import resolve_model_path
from fastvideo.distributed import (
    cleanup_dist_env_and_memory,
    get_world_rank,
    maybe_init_distributed_environment_and_model_parallel,
    mixed_precision_policy,
    shard_model,
)
from fastvideo.distributed.sharding import get_fsdp_mesh
from fastvideo.hooks import attach_activation_trace, detach_activation_trace, trace_step
from fastvideo.train.models.gradient_checkpointing import apply_gradient_checkpointing

WRONG = "blocks.1.ffn.net.2"
RUNS = ("right", "wrong", "checkpointed")


def train(run: str) -> None:
    """Two forwards and backwards, each rank with an input of its own."""
    model = load_transformer(resolve_model_path("tiny-random:wan2.1"), dtype=torch.float32)
    if run == "wrong":
        model.get_submodule(WRONG).bias.data += 0.01
    if run == "checkpointed":
        apply_gradient_checkpointing(model, "full")
    shard_model(model, get_fsdp_mesh(1, 2), mixed_precision_policy(torch.float32))
    trace = attach_activation_trace(model, role="student")
    draws = torch.Generator().manual_seed(get_world_rank())
    for step in (1, 2):
        with trace_step(step):
            latents = torch.randn((1, 16, 1, 4, 4), generator=draws)
            text = torch.randn((1, 4, 32), generator=draws)
            model(latents, torch.tensor([500.0]), text, return_dict=False)[0].sum().backward()
    detach_activation_trace(trace)


def main(folder: Path) -> None:
    """Traces every run into a file for each rank."""
    maybe_init_distributed_environment_and_model_parallel(1, 1)
    os.environ["FASTVIDEO_TRACE_ACTIVATIONS"] = "1"
    for run in RUNS:
        os.environ["FASTVIDEO_TRACE_OUTPUT"] = str(folder / f"{run}_<rank>.jsonl")
        train(run)
    cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
