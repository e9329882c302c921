"""Where two traces part."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fastvideo.analysis import Tolerances, activation_diff, diff_activations
from fastvideo.errors import DataError


def _run(traces: Any, steps: Any = (1, 2), modules: str = "abc", **wrong: Any) -> list[Any]:
    """Records of a run; ``c2=3.0`` makes the value of layer c in step 2 that."""
    return [
        traces.record(step, module, wrong.get(f"{module}{step}", 1.0))
        for step, module in itertools.product(steps, modules)
    ]


def _first(result: Any) -> tuple[Any, ...]:
    key = result.first.key
    return key.step.number, key.module, result.first.kind


def test_the_same(traces: Any) -> None:
    """Nothing differs, and what was compared is counted."""
    result = traces.diff(_run(traces), _run(traces))
    assert result.same
    assert (result.compared, len(result.modules), len(result.steps)) == (6, 3, 2)


def test_the_first_of_several(traces: Any) -> None:
    """In the order in which the layers ran; the table has them all, with the worst and how many."""
    result = traces.diff(_run(traces), _run(traces, b1=1.1, c1=1.2, a2=1.3, b2=1.4))
    assert _first(result) == (1, "b", "value")
    assert (result.first.statistic, result.first.in_a, result.first.in_b) == (
        "abs_mean",
        "1",
        "1.1",
    )
    layers = [(module, layer.count) for (_, module, _), layer in result.layers.items()]
    assert layers == [("b", 2), ("c", 1), ("a", 1)]
    worst = result.layers["student", "b", "value"].worst
    assert worst == pytest.approx(0.4 / 1.4)


def test_tolerance_is_per_type(traces: Any) -> None:
    """A difference of a thousandth is an error in float32, and none in bfloat16."""
    for dtype, same in (("torch.float32", False), ("torch.bfloat16", True)):
        a, b = (traces.record(1, "a", value, dtype=dtype) for value in (1.0, 1.001))
        result = traces.diff([a], [b])
        assert result.same is same
    assert result.largest == pytest.approx(1e-3, rel=1e-2)
    assert traces.diff([a], [b], rtol=["bf16=1e-4"]).first.allowed == pytest.approx(1e-4, rel=1e-3)


def test_sums_that_cancel_are_measured_by_what_was_added(traces: Any) -> None:
    """A sum of 1e-7 in place of 3e-7 over numbers of size 1 is rounding, not an error."""
    a, b = (traces.record(1, "a", sum=value) for value in (1e-7, 3e-7))
    assert traces.diff([a], [b]).same
    assert _first(traces.diff([a], [traces.record(1, "a", sum=0.1)])) == (1, "a", "value")


def test_the_absolute_tolerance_is_of_an_element(traces: Any) -> None:
    """A sum may be off by as many of them as it has elements."""
    a, b = traces.record(1, "a", sum=0.0), traces.record(1, "a", sum=0.7)
    assert not traces.diff([a], [b], atol=["0.05"]).same
    assert traces.diff([a], [b], atol=["0.1"]).same


def test_equal_infinitely_small_numbers(traces: Any) -> None:
    """Zero equals zero, and not a hundredth."""
    zero = traces.record(1, "a", 0.0, sum=0.0)
    assert traces.diff([zero], [zero]).same
    assert not traces.diff([zero], [traces.record(1, "a", 0.01, sum=0.0)]).same


def test_shape_and_non_finite_are_told_apart(traces: Any) -> None:
    """Each difference has its kind, whatever else is different besides."""
    good = traces.record(1, "a")
    cases = {
        "shape": traces.record(1, "a", 5.0, shape=[2, 5], numel=10),
        "non-finite": traces.record(1, "a", 5.0, nonfinite={"nan": 2, "+inf": 0, "-inf": 1}),
        "unreadable": traces.record(1, "a", problem="NotImplementedError"),
        "value": traces.record(1, "a", None),
    }
    for kind, bad in cases.items():
        result = traces.diff([good], [bad])
        assert result.first.kind == kind
    result = traces.diff([good], [cases["non-finite"]])
    assert (result.first.in_a, result.first.in_b) == ("all finite", "2 nan, 1 -inf")
    alike = traces.diff([cases["non-finite"]], [cases["non-finite"]])
    assert alike.same
    assert alike.nonfinite_in_both == 1


def test_missing_layers(traces: Any) -> None:
    """They belong to one side, and what both have is compared nevertheless."""
    result = traces.diff(_run(traces), _run(traces, modules="ac", c2=2.0))
    assert _first(result) == (1, "b", "only in A")
    assert result.layers["student", "b", "only in A"].count == 2
    assert result.layers["student", "c", "value"].count == 1
    assert result.compared == 4
    result = traces.diff(_run(traces, modules="ac"), _run(traces))
    assert _first(result) == (1, "b", "only in B")
    assert result.differing == 0


def test_missing_steps(traces: Any) -> None:
    """A run that ended early, or began late, is compared in the steps that both have."""
    result = traces.diff(_run(traces, steps=(1, 2, 3, 4)), _run(traces, steps=(2, 3), b3=2.0))
    assert {step.number: count for step, count in result.steps_only_in_a.items()} == {1: 3, 4: 3}
    assert result.compared == 6
    assert _first(result) == (1, "a", "only in A")
    assert list(result.layers) == [("student", "b", "value")]


def test_calls_and_parts_of_an_output_are_told_apart(traces: Any) -> None:
    """The same layer called twice, with two tensors each."""

    def records(**wrong: float) -> list[Any]:
        return [
            traces.record(
                1, "a", wrong.get(f"x{call}{part}", 1.0), call=call, tensor=f"out[{part}]"
            )
            for call, part in itertools.product(range(2), range(2))
        ]

    result = traces.diff(records(), records(x10=2.0))
    assert (result.first.key.call, result.first.key.tensor) == (1, "out[0]")


def test_order_within_a_step_does_not_matter(traces: Any) -> None:
    """Threads may come in any order."""
    a = _run(traces)
    assert traces.diff(a, list(reversed(a))).same


def test_recomputation_is_left_out_unless_asked_for(traces: Any) -> None:
    """A run with checkpointing is compared with one without."""
    again = traces.record(1, "a", 7.0, recompute=True)
    plain = [traces.record(1, "a"), traces.record(1, "b")]
    result = traces.diff(plain, [*plain, again])
    assert result.same
    assert result.recomputed == 1
    result = traces.diff(plain, [*plain, again], with_recompute=True)
    assert result.first.key.recompute
    assert result.first.kind == "only in B"


def test_files_are_streamed(traces: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no counterpart is given up at some time, and then missing."""
    monkeypatch.setattr(activation_diff, "_WINDOW", 5)
    result = traces.diff(_run(traces, steps=range(50)), _run(traces, steps=range(50), modules="ac"))
    assert result.layers["student", "b", "only in A"].count == 50
    assert result.compared == 100


def test_files_without_a_layer_in_common_are_refused(traces: Any) -> None:
    """They are no two runs of one model."""
    a = traces.write("a", _run(traces))
    b = traces.write("b", _run(traces, modules="xyz"), modules="xyz")
    with pytest.raises(DataError, match="have no layer in common"):
        activation_diff.diff_activations(a, b, Tolerances.parse())


def test_files_without_a_statistic_in_common_are_refused(traces: Any) -> None:
    """To find them the same would be wrong."""
    record = traces.record(1, "a")
    other = {name: value for name, value in record.items() if name != "abs_mean"} | {"std": 1.0}
    with pytest.raises(DataError, match="have no statistic in common"):
        traces.diff([record], [other])


def test_roles_can_be_compared_with_others(traces: Any) -> None:
    """Only those that are asked for, under A's name for them."""
    mine = [traces.record(0, module, role="transformer") for module in "ab"]
    theirs = [
        traces.record(0, module, value, role=role)
        for role, value in (("critic", 5.0), ("student", 1.0))
        for module in "ab"
    ]
    a = traces.write("a.jsonl", mine, roles=("transformer",))
    b = traces.write("b.jsonl", theirs, roles=("critic", "student"))
    result = diff_activations(a, b, Tolerances.parse(), roles={"transformer": "student"})
    assert result.same
    assert (result.compared, result.of_other_roles) == (2, 2)
    result = diff_activations(a, b, Tolerances.parse(), roles={"transformer": "critic"})
    assert result.first is not None
    assert (result.first.key.role, result.first.key.module) == ("transformer", "a")
    assert (result.first.value_a, result.first.value_b) == (1.0, 5.0)
    result = diff_activations(b, b, Tolerances.parse(), roles={"critic": "student"})
    assert result.differing == 2
    assert not diff_activations(b, b, Tolerances.parse(), roles={"critic": "critic"}).first


def test_roles_that_cannot_be_compared_are_named(traces: Any) -> None:
    """With what there is, and with what would compare them."""
    a = traces.write("a.jsonl", [traces.record(0, "a", role="transformer")], roles=("transformer",))
    b = traces.write("b.jsonl", [traces.record(0, "a")])
    with pytest.raises(DataError, match="--map transformer=student compares models of different"):
        diff_activations(a, b, Tolerances.parse())
    with pytest.raises(DataError, match=r"b\.jsonl traces no model of role 'studnt'; .*'student'"):
        diff_activations(a, b, Tolerances.parse(), roles={"transformer": "studnt"})
    with pytest.raises(DataError, match=r"a\.jsonl traces no model of role 'critic'"):
        diff_activations(a, b, Tolerances.parse(), roles={"critic": "student"})


def test_traces_without_a_common_step_cannot_be_compared(traces: Any) -> None:
    """A denoising step is none of training; a trace without any step is still one that differs."""
    records = [traces.record(0, "a", loop="denoising")]
    with pytest.raises(DataError, match="begins with 'denoising step 0', the second with 'step 0'"):
        traces.diff(records, [traces.record(0, "a")])
    assert not traces.diff(records, []).same


def test_traces_of_nothing_are_not_the_same(traces: Any) -> None:
    """So that a check in CI does not pass because nothing was traced."""
    with pytest.raises(DataError, match="have no tensor: the models were not called"):
        traces.diff([], [])
    again = [traces.record(0, "a", recompute=True)]
    with pytest.raises(DataError, match="compare these with --recompute"):
        traces.diff(again, again)
    assert traces.diff(again, again, with_recompute=True).same
