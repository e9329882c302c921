"""One rank and two: the same losses at the same global batch, and sharding that changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

MESHES = [(1, 2), (2, 1)]


@pytest.fixture(scope="module")
def data(tiny_runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set for the tiny model."""
    written: Path = tiny_runs.write_dataset(tmp_path_factory.mktemp("data"))
    return written


@pytest.fixture(scope="module")
def on_two_ranks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `tiny_runs` measured on two gloo ranks."""
    folder = tmp_path_factory.mktemp("two_ranks")
    script = Path(__file__).parent / "tiny_runs.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc_per_node=2", str(script), str(data), str(folder / "out.json")]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return results


@pytest.fixture(scope="module")
def alone(tiny_runs: ModuleType, data: Path) -> dict[str, Any]:
    """The same steps in this process, which plays the ranks one after the other."""
    return {name: tiny_runs.train_alone(name, data) for name in tiny_runs.COMPARED}


@pytest.fixture(scope="module")
def rewards_alone(tiny_runs: ModuleType, data: Path) -> list[dict[str, Any]]:
    """Steps of DiffusionNFT in this process, on the batches of both ranks."""
    steps: list[dict[str, Any]] = tiny_runs.reward_steps(data)
    return steps


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", ["finetune", "dmd2", "kd"])
def test_losses_on_two_ranks_equal_those_on_one(
    on_two_ranks: dict[str, Any], alone: dict[str, Any], name: str, mesh: tuple[int, int]
) -> None:
    """Every loss of every step and rank, with weights that have been updated in between."""
    together = on_two_ranks[f"{name} {mesh}"]
    assert len(together) == len(alone[name]) == 4
    for step_together, step_alone in zip(together, alone[name], strict=True):
        for losses, expected in zip(step_together, step_alone, strict=True):
            assert losses == pytest.approx(expected, rel=1e-4)


def test_the_ranks_see_different_samples_and_noise(alone: dict[str, Any]) -> None:
    """Otherwise the equality above would be empty."""
    for history in alone.values():
        assert history[0][0]["total_loss"] != pytest.approx(history[0][1]["total_loss"], rel=1e-3)


@pytest.mark.parametrize("name", ["finetune", "dmd2", "kd"])
def test_a_second_run_with_the_same_seed_is_identical(
    tiny_runs: ModuleType, alone: dict[str, Any], data: Path, name: str
) -> None:
    """Every loss agrees in every bit."""
    assert tiny_runs.train_alone(name, data) == alone[name]


@pytest.mark.parametrize("mesh", MESHES)
def test_trajectories_of_two_ranks_equal_those_of_one(
    tiny_runs: ModuleType,
    on_two_ranks: dict[str, Any],
    alone: dict[str, Any],
    data: Path,
    mesh: tuple[int, int],
) -> None:
    """The ranks share the rows, with a sharded teacher too; stored values agree to rounding."""
    assert on_two_ranks
    assert alone
    for row in range(8):
        name = Path("trajectories", "samples", f"{row:08d}.pt")
        one = torch.load(data / name, weights_only=True)
        two = torch.load(Path(tiny_runs.output_dir(data, mesh)) / name, weights_only=True)
        assert one.keys() == two.keys()
        assert one["caption"] == two["caption"] == f"caption {row}"
        for key in ("trajectory_latents", "trajectory_timesteps", "real", "text_embedding"):
            torch.testing.assert_close(two[key], one[key], rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("mesh", MESHES)
def test_rewards_and_updates_on_two_ranks_equal_those_on_one(
    on_two_ranks: dict[str, Any], rewards_alone: list[dict[str, Any]], mesh: tuple[int, int]
) -> None:
    """One rank with twice the batch: the same rewards, advantages, gradients and updates."""
    together = on_two_ranks[f"nft {mesh}"]
    assert len(together) == len(rewards_alone) == 3
    for step_together, step_alone in zip(together, rewards_alone, strict=True):
        assert step_together["metrics"] == pytest.approx(step_alone["metrics"], rel=1e-3)
        first, second = step_together["losses"]
        mean = {name: (loss + second[name]) / 2 for name, loss in first.items()}
        assert mean == pytest.approx(step_alone["losses"][0], rel=1e-3, abs=1e-7)
        assert first["policy_loss"] != pytest.approx(second["policy_loss"], rel=1e-3)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("kind", [None, "full", "ops", "block_skip"])
def test_sharding_changes_neither_velocity_nor_gradients(
    on_two_ranks: dict[str, Any], mesh: tuple[int, int], kind: str | None
) -> None:
    """On both meshes and with every kind of gradient checkpointing; names stay as they were."""
    result = on_two_ranks[f"fp32 {mesh} {kind}"]
    assert result["same_names"]
    assert result["dtypes"] == ["torch.float32"]
    assert result["velocity"] < 1e-5
    assert result["gradient"] < 1e-5


@pytest.mark.parametrize("mesh", MESHES)
def test_computing_in_bf16_keeps_float32_gradients(
    on_two_ranks: dict[str, Any], mesh: tuple[int, int]
) -> None:
    """Gathered weights are bf16, gradients are reduced in float32 and differ by rounding only."""
    result = on_two_ranks[f"bf16 {mesh} full"]
    assert result["dtypes"] == ["torch.float32"]
    assert 0 < result["velocity"] < 0.1
    assert 0 < result["gradient"] < 0.05


def test_frozen_roles_are_sharded_too(on_two_ranks: dict[str, Any]) -> None:
    """A teacher's memory is shared by the ranks, and its predictions are those of the whole."""
    result = on_two_ranks["frozen"]
    assert result["sharded"]
    assert not result["training"]
    assert result["velocity"] < 1e-5
