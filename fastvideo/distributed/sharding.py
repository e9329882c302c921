"""Weights sharded over a device mesh with FSDP2."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from fastvideo.distributed.environment import cached_mesh, get_world_size
from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


def get_fsdp_mesh(replicate: int, shard: int) -> DeviceMesh:
    """Returns the mesh ``("replicate", "shard")`` over all ranks; the same object every time.

    Args:
        replicate: Copies of the weights, ``training.distributed.hsdp_replicate_dim``.
        shard: Ranks that one copy is split over, ``training.distributed.hsdp_shard_dim``.

    Raises:
        ConfigError: The sizes do not multiply to the number of ranks.
    """
    if replicate < 1 or shard < 1 or replicate * shard != get_world_size():
        message = (
            f"training.distributed.hsdp_replicate_dim ({replicate}) times hsdp_shard_dim "
            f"({shard}) must be the number of ranks, {get_world_size()}; set hsdp_replicate_dim "
            f"to 1 and hsdp_shard_dim to {get_world_size()}"
        )
        raise ConfigError(message)
    return cached_mesh(replicate, shard)


def mixed_precision_policy(compute_dtype: torch.dtype) -> MixedPrecisionPolicy:
    """Returns the policy for computing in ``compute_dtype`` while gradients are reduced in float32.

    Inputs are left alone: latents and timesteps stay float32 and autocast decides per operator.
    """
    return MixedPrecisionPolicy(
        param_dtype=None if compute_dtype == torch.float32 else compute_dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )


def shard_model(model: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> nn.Module:
    """Shards ``model`` in place: each of ``model.blocks`` as one unit, then the rest.

    The rest is gathered anew in every forward too, unlike FSDP's default for a root module. A
    rollout runs many forwards without a backward, and weights that stay gathered after one would
    be stale once an optimizer step or a swap of EMA weights has changed the shards.

    Args:
        model: A transformer; a module without ``blocks`` becomes one unit.
        mesh: Two dimensions: replicas, shards.
        policy: Data types of gathered weights and of gradient reduction.

    Returns:
        ``model`` itself.
    """
    # The transformer returns a view, which nobody here changes in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    return model


def forget_forwards(model: nn.Module) -> None:
    """Drops what FSDP remembers of forwards whose backward will never come.

    FSDP notes the order of units in every forward, for prefetching in the backward, which clears
    the notes. A frozen model has no backward, and its notes would grow with the length of the run.
    Call this between steps, not between a forward and its backward. Older versions of torch have no
    way to do it; nothing happens there, nor with a model that is not sharded.
    """
    reset = getattr(model, "reset_iter_state", None)
    if isinstance(model, FSDPModule) and reset is not None:
        reset()


def is_sharded(model: nn.Module) -> bool:
    """Tells whether :func:`shard_model` was applied to ``model``."""
    return isinstance(model, FSDPModule)
