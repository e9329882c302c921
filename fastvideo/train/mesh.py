"""Making the mesh of the run file fit the number of processes that really started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo.errors import ConfigError, counted
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from fastvideo.train.config import DistributedConfig

logger = init_logger(__name__)


def resolve_shard_dim(distributed: DistributedConfig) -> None:
    """Replaces a shard dimension that was left open by one that covers the configured GPUs.

    Args:
        distributed: The section; its `hsdp_shard_dim` is changed in place.

    Raises:
        ConfigError: The shard dimension is 0.
    """
    if distributed.hsdp_shard_dim == 0:
        message = (
            "training.distributed.hsdp_shard_dim: expected a whole number of at least 1, "
            "or -1 for all GPUs, got 0 (int)."
        )
        raise ConfigError(message)
    if distributed.hsdp_shard_dim < 0:
        distributed.hsdp_shard_dim = max(1, distributed.num_gpus // distributed.hsdp_replicate_dim)


def reject_model_parallel(distributed: DistributedConfig) -> None:
    """Refuses tensor and sequence parallelism, which are not offered.

    Raises:
        ConfigError: `tp_size` or `sp_size` is above 1; the message names the key.
    """
    for key, kind in (("tp_size", "tensor"), ("sp_size", "sequence")):
        size = getattr(distributed, key)
        if size > 1:
            message = (
                f"training.distributed.{key}: {kind} parallelism is not offered yet, got {size}. "
                f"Set --training.distributed.{key} 1"
            )
            raise ConfigError(message)


def reconcile_mesh(
    distributed: DistributedConfig,
    world_size: int,
    *,
    strict: bool = False,
) -> None:
    """Makes `replicate * shard` equal the world size, which the launcher decides.

    The number of replicas is kept where it divides the world size and becomes 1 otherwise; the
    shard dimension takes the rest. A change is one warning.

    Args:
        distributed: The section; changed in place.
        world_size: Processes in the run.
        strict: Raise instead of adapting (`FASTVIDEO_STRICT_MESH=1`).

    Raises:
        ConfigError: `strict`, and the mesh does not fit.
    """
    replicate, shard = distributed.hsdp_replicate_dim, distributed.hsdp_shard_dim
    if replicate * shard != world_size:
        if strict:
            message = (
                f"training.distributed: hsdp_replicate_dim {replicate} x hsdp_shard_dim {shard} "
                f"does not make {counted(world_size, 'process')}, which is what was started. Start "
                f"{replicate * shard} processes, change the two keys, or unset "
                f"FASTVIDEO_STRICT_MESH to let the mesh adapt"
            )
            raise ConfigError(message)
        distributed.hsdp_replicate_dim = replicate if world_size % replicate == 0 else 1
        distributed.hsdp_shard_dim = world_size // distributed.hsdp_replicate_dim
        logger.warning(
            "training.distributed: a mesh of %d x %d does not fit %s; using %d x %d",
            *(replicate, shard, counted(world_size, "process")),
            *(distributed.hsdp_replicate_dim, distributed.hsdp_shard_dim),
        )
    distributed.num_gpus = world_size
