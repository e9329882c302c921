"""Accumulation and compiled blocks on two ranks: equal numbers, fewer collectives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SCRIPT = Path(__file__).parent / "scaled_ranks.py"
UNITS = 3  # two blocks and the rest of the tiny transformer
STEPS, ROUNDS = 2, 3


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two gloo ranks measured."""
    folder = tmp_path_factory.mktemp("scaled")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc_per_node=2", str(SCRIPT), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


@pytest.mark.parametrize("run", ["finetune (1, 2)", "finetune (2, 1)", "dmd2 (1, 2)"])
def test_reducing_once_changes_no_number(measured: dict[str, Any], run: str) -> None:
    """Weights after two steps of three rounds are those of reducing in every round."""
    assert measured["accumulation"][run]["difference"] == pytest.approx([0, 0], abs=1e-5)


def test_shards_are_reduced_once_a_step(measured: dict[str, Any]) -> None:
    """Instead of once a round; or in every round, for less memory, if one says so."""
    found = measured["accumulation"]["finetune (1, 2)"]
    assert found["once"] == {"reduce_scatter": UNITS * STEPS}
    assert found["every"] == found["always"] == {"reduce_scatter": UNITS * STEPS * ROUNDS}


def test_roles_are_reduced_in_the_last_round_they_learn_in(measured: dict[str, Any]) -> None:
    """DMD2 updates the critic in both steps and the student in one."""
    found = measured["accumulation"]["dmd2 (1, 2)"]
    assert found["once"] == {"reduce_scatter": UNITS * (STEPS + 1)}
    assert found["always"] == {"reduce_scatter": UNITS * (STEPS + 1) * ROUNDS}


def test_replicas_exchange_gradients_once_a_step(measured: dict[str, Any]) -> None:
    """Also when shards are reduced in every round."""
    found = measured["accumulation"]["finetune (2, 1)"]
    assert found["once"] == found["every"] == {"all_reduce": UNITS * STEPS}
    assert found["always"] == {"all_reduce": UNITS * STEPS * ROUNDS}


def test_compiled_blocks_on_two_ranks(measured: dict[str, Any]) -> None:
    """Sharded and recomputed: the same weights, regions and collectives, without graph breaks."""
    compiled = measured["compilation"]
    assert compiled["difference"] == pytest.approx(0, abs=1e-5)
    assert compiled["same_regions"]
    assert compiled["same_collectives"]
    assert compiled["forwards"] == STEPS * ROUNDS
