"""Sharded weights on two ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from fastvideo.distributed import mixed_precision_policy

pytestmark = pytest.mark.distributed

MESHES = ["(1, 2)", "(2, 1)"]


@pytest.mark.parametrize("mesh", MESHES)
def test_gradients_are_those_of_the_mean_loss(two_ranks: dict[str, Any], mesh: str) -> None:
    """Each rank has another input; blocks and the rest are sharded in place."""
    seen = two_ranks["gradients"][mesh]
    assert seen["gradient"] < 1e-6
    assert seen["same_object"]
    assert seen["sharded"] == [True, False]
    assert seen["blocks_sharded"]
    assert seen["local_rows"] == (2 if mesh == "(1, 2)" else 4)


@pytest.mark.parametrize("mesh", MESHES)
def test_a_mesh_is_made_once(two_ranks: dict[str, Any], mesh: str) -> None:
    """All roles of a run share its communicators."""
    assert two_ranks["gradients"][mesh]["same_mesh"]
    assert two_ranks["gradients"][mesh]["mesh_names"] == ["replicate", "shard"]


@pytest.mark.parametrize("mesh", MESHES)
def test_a_forward_without_backward_leaves_nothing_stale(
    two_ranks: dict[str, Any], mesh: str
) -> None:
    """Shards that change between two rollouts (a step, EMA weights) count in the second."""
    assert two_ranks["stale"][mesh] < 1e-5


def test_a_frozen_model_does_not_remember_every_forward(two_ranks: dict[str, Any]) -> None:
    """Three units noted per forward are forgotten, and the next forward is the same."""
    if not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("this version of torch cannot forget")
    assert two_ranks["frozen"] == {"remembered": 15, "forgotten": 0, "equal": True}


def test_a_half_precision_policy(two_ranks: dict[str, Any]) -> None:
    """Weights are kept and gradients reduced in float32; weights are gathered in bf16."""
    assert two_ranks["bf16"] == {
        "input": "torch.float32",
        "gathered": "torch.bfloat16",
        "weights": "torch.float32",
        "gradient": "torch.float32",
    }
    assert mixed_precision_policy(torch.float32).param_dtype is None


def test_sizes_that_do_not_fit_the_ranks_are_refused(two_ranks: dict[str, Any]) -> None:
    """The message names both keys and the number of ranks."""
    message = two_ranks["wrong_mesh"]
    assert "hsdp_replicate_dim (2) times hsdp_shard_dim (2)" in message
    assert "number of ranks, 2" in message
