"""What activation tracing records, and what it leaves alone."""

from __future__ import annotations

import copy
import gc
import logging
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastvideo.errors import ConfigError
from fastvideo.hooks import (
    ModuleHookManager,
    activation_trace_of,
    attach_activation_trace,
    current_step_idx,
    detach_activation_trace,
    trace_step,
)

X = torch.ones(2, 4)


class Returning(nn.Module):
    """Returns what it was made with."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Any) -> Any:
        return self.value


class Outer(nn.Module):
    """Calls one module, and returns its output."""

    def __init__(self, inner: nn.Module, calls: int = 1) -> None:
        super().__init__()
        self.inner = inner
        self.calls = calls

    def forward(self, x: Any) -> Any:
        for _ in range(self.calls):
            out = self.inner(x)
        return out


def _mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


@pytest.mark.parametrize("value", [None, "", "0", "false"])
def test_off_touches_nothing(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """No hook, no attribute, no file: a forward takes the same way as ever."""
    monkeypatch.delenv("FASTVIDEO_TRACE_ACTIVATIONS", raising=False)
    if value is not None:
        monkeypatch.setenv("FASTVIDEO_TRACE_ACTIVATIONS", value)
    model = _mlp()
    before = [dict(module.__dict__) for module in model.modules()]
    assert attach_activation_trace(model) is None
    detach_activation_trace(None)
    assert [dict(module.__dict__) for module in model.modules()] == before
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert ModuleHookManager.get_from(module) is None


def test_records_of_a_forward(tracer: Any) -> None:
    """Every module but the model itself, in the order in which they ended."""
    model = _mlp()
    tracer.set(STATS="abs_mean,sum,min,max,mean,std,shape,dtype")
    tracer.attach("t.jsonl", model, role="student")
    with trace_step(3):
        out = model(X)
    tracer.detach()
    header, described, *records = tracer.lines("t.jsonl")
    assert (header["kind"], header["rank"], header["world_size"]) == ("header", 0, 1)
    assert header["pid"] == os.getpid()
    assert header["run_id"]
    assert (described["kind"], described["role"]) == ("model", "student")
    assert described["modules"] == ["0", "1", "2"]
    assert [record["module"] for record in records] == ["0", "1", "2"]
    last = records[-1]
    expected = {
        "module": "2",
        "tensor": "out",
        "step": 3,
        "call": 0,
        "role": "student",
        "rank": 0,
        "shape": [2, 4],
        "dtype": "torch.float32",
        "numel": 8,
    }
    assert {name: last[name] for name in expected} == expected
    for name, value in {
        "abs_mean": out.abs().mean(),
        "sum": out.sum(),
        "min": out.min(),
        "max": out.max(),
        "mean": out.mean(),
        "std": out.std(),
    }.items():
        assert last[name] == pytest.approx(value.item(), rel=1e-5)


def test_outputs_and_gradients_are_untouched(tracer: Any) -> None:
    """To the bit; what is returned is the same object."""
    model, x = _mlp(), torch.randn(2, 4, requires_grad=True)
    expected = model(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    tracer.attach("t.jsonl", model)
    found = model(x)
    (traced,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(found, expected)
    assert torch.equal(traced, gradient)
    value = (X, {"a": X})
    outer = Outer(Returning(value))
    tracer.attach("t.jsonl", outer)
    assert outer(X) is value


def test_what_is_not_finite_is_null_and_counted(tracer: Any) -> None:
    """The file stays strict JSON, and the rest of the tensor is described."""
    bad = torch.tensor([1.0, math.nan, math.inf, -math.inf, 3.0])
    for name, value in (("bad", bad), ("nan", bad[1:2]), ("one", X[0, :1]), ("none", X[:0])):
        tracer.set(STATS="abs_mean,sum,std")
        model = Outer(Returning(value))
        tracer.trace(f"{name}.jsonl", model, lambda model=model: model(X))
    (record,) = tracer.records("bad.jsonl")
    assert record["nonfinite"] == {"nan": 1, "+inf": 1, "-inf": 1}
    assert (record["abs_mean"], record["sum"], record["numel"]) == (2.0, 4.0, 5)
    (record,) = tracer.records("nan.jsonl")
    assert (record["abs_mean"], record["sum"], record["std"]) == (None, None, None)
    (record,) = tracer.records("one.jsonl")
    assert (record["sum"], record["std"], record.get("nonfinite")) == (1.0, None, None)
    (record,) = tracer.records("none.jsonl")
    assert (record["sum"], record["abs_mean"], record["numel"]) == (0.0, None, 0)


def test_what_changes_a_tensor_later_does_not_change_its_record(tracer: Any) -> None:
    """The statistics are of the moment in which the module returned."""
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    tracer.trace("t.jsonl", model, lambda: model(-torch.ones(3)))
    assert [record["sum"] for record in tracer.records("t.jsonl")] == [-3.0, 0.0]


def test_tensors_without_numbers_are_named(tracer: Any) -> None:
    """They are recorded without statistics, and the program goes on."""
    sparse = torch.eye(3).to_sparse()
    model = Outer(Returning((sparse, torch.empty(3, device="meta"), X)))
    tracer.trace("t.jsonl", model, lambda: model(X))
    first, second = tracer.records("t.jsonl")
    assert (first["tensor"], "sum" in first, bool(first["problem"])) == ("out[0]", False, True)
    assert (second["tensor"], second["sum"]) == ("out[2]", 8.0)


def test_a_shared_module_counts_its_calls(tracer: Any) -> None:
    """Each call in a step has its number, which begins anew in the next step."""
    model = Outer(nn.Linear(4, 4), calls=2)

    def run() -> None:
        for step in (0, 1):
            with trace_step(step):
                model(X)
                model(X)

    tracer.trace("t.jsonl", model, run)
    calls = [(record["step"], record["call"]) for record in tracer.records("t.jsonl")]
    assert calls == [(step, call) for step in (0, 1) for call in range(4)]


def test_a_step_that_is_entered_again_says_so(tracer: Any) -> None:
    """So the loops of two requests, or of training and validation, do not mix."""
    model = Outer(nn.Identity())

    def run() -> None:
        for loop in ("", "denoising", "denoising"):
            with trace_step(0, loop=loop):
                model(X)

    tracer.trace("t.jsonl", model, run)
    found = [(r.get("loop"), r.get("entry")) for r in tracer.records("t.jsonl")]
    assert found == [(None, None), ("denoising", None), ("denoising", 1)]


def test_entries_are_counted_in_each_file(tracer: Any) -> None:
    """Whatever else is traced in the process at the time."""
    models = Outer(nn.Identity()), Outer(nn.Identity())
    for name, model in zip(("a.jsonl", "b.jsonl"), models, strict=True):
        tracer.attach(name, model)
        with trace_step(0):
            model(X)
    tracer.detach()
    assert tracer.diff("a.jsonl", "b.jsonl").same


def test_steps_and_layers_can_be_chosen(tracer: Any) -> None:
    """Steps by number and range, layers by a regular expression that is searched."""
    tracer.set(STEPS="0,4-5", LAYERS=r"^[02]$")
    model = _mlp()

    def run() -> None:
        model(X)
        for step in range(8):
            with trace_step(step):
                model(X)

    tracer.trace("t.jsonl", model, run)
    found = [(record["step"], record["module"]) for record in tracer.records("t.jsonl")]
    assert found == [(step, module) for step in (0, 4, 5) for module in "02"]


def test_a_pattern_that_matches_nothing_is_said(
    tracer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And attaches nothing."""
    tracer.set(LAYERS="no such layer")
    model = _mlp()
    trace = tracer.attach("t.jsonl", model)
    assert trace.modules == ()
    assert not any(module._forward_hooks for module in model.modules())
    assert (
        "no module of Sequential is traced: FASTVIDEO_TRACE_LAYERS=no such layer matches none of "
        "its 3 names, such as 0 and 2"
    ) in caplog.text


def test_detach_restores(tracer: Any) -> None:
    """Every module is as it was; a second detach does nothing; nothing more is recorded."""
    model = _mlp()
    before = [set(module.__dict__) for module in model.modules()]
    trace = tracer.attach("t.jsonl", model)
    assert ModuleHookManager.get_from(model) is None
    assert all(ModuleHookManager.get_from(module) is not None for module in model)
    model(X)
    detach_activation_trace(trace)
    detach_activation_trace(trace)
    model(X)
    assert [set(module.__dict__) for module in model.modules()] == before
    assert not any(module._forward_hooks for module in model.modules())
    assert len(tracer.records("t.jsonl")) == 3


def test_attaching_again_changes_nothing(tracer: Any) -> None:
    """The first trace stays, under its role; after it is detached there can be another."""
    model = _mlp()
    first = tracer.attach("t.jsonl", model, role="student")
    assert tracer.attach("t.jsonl", model, role="transformer") is first
    model(X)
    tracer.detach()
    assert [record["role"] for record in tracer.records("t.jsonl")] == ["student"] * 3
    assert tracer.attach("t.jsonl", model) is not first


def test_models_of_a_process_share_a_file(tracer: Any) -> None:
    """Each under its role; the file ends when the last of them is detached."""
    student, critic = _mlp(), _mlp()
    trace = tracer.attach("t.jsonl", student, role="student")
    tracer.attach("t.jsonl", critic, role="critic")
    student(X)
    detach_activation_trace(trace)
    critic(X)
    tracer.detach()
    roles = [record["role"] for record in tracer.records("t.jsonl")]
    assert roles == ["student"] * 3 + ["critic"] * 3
    assert [line["role"] for line in tracer.lines("t.jsonl")[1:] if "kind" in line] == [
        "student",
        "critic",
    ]


def test_a_file_is_begun_anew(tracer: Any) -> None:
    """Two runs never mix in one file; the first of this process is kept beside the second."""
    (tracer.folder / "t.jsonl").write_text("of another process\n")
    for value in (1.0, 2.0):
        model = _mlp()
        tracer.trace("t.jsonl", model, lambda model=model, value=value: model(X * value))
    found = {path.name for path in tracer.folder.iterdir()}
    assert found == {"t.jsonl", "t_1.jsonl"}
    for name in found:
        assert len(tracer.records(name)) == 3
        assert sum(line.get("kind") == "header" for line in tracer.lines(name)) == 1
    assert tracer.records("t.jsonl")[0]["sum"] != tracer.records("t_1.jsonl")[0]["sum"]


def test_a_model_that_is_gone_leaves_its_lines_and_closes_its_file(tracer: Any) -> None:
    """Nobody detached it; the file is closed when the next is begun."""
    model = _mlp()
    tracer.attach("gone.jsonl", model)
    model(X)
    assert activation_trace_of(model) is not None
    del model
    gc.collect()
    tracer.attach("next.jsonl", _mlp())
    assert len(tracer.records("gone.jsonl")) == 3
    descriptors = Path("/proc/self/fd")
    targets = {link.readlink() for link in descriptors.iterdir() if link.is_symlink()}
    assert tracer.folder / "gone.jsonl" not in targets
    assert tracer.folder / "next.jsonl" in targets
    tracer.detach()


def test_placeholders_of_the_file_name(
    tracer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank and process id are put in; ranks never share a file."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    model = Outer(nn.Identity())
    for name in ("sub/r<rank>_<pid>.jsonl", "plain.jsonl"):
        tracer.trace(name, model, lambda: model(X))
    assert (tmp_path / "sub" / f"r3_{os.getpid()}.jsonl").exists()
    assert tracer.lines("plain_rank3.jsonl")[0]["rank"] == 3
    assert tracer.records("plain_rank3.jsonl")[0]["rank"] == 3
    assert "has no <rank>" in caplog.text


def test_threads_have_steps_of_their_own(tracer: Any) -> None:
    """Each record has the step of the thread that called the module; nothing is lost or torn."""
    model = _mlp()

    def run(base: int) -> None:
        for step in range(base, base + 20):
            with trace_step(step):
                assert current_step_idx() == step
                model(X * step)

    def all_threads() -> None:
        threads = [threading.Thread(target=run, args=(100 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    expected: dict[int, float] = {}
    for base in (0, 100, 200, 300):
        for step in range(base, base + 20):
            expected[step] = model(X * step).sum().item()
    tracer.trace("t.jsonl", model, all_threads)
    records = [record for record in tracer.records("t.jsonl") if record["module"] == "2"]
    found = {record["step"]: record["sum"] for record in records}
    assert len(records) == 80
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_forward_that_raises_is_not_recorded_but_counted(tracer: Any) -> None:
    """The exception is the program's own; the next call has the next number."""
    model = Outer(nn.Linear(4, 4))

    def run() -> None:
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(3))
        model(X)

    tracer.trace("t.jsonl", model, run)
    (record,) = tracer.records("t.jsonl")
    assert (record["module"], record["call"]) == ("inner", 1)


def test_an_output_that_cannot_be_walked_is_said_once(
    tracer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Tracing never ends a run."""

    class Strange(dict[str, Any]):
        def items(self) -> Any:
            message = "not today"
            raise RuntimeError(message)

    model = Outer(Returning(Strange()))
    with caplog.at_level(logging.ERROR, "fastvideo"):
        tracer.trace("t.jsonl", model, lambda: (model(X), model(X)))
    assert caplog.text.count("cannot be traced") == 1


def test_many_tensors_in_a_step_leave_in_several_copies(tracer: Any) -> None:
    """None is lost where a ring is full, and their order stays."""
    model = Outer(nn.Identity(), calls=5_000)

    def run() -> None:
        with trace_step(0):
            model(X)

    tracer.trace("t.jsonl", model, run)
    assert [record["call"] for record in tracer.records("t.jsonl")] == list(range(5_000))


def test_a_copy_of_a_traced_model_is_not_traced(tracer: Any) -> None:
    """EMA and the like may copy a model at any time."""
    model = _mlp()
    tracer.attach("t.jsonl", model)
    twin = copy.deepcopy(model)
    twin(X)
    assert tracer.attach("t.jsonl", twin) is not None
    tracer.detach()
    assert tracer.records("t.jsonl") == []


def test_files_that_cannot_be_written_are_an_error(tracer: Any, tmp_path: Path) -> None:
    """At once, with the variable's name; the model is untouched."""
    (tmp_path / "file").touch()
    model = _mlp()
    with pytest.raises(ConfigError, match="FASTVIDEO_TRACE_OUTPUT: cannot write"):
        tracer.attach("file/t.jsonl", model)
    assert not any(module._forward_hooks for module in model.modules())


def test_no_tensor_is_read_one_by_one(tracer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the thread of the model nothing asks a tensor for its value."""

    def refuse(*_: Any) -> Any:
        message = "read a value"
        raise AssertionError(message)

    model = _mlp()
    tracer.attach("t.jsonl", model)
    here = threading.get_ident()
    for name in ("item", "tolist", "cpu", "__float__", "__bool__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor,
            name,
            lambda *args, original=original: (
                refuse() if threading.get_ident() == here else original(*args)
            ),
        )
    with trace_step(0):
        model(X)
    monkeypatch.undo()
    tracer.detach()
    assert len(tracer.records("t.jsonl")) == 3


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_compiled_models_are_traced_if_they_have_not_run(tracer: Any, how: str) -> None:
    """The graph is broken after every module; names are those of the model that is not compiled."""
    torch._dynamo.reset()
    model = _mlp()
    tracer.trace("eager.jsonl", model, lambda: model(X))
    called: Any = model
    if how == "wrapped":
        called = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    tracer.trace("compiled.jsonl", called, lambda: called(X))
    assert len(tracer.records("compiled.jsonl")) == 3
    assert tracer.diff("eager.jsonl", "compiled.jsonl").same
    torch._dynamo.reset()
    model[2].bias.data += 0.01
    tracer.trace("wrong.jsonl", called, lambda: called(X))
    first = tracer.diff("eager.jsonl", "wrong.jsonl").first
    assert first is not None
    assert (first.key.module, first.kind) == ("2", "value")


def test_where_compilation_keeps_hooks_out(tracer: Any) -> None:
    """A model that ran compiled before is not traced, and fullgraph=True refuses hooks."""
    torch._dynamo.reset()
    model = _mlp()
    compiled: Any = torch.compile(model, backend="eager")
    compiled(X)
    tracer.trace("late.jsonl", compiled, lambda: compiled(X))
    assert tracer.records("late.jsonl") == []
    torch._dynamo.reset()
    whole: Any = torch.compile(model, backend="eager", fullgraph=True)
    tracer.attach("whole.jsonl", model)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        whole(X)
    tracer.detach()
    torch._dynamo.reset()
    assert torch.equal(whole(X), model(X))
