"""The pass over a tensor: in C, in operators, and what rows become."""

from __future__ import annotations

import importlib
import logging
import math
import shutil
import subprocess
from typing import Any

import pytest
import torch
from torch import Tensor

from fastvideo.hooks import reduction
from fastvideo.hooks.reduction import (
    EMPTY,
    FIELDS,
    OperatorReducer,
    Reducer,
    Summary,
    join_rows,
    reduce_now,
    reducer_for,
    summarise,
)
from fastvideo.hooks.reduction_c import CompiledReducer

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.bool]


ON_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module", params=["operators", "c", pytest.param("triton", marks=ON_DEVICE)])
def reducer(request: pytest.FixtureRequest) -> Reducer:
    """Each of the ways to make the pass on this machine."""
    if request.param == "operators":
        return OperatorReducer()
    if request.param == "triton":
        return reducer_for("cuda")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
    return CompiledReducer()


def _expected(tensor: Tensor) -> Summary:
    """The statistics of the finite elements in float64, the plain way."""
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


def _device(reducer: Reducer) -> str:
    return "cpu" if isinstance(reducer, OperatorReducer | CompiledReducer) else "cuda"


def _reduce(reducer: Reducer, tensor: Tensor) -> Summary:
    return reduce_now(reducer, tensor.to(_device(reducer)))


def _assert_close(found: Summary, expected: Summary, rel: float = 1e-5) -> None:
    for name in Summary.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=rel), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", [2, 31, 32, 33, 2048, 2049, 70_001])
def test_statistics_are_those_of_float64(reducer: Reducer, dtype: torch.dtype, numel: int) -> None:
    """For all types and on both sides of the sizes at which kernels change their ways."""
    torch.manual_seed(numel)
    tensor = (torch.randn(numel) * 3 + 1).to(dtype)
    _assert_close(_reduce(reducer, tensor), _expected(tensor))


def test_deviation_survives_a_large_mean_and_an_outlier(reducer: Reducer) -> None:
    """A sum of squares in float32 would be all rounding here."""
    torch.manual_seed(0)
    tensor = torch.randn(50_000) * 0.01 + 100
    _assert_close(_reduce(reducer, tensor), _expected(tensor), rel=1e-4)
    tensor[0] = 1e4
    _assert_close(_reduce(reducer, tensor), _expected(tensor), rel=1e-4)


def test_what_is_not_finite_is_counted_and_left_out(reducer: Reducer) -> None:
    """Wherever it stands."""
    tensor = torch.linspace(-1, 3, 5000)
    tensor[[0, 40, 4999]] = math.nan
    tensor[[1, 2047, 2048, 3000]] = math.inf
    tensor[77] = -math.inf
    found = _reduce(reducer, tensor)
    assert (found.nan, found.posinf, found.neginf) == (3, 4, 1)
    _assert_close(found, _expected(tensor))


def test_numbers_near_the_end_of_the_range_are_finite(reducer: Reducer) -> None:
    """Their sum overflows float32, which does not make them infinite."""
    if isinstance(reducer, OperatorReducer):
        pytest.skip("operators add in float32")
    found = _reduce(reducer, torch.full((64,), 3e38))
    assert (found.nan, found.posinf) == (0, 0)
    assert found.sum == pytest.approx(64 * 3e38)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(4, 6).t(),
        torch.arange(24.0).reshape(4, 6)[:, ::2],
        torch.ones(3, 1).expand(3, 100) * torch.arange(3.0)[:, None],
        torch.ones(2, 3).requires_grad_() * torch.arange(3.0),
    ],
)
def test_any_layout_is_read(reducer: Reducer, tensor: Tensor) -> None:
    """Transposed, sliced, expanded, and with a graph that stays as it is."""
    _assert_close(_reduce(reducer, tensor), _expected(tensor))


def test_complex_numbers_count_as_two(reducer: Reducer) -> None:
    """Their parts are the elements."""
    tensor = torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([-3.0, 4.0]))
    _assert_close(_reduce(reducer, tensor), _expected(torch.view_as_real(tensor)))


def test_what_no_elements_tell(reducer: Reducer) -> None:
    """Nothing, one, and none that is finite: None stands for what there is not."""
    assert _reduce(reducer, torch.empty(0, 3)) == EMPTY
    assert _reduce(reducer, torch.tensor(2.0)) == Summary(2.0, 2.0, 2.0, 2.0, 2.0, None)
    nothing = Summary(None, None, None, None, None, None, nan=2)
    assert _reduce(reducer, torch.full((2,), math.nan)) == nothing


def test_parts_of_a_tensor_make_the_whole(reducer: Reducer) -> None:
    """What several programs of a device write is joined."""
    torch.manual_seed(0)
    parts = [torch.randn(100) + 5, torch.randn(7) * 100, torch.full((3,), math.nan)]
    device = _device(reducer)
    table = torch.empty((len(parts), len(FIELDS)), dtype=torch.float64, device=device)
    for row, part in enumerate(parts):
        reducer.reduce(part.to(device), table, row)
    _assert_close(summarise(join_rows(table.cpu())), _expected(torch.cat(parts)))


def test_without_a_compiler_operators_do_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log says that it is slower."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with caplog.at_level(logging.WARNING, "fastvideo"):
        found = reducer_for.__wrapped__("cpu")
    assert isinstance(found, OperatorReducer)
    assert "no kernel for cpu here and is slower" in caplog.text
    assert "there is no C compiler" in caplog.text


def test_a_compiler_that_fails_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Operators do it."""
    failed = subprocess.CompletedProcess(["cc"], 1, b"", b"no such header")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert isinstance(reducer_for.__wrapped__("cpu"), OperatorReducer)
    assert "CalledProcessError" in caplog.text


def test_a_kernel_that_is_wrong_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel is compared with operators before anybody relies on it."""

    class Wrong(OperatorReducer):
        def reduce(self, tensor: Tensor, table: Tensor, row: int) -> None:
            super().reduce(tensor, table, row)
            table[row, 2] *= 2

    monkeypatch.setattr(reduction, "_kernel_for", lambda _: Wrong())
    assert type(reducer_for.__wrapped__("cpu")) is OperatorReducer
    assert "std is" in caplog.text


def test_the_triton_kernel_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, where Triton is installed; on a device it checks itself."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    module: Any = importlib.import_module("fastvideo.hooks.reduction_triton")
    kernel = module.TritonReducer()
    tensor = torch.randn(5 * 2048 + 7) + 3
    tensor[::1000] = math.inf
    assert kernel.rows(tensor.numel()) == 6
    _assert_close(reduce_now(kernel, tensor), _expected(tensor))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_of_a_device_read_many_blocks(dtype: torch.dtype) -> None:
    """Of tensors that are much larger than all programs together read at once."""
    torch.manual_seed(0)
    reducer = reducer_for("cuda")
    for numel in (600_000, 30_000_001):
        tensor = (torch.randn(numel, device="cuda") * 3 + 1).to(dtype)
        _assert_close(reduce_now(reducer, tensor), _expected(tensor), rel=2e-5)
    if dtype == torch.float32:
        tensor = torch.randn(5_000_000, device="cuda") * 0.01 + 100
        _assert_close(reduce_now(reducer, tensor), _expected(tensor), rel=1e-4)
