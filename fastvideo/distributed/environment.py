"""Which rank this process is, on which device, and the process group of the run.

The launcher's variables ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK`` are read when a function is
called. Without them a process is the only rank of its run and no process group is made.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fastvideo.distributed.groups import RankGroup
from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

logger = init_logger(__name__)


@dataclass(slots=True)
class _State:
    """What torch.distributed does not keep for us: the groups of the run and its meshes."""

    world: RankGroup | None = None
    owns_process_group: bool = False
    meshes: dict[tuple[int, int], DeviceMesh] = field(default_factory=dict)


_state = _State()


def _env_int(name: str, default: int) -> int:
    raw = os.environ.get(name, "")
    if raw == "":
        return default
    try:
        return int(raw)
    except ValueError as error:
        message = f"environment variable {name}={raw!r} must be an integer, as torchrun sets it"
        raise ConfigError(message) from error


def get_world_rank() -> int:
    """Returns the global rank: that of the process group, else ``RANK``, else 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return _env_int("RANK", 0)


def get_world_size() -> int:
    """Returns the number of ranks: that of the process group, else ``WORLD_SIZE``, else 1."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return _env_int("WORLD_SIZE", 1)


def get_local_rank() -> int:
    """Returns the rank on this node: ``LOCAL_RANK``, else 0."""
    return _env_int("LOCAL_RANK", 0)


def get_local_torch_device() -> torch.device:
    """Returns the device this rank trains on: its CUDA device if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", get_local_rank() % torch.cuda.device_count())
    return torch.device("cpu")


def maybe_init_distributed_environment_and_model_parallel(
    tp_size: int = 1, sp_size: int = 1
) -> None:
    """Joins the process group of the run, once; later calls do nothing.

    NCCL carries tensors on CUDA devices and gloo on CPUs. A single process joins nothing.

    Args:
        tp_size: Ranks that split one tensor. Only 1 is offered.
        sp_size: Ranks that split one sequence. Only 1 is offered.

    Raises:
        ConfigError: ``tp_size`` or ``sp_size`` is not 1, or the launcher's variables are wrong.
    """
    _refuse_model_parallel("tp_size", tp_size, "tensor")
    _refuse_model_parallel("sp_size", sp_size, "sequence")
    if _state.world is not None:
        return
    device = get_local_torch_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if get_world_size() > 1 and not dist.is_initialized():
        _join(device)
        _state.owns_process_group = True
    _state.world = _make_world_group(device)
    logger.info("rank %d of %d on %s", get_world_rank(), get_world_size(), device)


def _refuse_model_parallel(name: str, size: int, what: str) -> None:
    if size != 1:
        message = (
            f"training.distributed.{name} is {size}, but {what} parallelism is not offered yet; "
            f"set training.distributed.{name} to 1"
        )
        raise ConfigError(message)


def _join(device: torch.device) -> None:
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        message = (
            f"WORLD_SIZE is {get_world_size()}, but {', '.join(missing)} is not set; start with "
            "torchrun, which sets all of them, or unset WORLD_SIZE for a single process"
        )
        raise ConfigError(message)
    options: dict[str, Any] = _store_of_this_start()
    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device, **options)
    else:
        dist.init_process_group("gloo", **options)


def _store_of_this_start() -> dict[str, Any]:
    """Returns where ranks that torchrun has started again find each other.

    With fixed ranks, torchrun keeps one store for all starts of a machine's ranks, and torch writes
    the same keys in each: without names of their own, ranks would find the addresses of those that
    have died. Several machines count their starts differently, and get a new store each time.
    """
    restarts = _env_int("TORCHELASTIC_RESTART_COUNT", 0)
    if restarts == 0 or _env_int("GROUP_WORLD_SIZE", 1) > 1:
        return {}
    store, rank, world_size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    store = dist.PrefixStore(f"start_{restarts}", store)  # type: ignore[attr-defined]
    return {"store": store, "rank": rank, "world_size": world_size}


def _make_world_group(device: torch.device) -> RankGroup:
    joined = dist.is_available() and dist.is_initialized()
    return RankGroup(
        rank=get_world_rank(),
        local_rank=get_local_rank(),
        ranks=tuple(range(get_world_size())),
        device=device,
        process_group=dist.group.WORLD if joined and get_world_size() > 1 else None,
    )


def get_world_group() -> RankGroup:
    """Returns the group of all ranks; before initialisation, that of a single process.

    Raises:
        RuntimeError: The run has several ranks and they have not joined yet.
    """
    if _state.world is not None:
        return _state.world
    if get_world_size() > 1 and not dist.is_initialized():
        message = (
            f"WORLD_SIZE is {get_world_size()}, but the process group is not initialised; call "
            "maybe_init_distributed_environment_and_model_parallel(1, 1) first"
        )
        raise RuntimeError(message)
    return _make_world_group(get_local_torch_device())


def _lone_group() -> RankGroup:
    rank = get_world_rank()
    return RankGroup(rank, get_local_rank(), (rank,), get_local_torch_device())


def get_dp_group() -> RankGroup:
    """Returns the data-parallel group: all ranks, as nothing else is parallel yet."""
    return get_world_group()


def get_sp_group() -> RankGroup:
    """Returns the sequence-parallel group: this rank alone."""
    return _lone_group()


def get_tp_group() -> RankGroup:
    """Returns the tensor-parallel group: this rank alone."""
    return _lone_group()


def get_dp_rank() -> int:
    """Returns the position in the data-parallel group."""
    return get_dp_group().rank_in_group


def get_dp_world_size() -> int:
    """Returns the size of the data-parallel group."""
    return get_dp_group().world_size


def get_sp_rank() -> int:
    """Returns the position in the sequence-parallel group."""
    return get_sp_group().rank_in_group


def get_sp_world_size() -> int:
    """Returns the size of the sequence-parallel group."""
    return get_sp_group().world_size


def get_tp_rank() -> int:
    """Returns the position in the tensor-parallel group."""
    return get_tp_group().rank_in_group


def get_tp_world_size() -> int:
    """Returns the size of the tensor-parallel group."""
    return get_tp_group().world_size


def cached_mesh(replicate: int, shard: int) -> DeviceMesh:
    """Returns the ``("replicate", "shard")`` mesh of these sizes, made once per process group.

    Making a mesh makes communicators, so all roles of a run share one.
    """
    key = (replicate, shard)
    if key not in _state.meshes:
        _state.meshes[key] = init_device_mesh(
            get_local_torch_device().type, key, mesh_dim_names=("replicate", "shard")
        )
    return _state.meshes[key]


def cleanup_dist_env_and_memory() -> None:
    """Leaves the process group that this module joined and frees cached device memory."""
    _state.meshes.clear()
    _state.world = None
    if _state.owns_process_group and dist.is_initialized():
        dist.destroy_process_group()
    _state.owns_process_group = False
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
