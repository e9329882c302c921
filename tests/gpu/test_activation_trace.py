"""Activation traces on a CUDA device: the kernel's numbers are right, and nothing waits for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fastvideo.hooks import attach_activation_trace, detach_activation_trace, trace_step
from fastvideo.hooks.reduction import OperatorReducer, Summary, reduce_now, reducer_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.bool]


def _expected(tensor: torch.Tensor) -> Summary:
    values = tensor.flatten().double()
    kept = values[torch.isfinite(values)]
    return Summary(
        abs_mean=kept.abs().mean().item(),
        sum=kept.sum().item(),
        min=kept.min().item(),
        max=kept.max().item(),
        mean=kept.mean().item(),
        std=kept.std().item(),
        nan=int(values.isnan().sum()),
        posinf=int(values.isposinf().sum()),
        neginf=int(values.isneginf().sum()),
    )


def _assert_close(found: Summary, expected: Summary, rel: float = 1e-5) -> None:
    for name in Summary.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=rel), name


def test_there_is_a_kernel() -> None:
    """The operators are for devices without one."""
    assert not isinstance(reducer_for("cuda"), OperatorReducer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", [2, 31, 2048, 2049, 70_001, 600_000, 30_000_001])
def test_statistics_are_those_of_float64(dtype: torch.dtype, numel: int) -> None:
    """For all types, below and above one block for each program."""
    torch.manual_seed(numel)
    tensor = (torch.randn(numel, device="cuda") * 3 + 1).to(dtype)
    _assert_close(reduce_now(reducer_for("cuda"), tensor), _expected(tensor), rel=2e-5)


def test_what_is_not_finite_is_counted_and_left_out() -> None:
    """In a tensor that is not contiguous, too."""
    tensor = torch.randn(300, 700, device="cuda", dtype=torch.bfloat16).t()
    tensor[5, 7] = float("nan")
    tensor[6, 8:11] = float("inf")
    tensor[6, 12] = float("-inf")
    found = reduce_now(reducer_for("cuda"), tensor)
    assert (found.nan, found.posinf, found.neginf) == (1, 3, 1)
    _assert_close(found, _expected(tensor))


def test_deviation_survives_a_large_mean() -> None:
    """A sum of squares in float32 would be all rounding here."""
    torch.manual_seed(0)
    tensor = torch.randn(5_000_000, device="cuda") * 0.01 + 100
    _assert_close(reduce_now(reducer_for("cuda"), tensor), _expected(tensor), rel=1e-4)


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
