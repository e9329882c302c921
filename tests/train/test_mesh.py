"""Fitting the configured mesh to the processes that started."""

from __future__ import annotations

import logging

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.config import DistributedConfig
from fastvideo.train.mesh import reconcile_mesh, reject_model_parallel, resolve_shard_dim


def _dims(mesh: DistributedConfig) -> tuple[int, int, int]:
    return mesh.num_gpus, mesh.hsdp_replicate_dim, mesh.hsdp_shard_dim


@pytest.mark.parametrize(
    ("replicate", "shard", "world", "expected"),
    [
        (1, 4, 1, (1, 1, 1)),
        (1, 4, 2, (2, 1, 2)),
        (8, 1, 4, (4, 1, 4)),
        (2, 1, 8, (8, 2, 4)),
        (8, 1, 3, (3, 1, 3)),
    ],
)
def test_mesh_adapts_to_the_world_size(
    replicate: int,
    shard: int,
    world: int,
    expected: tuple[int, int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Replicas are kept where they divide the world size, and one warning says what changed."""
    mesh = DistributedConfig(num_gpus=8, hsdp_replicate_dim=replicate, hsdp_shard_dim=shard)
    with caplog.at_level(logging.WARNING):
        reconcile_mesh(mesh, world)
    assert _dims(mesh) == expected
    assert len(caplog.records) == 1
    assert f"does not fit {world} process" in caplog.text
    assert len(caplog.messages[0]) <= 100


def test_fitting_mesh_is_kept_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said or changed where the product is right."""
    mesh = DistributedConfig(num_gpus=4, hsdp_replicate_dim=2, hsdp_shard_dim=2)
    with caplog.at_level(logging.WARNING):
        reconcile_mesh(mesh, 4, strict=True)
    assert (_dims(mesh), caplog.records) == ((4, 2, 2), [])


def test_strict_mesh_refuses() -> None:
    """Strictness turns the warning into an error that names both keys."""
    mesh = DistributedConfig(num_gpus=4, hsdp_replicate_dim=1, hsdp_shard_dim=4)
    with pytest.raises(
        ConfigError, match=r"hsdp_replicate_dim 1 x hsdp_shard_dim 4.*make 2 processes"
    ):
        reconcile_mesh(mesh, 2, strict=True)
    assert _dims(mesh) == (4, 1, 4)


@pytest.mark.parametrize(("replicate", "expected"), [(1, 8), (2, 4), (16, 1)])
def test_open_shard_dim_covers_the_gpus(replicate: int, expected: int) -> None:
    """-1 means all GPUs of one replica."""
    mesh = DistributedConfig(num_gpus=8, hsdp_replicate_dim=replicate, hsdp_shard_dim=-1)
    resolve_shard_dim(mesh)
    assert mesh.hsdp_shard_dim == expected


def test_shard_dim_zero_is_refused() -> None:
    """Nothing can be sharded over no rank."""
    with pytest.raises(ConfigError, match=r"hsdp_shard_dim: expected .* got 0"):
        resolve_shard_dim(DistributedConfig(hsdp_shard_dim=0))


@pytest.mark.parametrize("key", ["sp_size", "tp_size"])
def test_model_parallelism_is_refused_by_name(key: str) -> None:
    """A size above 1 is one error that names the key and the way out."""
    with pytest.raises(ConfigError, match=f"training.distributed.{key}: .*Set --training"):
        reject_model_parallel(DistributedConfig(**{key: 2}))
    reject_model_parallel(DistributedConfig())
