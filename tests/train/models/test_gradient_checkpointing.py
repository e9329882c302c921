"""Recomputing activations: fewer are kept, and nothing else changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from fastvideo.dataset.encoders import load_transformer
from fastvideo.errors import ConfigError
from fastvideo.train.models.gradient_checkpointing import apply_gradient_checkpointing

if TYPE_CHECKING:
    from pathlib import Path


def _run(model_dir: Path, kind: str | None) -> tuple[dict[str, torch.Tensor], int, int]:
    """Returns gradients, the bytes that the forward kept, and the calls of all blocks."""
    transformer = load_transformer(model_dir)
    apply_gradient_checkpointing(transformer, kind)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    for block in transformer.blocks:
        block.ffn.register_forward_hook(count)
    kept = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    draws = torch.Generator().manual_seed(0)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = transformer(
            torch.randn((1, 16, 3, 8, 8), generator=draws),
            torch.tensor([500.0]),
            torch.randn((1, 4, 32), generator=draws),
            return_dict=False,
        )[0]
    out.square().mean().backward()
    return {name: p.grad for name, p in transformer.named_parameters()}, kept, calls


@pytest.fixture(scope="module")
def plain(model_dir: Path) -> tuple[dict[str, torch.Tensor], int, int]:
    """Without recomputation."""
    return _run(model_dir, None)


@pytest.mark.parametrize(("kind", "calls"), [("full", 4), ("ops", 4), ("block_skip", 3)])
def test_gradients_are_those_without_recomputation(
    model_dir: Path, plain: tuple[dict[str, torch.Tensor], int, int], kind: str, calls: int
) -> None:
    """Of two blocks, both or every second run again; names and gradients stay; less is kept."""
    gradients, kept, counted = _run(model_dir, kind)
    assert plain[2] == 2
    assert counted == calls
    assert kept < plain[1]
    assert list(gradients) == list(plain[0])
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, plain[0][name])


def test_ops_computes_less_again_than_full(model_dir: Path) -> None:
    """Attention outputs and every second product are kept; both cost more than no recomputation."""
    flops = {}
    for kind in (None, "ops", "full"):
        with FlopCounterMode(display=False) as counter:
            _run(model_dir, kind)
        flops[kind] = counter.get_total_flops()
    assert flops[None] < flops["ops"] < flops["full"]


def test_an_unknown_kind_is_an_error() -> None:
    """The message lists the kinds and the nearest."""
    with pytest.raises(ConfigError, match=r"is 'fulll'.*Did you mean 'full'\?"):
        apply_gradient_checkpointing(object(), "fulll")
