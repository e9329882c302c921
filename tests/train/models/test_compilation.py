"""Compiled blocks: the same numbers, and regions that are still seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from fastvideo.errors import ConfigError
from fastvideo.profiler import RecordingSink, attach, detach, profiler_region
from fastvideo.train.models.compilation import compile_blocks
from fastvideo.train.models.wan import WanModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fastvideo.train.config import TrainingConfig

OPTIONS = {"backend": "aot_eager", "fullgraph": True}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Counts the graphs of one test."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def _step(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns a velocity and the gradients of its mean square."""
    model = WanModel(training_config=config, init_from=str(model_dir))
    batch = model.prepare_batch(raw, generator=torch.Generator().manual_seed(0))
    with profiler_region("training_forward"):
        velocity = model.predict_noise(batch.latents, batch.timesteps, batch, conditional=True)
    velocity.square().mean().backward()
    gradients = {name: p.grad for name, p in model.transformer.named_parameters()}
    return velocity.detach(), gradients


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(None, "fp32"), ("full", "fp32"), ("ops", "fp32"), ("block_skip", "fp32"), ("full", "bf16")],
)
def test_a_compiled_model_computes_the_same(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any], kind: str | None, dtype: str
) -> None:
    """With every kind of recomputation, no break in a graph, and the names of the parameters."""
    config.model.enable_gradient_checkpointing_type = kind
    config.dit_compute_dtype = dtype
    plain, expected = _step(config, model_dir, raw)
    config.model.enable_torch_compile = True
    config.model.torch_compile_kwargs = OPTIONS
    compiled, gradients = _step(config, model_dir, raw)
    assert counters["stats"]["unique_graphs"] >= 1
    assert not counters["graph_break"]
    torch.testing.assert_close(compiled, plain)
    assert list(gradients) == list(expected)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)


def test_regions_are_around_the_graphs(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """One is entered and left once in every call, also when nothing is compiled any more."""
    config.model.enable_torch_compile = True
    config.model.torch_compile_kwargs = OPTIONS
    sink = RecordingSink()
    attach(sink)
    try:
        for _ in range(2):
            _step(config, model_dir, raw)
    finally:
        detach(sink)
    names = [str(event[1]) for event in sink.events]
    assert sum("training_forward" in name for name in names) == 4


def test_blocks_that_are_alike_share_a_graph(
    config: TrainingConfig, model_dir: Path, raw: dict[str, Any]
) -> None:
    """Two blocks are one compilation, so a deep model compiles as fast as a shallow one."""
    config.model.enable_torch_compile = True
    config.model.torch_compile_kwargs = OPTIONS
    _step(config, model_dir, raw)
    assert counters["stats"]["unique_graphs"] == 1


def test_options_that_are_none() -> None:
    """The message names the key and says what torch says."""
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(1, 1)])
    with pytest.raises(ConfigError, match=r"torch_compile_kwargs .*'mod'"):
        compile_blocks(model, {"mod": 1, "backend": "eager"})
    with pytest.raises(ConfigError, match="Linear has no blocks"):
        compile_blocks(nn.Linear(1, 1), {})


def test_inductor_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before the run instead of in its first step; other backends need none."""
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(1, 1)])
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler.*g\+\+"):
        compile_blocks(model, {})
    compile_blocks(model, {"backend": "eager"})
