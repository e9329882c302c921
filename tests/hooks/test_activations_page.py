"""The page on activation tracing says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fastvideo import envs
from fastvideo.analysis.tolerances import DEFAULT_RTOL
from fastvideo.hooks import trace_step

if TYPE_CHECKING:
    import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "activations.md").read_text()


def _section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_field_is_explained(tracer: Any) -> None:
    """The table of fields has those that lines have, and no others."""
    tracer.set(STATS="abs_mean,sum,min,max,mean,std")
    values = torch.tensor([1.0, float("nan")], requires_grad=True)
    model = nn.Sequential(nn.Identity())

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with trace_step(0, loop="denoising"):
                model(values)
                model(values.to_sparse())
            return gradient

    def run() -> None:
        with trace_step(0, loop="denoising"):
            model(values)
        Recomputed.apply(values).sum().backward()

    tracer.trace("t.jsonl", model, run)
    written = set().union(*tracer.records("t.jsonl"))
    cells = re.findall(r"^\| (`.*?) \|", _section("What a line says"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == written


def test_every_variable_is_explained() -> None:
    """Those of activation tracing, in the table at the top."""
    named = set(re.findall(r"^\| `(FASTVIDEO_TRACE_\w+)`", PAGE, re.MULTILINE))
    declared = {name for name in envs.VARIABLES if name.startswith("FASTVIDEO_TRACE_")}
    assert named == declared - {"FASTVIDEO_TRACE_MAX_BYTES"}


def test_the_default_tolerances_are_those_of_the_code() -> None:
    """Each with its type."""
    for dtype, tolerance in DEFAULT_RTOL.items():
        mantissa = f"{tolerance:.0e}".replace("e-0", "e-")
        assert f"{mantissa} for {dtype}" in PAGE.replace("\n", " ")


def test_the_loop_runs(tracer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the page, as it stands there, traces its model."""
    tracer.set(OUTPUT=str(tmp_path / "t.jsonl"))
    model = nn.Sequential(nn.Linear(2, 2))
    program = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
    batches = [torch.ones(1, 2)] * 3
    names = {"model": model, "batches": batches, "train": lambda model, batch: model(batch)}
    exec(program, names)  # noqa: S102 - our own page
    assert [record["step"] for record in tracer.records("t.jsonl")] == [0, 1, 2]


def test_what_statistics_cannot_see(tracer: Any) -> None:
    """Swapped rows pass unseen, through a linear layer too; swapped channels meet other weights."""
    tracer.set(STATS="abs_mean,sum,min,max,mean,std")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 4))
    values = torch.randn(3, 4)
    with torch.no_grad():
        tracer.trace("right.jsonl", model, lambda: model(values))
        tracer.trace("rows.jsonl", model, lambda: model(values[[1, 0, 2]]))
        tracer.trace("channels.jsonl", model, lambda: model(values[:, [1, 0, 2, 3]]))
    assert tracer.diff("right.jsonl", "rows.jsonl").same
    channels = tracer.diff("right.jsonl", "channels.jsonl")
    assert [module for _, module, _ in channels.layers] == ["1"]
