"""Activation traces on a CUDA device: the kernel's numbers are right, and nothing waits for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fastvideo.hooks import attach_activation_trace, detach_activation_trace, trace_step
from fastvideo.hooks.reduction import OperatorReducer, reducer_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_there_is_a_kernel() -> None:
    """The operators are for devices without one."""
    assert not isinstance(reducer_for("cuda"), OperatorReducer)


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model that is traced into a file."""
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", "1")
    monkeypatch.setenv("FASTVIDEO_TRACE_STATS", "abs_mean,sum,min,max,mean,std")
    monkeypatch.setenv("FASTVIDEO_TRACE_OUTPUT", str(path))
    torch.manual_seed(0)
    layers = [layer for _ in range(20) for layer in (nn.Linear(256, 256), nn.GELU())]
    model = nn.Sequential(*layers).cuda().bfloat16()
    trace = attach_activation_trace(model)
    yield model, path, lambda: detach_activation_trace(trace)
    detach_activation_trace(trace)


def _records(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if "kind" not in line]


def test_a_traced_forward_never_waits_for_the_device(traced: Any) -> None:
    """PyTorch raises an error where anything would."""
    model, path, detach = traced
    x = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)
    model(x)  # builds kernels and pools
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(5):
            with trace_step(step):
                x = model(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    detach()
    records = _records(path)
    assert [sum(r["step"] == step for r in records) for step in range(5)] == [40] * 5
    last = records[-1]
    assert last["sum"] == pytest.approx(x.double().sum().item(), rel=1e-5)
    assert last["abs_mean"] == pytest.approx(x.double().abs().mean().item(), rel=1e-5)


def test_streams_have_results_of_their_own(traced: Any) -> None:
    """What one stream writes is not read before it is there, nor mixed with the other's."""
    model, path, detach = traced
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [torch.full((64, 256), float(n), device="cuda").bfloat16() for n in range(2)]
    torch.cuda.synchronize()
    sums: dict[int, torch.Tensor] = {}
    for step in range(8):
        with torch.cuda.stream(streams[step % 2]), trace_step(step):
            if step % 2:
                torch.cuda._sleep(2_000_000)
            sums[step] = model(inputs[step % 2])
    torch.cuda.synchronize()
    detach()
    found = {r["step"]: r["sum"] for r in _records(path) if r["module"] == "39"}
    expected = {step: value.double().sum().item() for step, value in sums.items()}
    assert found == pytest.approx(expected, rel=1e-5)
