"""Six steps are three and three more, bit by bit: losses, weights, optimizers and averages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastvideo.train.checkpoint.manager import CheckpointConfig

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

SAVE = CheckpointConfig(save_steps=3)


@pytest.mark.parametrize(
    ("name", "workers", "async_save"),
    [
        ("finetune", 0, False),
        ("finetune", 2, True),
        ("dmd2", 2, False),
        ("kd", 0, False),
        ("nft", 0, True),
    ],
)
def test_three_and_three_steps_are_six(
    runs: ModuleType, data: Path, tmp_path: Path, name: str, workers: int, *, async_save: bool
) -> None:
    """With EMA, in the middle of an epoch; saving changes nothing either."""
    options = {"workers": workers, "ema": True}
    whole = runs.Run(name, data, tmp_path / "whole", **options).train(6)
    save = CheckpointConfig(save_steps=3, async_save=async_save)
    runs.Run(name, data, tmp_path / "parts", save=save, **options).train(3)
    second = runs.Run(name, data, tmp_path / "parts", save=save, **options)
    second.train(6, resume="latest")
    assert list(second.recorder.steps) == [4, 5, 6]
    assert second.recorder.steps == {s: whole.recorder.steps[s] for s in (4, 5, 6)}
    assert runs.differing(whole.tensors(), second.tensors()) == []
    assert len({step["total_loss"] for step in whole.recorder.steps.values()}) == 6
