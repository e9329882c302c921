"""Ranks, devices and the process group of a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastvideo import distributed
from fastvideo.errors import ConfigError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_single_process_needs_no_launcher() -> None:
    """It is rank 0 of 1 before and after initialisation, and joins no process group."""
    for _ in range(2):
        assert distributed.get_world_rank() == distributed.get_local_rank() == 0
        assert distributed.get_world_size() == 1
        group = distributed.get_world_group()
        assert (group.rank, group.world_size, group.process_group) == (0, 1, None)
        distributed.maybe_init_distributed_environment_and_model_parallel(1, 1)
    assert not torch.distributed.is_initialized()
    distributed.cleanup_dist_env_and_memory()


def test_the_device_without_cuda_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never another accelerator that happens to be there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert distributed.get_local_torch_device() == torch.device("cpu")


def test_the_device_with_cuda_follows_the_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 of a node uses its second device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert distributed.get_local_torch_device() == torch.device("cuda", 1)


@pytest.mark.parametrize("name", ["tp_size", "sp_size"])
def test_model_parallelism_is_refused(name: str) -> None:
    """The message names the key and what to set it to."""
    message = rf"training\.distributed\.{name} is 2.*not offered yet.*{name} to 1"
    with pytest.raises(ConfigError, match=message):
        distributed.maybe_init_distributed_environment_and_model_parallel(**{name: 2})


def test_half_a_launcher_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several ranks need an address to meet at."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"RANK, MASTER_ADDR, MASTER_PORT is not set.*torchrun"):
        distributed.maybe_init_distributed_environment_and_model_parallel(1, 1)


def test_a_rank_that_is_no_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable."""
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="RANK='first' must be an integer"):
        distributed.get_world_rank()


@pytest.mark.distributed
def test_ranks_are_known_before_and_after_joining(two_ranks: dict[str, Any]) -> None:
    """From the launcher's variables first, from the process group then."""
    assert two_ranks["before"] == [0, 2]
    assert "not initialised" in two_ranks["too_early"]
    for rank, seen in enumerate(two_ranks["groups"]):
        assert seen["rank"] == seen["local_rank"] == rank
        assert seen["world_size"] == 2
        assert seen["dp"] == [rank, 2]
        assert seen["sp"] == seen["tp"] == [0, 1]
    assert two_ranks["left"]
