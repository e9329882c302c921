"""All random numbers go on where they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from fastvideo.train.checkpoint.plain import from_plain, to_plain
from fastvideo.train.checkpoint.rng import random_state, reseed_new_rank, restore_random_state


def _draw(generator: torch.Generator) -> list[float]:
    return [
        torch.rand(()).item(),
        random.random(),
        float(np.random.random()),  # noqa: NPY002
        torch.rand((), generator=generator).item(),
    ]


@pytest.mark.usefixtures("_same_random_state_after")
def test_every_generator_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through a file's plain values, and without a generator of the method."""
    generator = torch.Generator().manual_seed(1)
    state = from_plain(to_plain(random_state(generator), where="rng"))
    drawn = _draw(generator)
    assert _draw(generator) != drawn
    restore_random_state(state, generator)
    assert _draw(generator) == drawn
    restore_random_state(random_state(None), generator)


def test_another_device_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Random numbers of one kind of device cannot go on with those of another."""
    caplog.set_level("WARNING", "fastvideo")
    generator = torch.Generator().manual_seed(1)
    state = random_state(generator) | {"method_generator_device": "cuda"}
    before = generator.get_state()
    restore_random_state(state, generator)
    assert "that ran on cuda, this one runs on cpu" in caplog.text
    assert torch.equal(generator.get_state(), before)


def test_new_ranks_draw_numbers_that_nobody_has_had() -> None:
    """They depend on seed, rank and step."""
    drawn = set()
    for seed, rank, step in [(0, 1, 2), (0, 2, 2), (0, 1, 4), (1, 1, 2)]:
        generator = torch.Generator()
        reseed_new_rank(generator, seed=seed, rank=rank, step=step)
        drawn.add(torch.rand((), generator=generator).item())
    assert len(drawn) == 4
    reseed_new_rank(None, seed=0, rank=1, step=2)


@pytest.fixture
def _same_random_state_after() -> object:
    state = random_state(None)
    yield
    restore_random_state(state, None)
