"""The real trainer on two ranks, killed and told to end: what comes after is as if nothing was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.distributed import RankGroup
from fastvideo.train.checkpoint import storage

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))


@pytest.fixture(scope="module")
def folder(runs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set, in which everything has happened."""
    made: Path = tmp_path_factory.mktemp("preempted")
    runs.tiny_runs.write_dataset(made / "data")
    script = Path(__file__).parent / "preempted_runs.py"
    done = subprocess.run(
        [sys.executable, str(script), str(made), str(ROUNDS)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400 + 60 * ROUNDS,
        check=False,
    )
    logs = "".join(path.read_text()[-2000:] for path in made.glob("*.log"))
    assert done.returncode == 0, done.stderr[-4000:] + logs
    return made


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    """What the script found."""
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    assert found["whole"] == [0, 0]
    assert set(found["losses"]) == {str(step) for step in range(1, 13)}
    return found


def _saved(checkpoint: Path) -> dict[str, torch.Tensor]:
    index = storage.read_index(checkpoint / "dcp")
    tensors = {name: torch.empty(m.size) for name, m in index.state_dict_metadata.items()}
    storage.load_tensors(tensors, checkpoint / "dcp", RankGroup(0, 0, (0,)))
    return tensors


def _assert_undisturbed(results: dict[str, Any], losses: dict[str, list[float]]) -> None:
    for step, values in losses.items():
        assert values == results["losses"][step] * len(values)


def test_every_resume_after_a_kill_goes_on_with_the_same_losses(
    folder: Path, results: dict[str, Any]
) -> None:
    """However often and wherever it was killed; the end has the same weights, bit by bit."""
    kills = results["kills"]
    assert kills["killed"] == ROUNDS
    assert kills["last"] == [0, 0]
    for losses in kills["losses"].values():
        _assert_undisturbed(results, losses)
    last = list(kills["losses"])[-1]
    assert set(kills["losses"][last]) >= {"11", "12"}
    expected = _saved(folder / "whole" / "checkpoint-12")
    tensors = _saved(folder / last / "checkpoint-12")
    assert expected.keys() == tensors.keys()
    assert [n for n, t in tensors.items() if not torch.equal(t, expected[n])] == []


def test_nothing_unfinished_stays(results: dict[str, Any]) -> None:
    """What kills have left behind is removed, and three checkpoints are kept."""
    assert results["kills"]["left"] == [
        *("checkpoint-10", "checkpoint-12", "checkpoint-8"),
        "tracker",
    ]


@pytest.mark.parametrize("name", ["preempted", "async"])
def test_sigterm_saves_the_step_and_ends_all_ranks(results: dict[str, Any], name: str) -> None:
    """Both ranks stop after the same step, though only one was told; then the run goes on."""
    found = results[name]
    assert found["statuses"] == [143, 143]
    assert found["stopped"] in {3, 4, 5, 6}
    assert found["saved"][-1] == found["stopped"]
    assert found["again"] == [0, 0]
    assert set(found["losses"]) == set(results["losses"])
    assert all(len(values) == 1 for values in found["losses"].values())
    _assert_undisturbed(results, found["losses"])
