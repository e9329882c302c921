"""An error in one layer of the tiny Wan model is found: eager, checkpointed, on two ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fastvideo.analysis import ActivationDiff, ActivationFile, Tolerances, diff_activations
from fastvideo.dataset.encoders import load_transformer
from fastvideo.dataset.model_files import resolve_model_path
from fastvideo.hooks import trace_step
from fastvideo.train.models.gradient_checkpointing import apply_gradient_checkpointing

WRONG = "blocks.1.attn2.to_v"
WRONG_ON_RANKS = "blocks.1.ffn.net.2"


def _model(*, wrong: bool = False, checkpointing: str | None = None) -> Any:
    model = load_transformer(resolve_model_path("tiny-random:wan2.1"), dtype=torch.float32)
    if wrong:
        model.get_submodule(WRONG).weight.data *= 1.01
    apply_gradient_checkpointing(model, checkpointing)
    return model.train()


def _train(model: Any) -> None:
    """Two forwards and backwards in steps."""
    draws = torch.Generator().manual_seed(0)
    for step in (1, 2):
        with trace_step(step):
            latents = torch.randn((1, 16, 1, 4, 4), generator=draws)
            text = torch.randn((1, 4, 32), generator=draws)
            model(latents, torch.tensor([500.0]), text, return_dict=False)[0].sum().backward()


@pytest.mark.parametrize("checkpointing", [None, "full", "ops", "block_skip"])
def test_the_wrong_layer_is_the_first_difference(tracer: Any, checkpointing: str | None) -> None:
    """Whether or not the wrong model recomputes; a right one is the same as one that does not."""
    for name, wrong in (("right", False), ("wrong", True)):
        model = _model(wrong=wrong, checkpointing=checkpointing)
        tracer.trace(f"{name}.jsonl", model, lambda model=model: _train(model))
    plain = _model()
    tracer.trace("plain.jsonl", plain, lambda: _train(plain))
    assert tracer.diff("plain.jsonl", "right.jsonl").same
    result = tracer.diff("plain.jsonl", "wrong.jsonl")
    assert result.first is not None
    assert (result.first.key.step.number, result.first.key.module) == (1, WRONG)
    assert (result.first.kind, result.first.key.call) == ("value", 0)
    differing = [module for _, module, _ in result.layers]
    assert "blocks.0" not in differing
    assert "blocks.1" in differing


@pytest.mark.parametrize("checkpointing", ["full", "ops"])
def test_recomputation_is_marked_and_repeats_the_forward(tracer: Any, checkpointing: str) -> None:
    """What the backward pass does again has the mark, the step, and the same numbers."""
    model = _model(checkpointing=checkpointing)
    tracer.trace("t.jsonl", model, lambda: _train(model))
    records = tracer.records("t.jsonl")
    again = [record for record in records if record.get("recompute")]
    first = {
        (record["step"], record["module"], record["tensor"], record["call"]): record["sum"]
        for record in records
        if not record.get("recompute")
    }
    assert {record["module"].split(".")[0] for record in again} == {"blocks"}
    assert {record["step"] for record in again} == {1, 2}
    for record in again:
        key = (record["step"], record["module"], record["tensor"], record["call"])
        assert record["sum"] == first[key]


def test_gradients_under_checkpointing_are_untouched(tracer: Any) -> None:
    """Selective checkpointing counts operators; those of tracing are not among them."""
    gradients = []
    for traced in (False, True):
        model = _model(checkpointing="ops")
        if traced:
            tracer.attach("t.jsonl", model)
        _train(model)
        gradients.append([parameter.grad for parameter in model.parameters()])
    for before, after in zip(*gradients, strict=True):
        assert (before is None and after is None) or torch.equal(before, after)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what `traced_ranks.py` has traced on two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).parent / "traced_ranks.py"
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, script, folder],
            env={**os.environ, **place, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
        )
        for rank in "01"
    ]
    errors = [process.communicate(timeout=200)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    return folder


def _diff(folder: Path, a: str, b: str) -> ActivationDiff:
    files = ActivationFile(folder / f"{a}.jsonl"), ActivationFile(folder / f"{b}.jsonl")
    return diff_activations(*files, Tolerances.parse())


@pytest.mark.distributed
@pytest.mark.parametrize("rank", [0, 1])
def test_the_wrong_layer_is_found_on_every_rank(ranks: Path, rank: int) -> None:
    """With sharded weights; a run that recomputes is the same."""
    assert ActivationFile(ranks / f"right_{rank}.jsonl").header["rank"] == rank
    assert _diff(ranks, f"right_{rank}", f"checkpointed_{rank}").same
    first = _diff(ranks, f"right_{rank}", f"wrong_{rank}").first
    assert first is not None
    assert (first.key.module, first.key.step.number) == (WRONG_ON_RANKS, 1)


@pytest.mark.distributed
def test_ranks_see_inputs_of_their_own(ranks: Path) -> None:
    """Otherwise the comparison of a rank with itself would say nothing."""
    assert not _diff(ranks, "right_0", "right_1").same
