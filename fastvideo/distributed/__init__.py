"""Ranks, devices, device meshes and sharded weights."""

from __future__ import annotations

from fastvideo.distributed.environment import (
    cleanup_dist_env_and_memory,
    get_dp_group,
    get_dp_rank,
    get_dp_world_size,
    get_local_rank,
    get_local_torch_device,
    get_sp_group,
    get_sp_rank,
    get_sp_world_size,
    get_tp_group,
    get_tp_rank,
    get_tp_world_size,
    get_world_group,
    get_world_rank,
    get_world_size,
    maybe_init_distributed_environment_and_model_parallel,
)
from fastvideo.distributed.gradient_reduction import GradientReduction
from fastvideo.distributed.groups import RankGroup
from fastvideo.distributed.sharding import (
    forget_forwards,
    get_fsdp_mesh,
    is_sharded,
    mixed_precision_policy,
    shard_model,
)

__all__ = [
    "GradientReduction",
    "RankGroup",
    "cleanup_dist_env_and_memory",
    "forget_forwards",
    "get_dp_group",
    "get_dp_rank",
    "get_dp_world_size",
    "get_fsdp_mesh",
    "get_local_rank",
    "get_local_torch_device",
    "get_sp_group",
    "get_sp_rank",
    "get_sp_world_size",
    "get_tp_group",
    "get_tp_rank",
    "get_tp_world_size",
    "get_world_group",
    "get_world_rank",
    "get_world_size",
    "is_sharded",
    "maybe_init_distributed_environment_and_model_parallel",
    "mixed_precision_policy",
    "shard_model",
]
