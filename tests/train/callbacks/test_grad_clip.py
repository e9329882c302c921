"""Clipping gradients by their norm."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from fastvideo.errors import ConfigError
from fastvideo.train.callbacks.grad_clip import GradNormClipCallback, clip_gradients, global_norm
from fastvideo.train.trackers import StepTracker, Tracker


class FakeTracker:
    """Remembers what is logged."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int]] = []

    def log(self, metrics: Any, step: int) -> None:
        self.logged.append((dict(metrics), step))


class Method:
    """Has targets, and perhaps a tracker."""

    def __init__(self, targets: dict[str, nn.Module]) -> None:
        self.targets = targets
        self.asked: list[int] = []

    def get_grad_clip_targets(self, iteration: int) -> dict[str, nn.Module]:
        self.asked.append(iteration)
        return self.targets


def module(*gradients: list[float] | None, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Returns a module whose parameters have these gradients."""
    made = nn.Module()
    for index, values in enumerate(gradients):
        size = 1 if values is None else len(values)
        parameter = nn.Parameter(torch.zeros(size, dtype=dtype))
        parameter.grad = None if values is None else torch.tensor(values, dtype=dtype)
        made.register_parameter(f"p{index}", parameter)
    return made


def gradients(clipped: nn.Module) -> list[list[float]]:
    """Returns the gradients that are there."""
    return [p.grad.tolist() for p in clipped.parameters() if p.grad is not None]


def test_the_norm_of_all_parameters_counts() -> None:
    """A joint norm of 5 is scaled to 1; parameters without a gradient are left out."""
    method = Method({"student": module([3.0], None, [0.0, 4.0])})
    method.tracker = tracker = FakeTracker()
    GradNormClipCallback(1.0).on_before_optimizer_step(method, iteration=7)
    first, second = gradients(method.targets["student"])
    assert first == pytest.approx([0.6], rel=1e-5)
    assert second == pytest.approx([0.0, 0.8], rel=1e-5)
    assert tracker.logged == [({"grad_norm/student": 5.0}, 7)]


def test_small_gradients_stay_as_they_are() -> None:
    """Below the limit nothing is scaled up."""
    target = module([0.3, 0.4])
    assert float(clip_gradients(target.parameters(), 1.0) or 0) == pytest.approx(0.5)
    assert gradients(target)[0] == pytest.approx([0.3, 0.4])


def test_it_agrees_with_torch() -> None:
    """Norm and gradients are those of torch.nn.utils.clip_grad_norm_."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(n, generator=generator).tolist() for n in (3, 50, 1, 7)]
    ours, theirs = module(*values), module(*values)
    norm = clip_gradients(ours.parameters(), 0.5)
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
    torch.testing.assert_close(norm, expected)
    for mine, reference in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, reference.grad)


def test_half_precision_gradients_have_a_float32_norm() -> None:
    """The sum of many bfloat16 squares is not rounded to bfloat16."""
    ones = torch.ones(300, dtype=torch.bfloat16)
    norm = global_norm([ones, torch.ones(1)])
    assert norm.dtype == torch.float32
    assert float(norm) == pytest.approx(math.sqrt(301.0), rel=1e-6)


def test_each_target_has_its_own_norm() -> None:
    """Student and critic are clipped apart and logged apart."""
    method = Method({"student": module([2.0]), "critic": module([4.0])})
    method.tracker = tracker = FakeTracker()
    GradNormClipCallback(1.0).on_before_optimizer_step(method, iteration=1)
    assert gradients(method.targets["student"])[0] == pytest.approx([1.0], rel=1e-5)
    assert gradients(method.targets["critic"])[0] == pytest.approx([1.0], rel=1e-5)
    assert tracker.logged == [({"grad_norm/student": 2.0}, 1), ({"grad_norm/critic": 4.0}, 1)]


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_no_limit_does_nothing(limit: float) -> None:
    """Targets are not even asked for."""
    method = Method({"student": module([2.0])})
    GradNormClipCallback(limit).on_before_optimizer_step(method, iteration=1)
    assert method.asked == []


def test_norms_of_zero_and_switched_off_norms_are_not_logged() -> None:
    """A target without gradients, one with zeros, and log_grad_norms=False log nothing."""
    method = Method({"a": module(None), "b": module([0.0])})
    method.tracker = tracker = FakeTracker()
    GradNormClipCallback(1.0).on_before_optimizer_step(method, iteration=1)
    method.targets = {"c": module([5.0])}
    silent = GradNormClipCallback(1.0, log_grad_norms=False)
    silent.on_before_optimizer_step(method, iteration=1)
    assert tracker.logged == []
    assert gradients(method.targets["c"])[0] == pytest.approx([1.0], rel=1e-5)


def test_a_norm_that_is_not_finite_is_logged() -> None:
    """It does not disappear, and clipping goes on in the next step."""
    method = Method({"student": module([math.inf])})
    method.tracker = tracker = FakeTracker()
    callback = GradNormClipCallback(1.0)
    callback.on_before_optimizer_step(method, iteration=1)
    method.targets = {"student": module([2.0])}
    callback.on_before_optimizer_step(method, iteration=2)
    assert tracker.logged == [({"grad_norm/student": math.inf}, 1), ({"grad_norm/student": 2.0}, 2)]
    assert gradients(method.targets["student"])[0] == pytest.approx([1.0], rel=1e-5)


def test_methods_without_a_tracker_are_clipped_all_the_same() -> None:
    """Nothing is logged and nothing fails."""
    method = Method({"student": module([2.0])})
    GradNormClipCallback(1.0).on_before_optimizer_step(method, iteration=1)
    assert gradients(method.targets["student"])[0] == pytest.approx([1.0], rel=1e-5)


def test_an_error_while_clipping_ends_the_run() -> None:
    """It is raised, not swallowed."""

    class Broken(Method):
        def get_grad_clip_targets(self, iteration: int) -> dict[str, nn.Module]:
            raise LookupError(iteration)

    with pytest.raises(LookupError):
        GradNormClipCallback(1.0).on_before_optimizer_step(Broken({}), iteration=1)


def test_inside_a_run_the_norm_is_not_read_at_once() -> None:
    """The trainer's tracker gets the tensor, for its one transfer."""
    method = Method({"student": module([2.0])})

    class Active(Tracker):
        active = True

    method.tracker = tracker = StepTracker(Active())
    tracker.begin(1)
    GradNormClipCallback(1.0).on_before_optimizer_step(method, iteration=1)
    (item,) = tracker.take_deferred()
    assert (item.name, item.drop_zero) == ("grad_norm/student", True)
    assert float(item.value) == 2.0


def test_values_of_another_type_are_refused() -> None:
    """The errors name the keys; infinity measures without clipping, and numbers may be text."""
    with pytest.raises(ConfigError, match=r"callbacks\.grad_clip\.max_grad_norm: .* got 'abc'"):
        GradNormClipCallback("abc")
    with pytest.raises(ConfigError, match=r"callbacks\.grad_clip\.log_grad_norms"):
        GradNormClipCallback(log_grad_norms="maybe")
    assert GradNormClipCallback(math.inf).max_grad_norm == math.inf
    assert GradNormClipCallback("0.5").max_grad_norm == 0.5
