"""Two ranks, sharded and replicated, go on bit by bit, also with what one rank has saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.train.checkpoint.manager import CheckpointConfig

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SAVE = CheckpointConfig(save_steps=3)


@pytest.fixture(scope="module")
def out(runs: ModuleType, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the two ranks, with what one rank has saved for them."""
    folder = tmp_path_factory.mktemp("two_ranks")
    runs.Run("finetune", data, folder / "one", ema=True, save=SAVE).train(3)
    return folder


@pytest.fixture(scope="module")
def ranks(data: Path, out: Path) -> list[dict[str, Any]]:
    """What the two ranks found."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = Path(__file__).parent / "checkpoint_runs.py"
    done = subprocess.run(
        [*launcher, "--nproc_per_node=2", str(script), str(data), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[dict[str, Any]] = json.loads((out / "results.json").read_text())
    return results


@pytest.mark.parametrize("scenario", ["finetune", "dmd2", "kd", "nft", "replicas"])
def test_three_and_three_steps_are_six(ranks: list[dict[str, Any]], scenario: str) -> None:
    """Losses of both ranks, weights, optimizers and averages; the ranks see different losses."""
    for rank in ranks:
        result = rank[scenario]
        assert result["sharded"]
        assert (result["steps"], result["scalars"], result["tensors"]) == ([4, 5, 6], [], [])
        own = ["ema"] if scenario == "nft" else []  # beside that of the callback
        assert result["averages"] == ["callbacks", *own]
    first, second = (rank[scenario]["whole"] for rank in ranks)
    assert all(a["total_loss"] != b["total_loss"] for a, b in zip(first, second, strict=True))


def test_two_ranks_go_on_with_what_one_has_saved(ranks: list[dict[str, Any]]) -> None:
    """Three rows were taken, so the ranks take two a step from the second on."""
    for rank in ranks:
        assert rank["grown"]["steps"] == [4, 5, 6]
        assert rank["grown"]["position"] == {"epoch": 0, "position": 1 + 3}


def test_one_rank_goes_on_with_what_two_have_saved(
    runs: ModuleType,
    data: Path,
    out: Path,
    ranks: list[dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The weights are those of both; the place in the data is the third of four steps by two."""
    assert ranks
    caplog.set_level("WARNING", "fastvideo")
    run = runs.Run("finetune", data, out / "replicas" / "parts", ema=True)
    run.train(7, resume=str(out / "replicas" / "parts" / "checkpoint-6"))
    assert list(run.recorder.steps) == [7]
    assert "was saved by 2 ranks, and this run has 1" in caplog.text
    state = run.method.student.dataloader.state_dict()["_sampler_iter_state"]
    assert state == {"epoch": 1, "position": 5}


def test_a_damaged_file_is_named_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    """One rank finds it, and all of them end with the same words."""
    for rank in ranks:
        for name in ("dcp/__1_0.distcp", "rng_state_rank1.pt"):
            assert f"checkpoint-6/{name} is damaged: " in rank[name]


def test_weights_that_are_not_finite_on_another_rank_are_known(ranks: list[dict[str, Any]]) -> None:
    """The first rank writes the names, and has seen none of these."""
    for rank in ranks:
        assert rank["nonfinite"] == ["roles.student.transformer.proj_out.weight"]


def test_a_place_that_cannot_be_written_to_is_said_before_the_first_step(
    ranks: list[dict[str, Any]],
) -> None:
    """On every rank, so that none waits for the first."""
    for rank in ranks:
        assert rank["unwritable"].startswith(
            "training.checkpoint.output_dir: cannot write to /proc/none: "
        )


def test_refusals_are_those_of_every_rank(ranks: list[dict[str, Any]]) -> None:
    """Rank 0 alone reads whose a checkpoint is, and holds the lock."""
    for rank in ranks:
        assert (
            "checkpoint-6 does not fit this run: it was saved by FineTune" in rank["other_method"]
        )
        assert "parts is in use by another run (run other, process " in rank["in_use"]
