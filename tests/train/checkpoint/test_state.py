"""What is collected from a method and its callbacks, and what a misfit says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch import nn

from fastvideo.train.callbacks import Callback, CallbackDict
from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.checkpoint.state import RunState

if TYPE_CHECKING:
    from collections.abc import Mapping


class Method:
    """A method with whatever state it is given."""

    def __init__(self, **state: Any) -> None:
        self.state = {key.replace("__", "."): value for key, value in state.items()}

    def checkpoint_state(self) -> dict[str, Any]:
        return self.state

    def seed_optimizer_state_for_resume(self) -> None:
        """Does nothing: other optimizers than Adam are seeded by torch."""


class Counter(Callback):
    """A callback with tensors of the model, a tensor of its own, and a number."""

    shared_state_keys: ClassVar[frozenset[str]] = frozenset({"model"})

    def __init__(self) -> None:
        self.model = torch.zeros(2)
        self.rest: dict[str, Any] = {"mine": torch.zeros(1), "count": 0}

    def state_dict(self) -> dict[str, Any]:
        return {"model": {"a": self.model}, **self.rest}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        assert state_dict["model"]["a"] is self.model
        self.rest = {key: state_dict[key] for key in ("mine", "count")}


def _saved(state: RunState) -> dict[str, Any]:
    return {name: SimpleNamespace(size=t.shape) for name, t in state.tensors().items()}


def _linear(*, frozen_bias: bool = False) -> nn.Linear:
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(not frozen_bias)
    return module


def test_trainable_parameters_are_kept_and_a_frozen_role_is_kept_whole() -> None:
    """A frozen role is in the state only if its method changes it."""
    student = _linear(frozen_bias=True)
    old = _linear().requires_grad_(requires_grad=False)
    state = RunState(Method(roles__student__transformer=student, roles__old__transformer=old))
    tensors = state.tensors()
    assert sorted(tensors) == [
        "roles.old.transformer.bias",
        "roles.old.transformer.weight",
        "roles.student.transformer.weight",
    ]
    assert tensors["roles.student.transformer.weight"].data_ptr() == student.weight.data_ptr()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_optimizers_other_than_adam_go_on(momentum: float) -> None:
    """SGD has no state before its first step, and none at all without momentum."""

    def make() -> tuple[nn.Linear, torch.optim.SGD, RunState]:
        torch.manual_seed(0)
        module = _linear()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum)
        method = Method(roles__student__transformer=module, optimizers__student=optimizer)
        return module, optimizer, RunState(method)

    def step(module: nn.Linear, optimizer: torch.optim.SGD) -> None:
        module(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    module, optimizer, state = make()
    step(module, optimizer)
    optimizer.param_groups[0]["lr"] = 0.05
    kept = {name: tensor.clone() for name, tensor in state.tensors().items()}
    plain = state.plain()
    step(module, optimizer)
    other, other_optimizer, other_state = make()
    targets, _ = other_state.wanted(_saved(other_state))
    assert kept.keys() >= targets.keys()
    with torch.no_grad():
        for name, tensor in targets.items():
            tensor.copy_(kept[name])
    other_state.restore(targets | {n: t for n, t in kept.items() if n not in targets}, plain)
    assert other_optimizer.param_groups[0]["lr"] == 0.05
    step(other, other_optimizer)
    assert torch.equal(module.weight, other.weight)


def test_other_objects_of_a_method_are_kept_for_each_rank() -> None:
    """A tensor among the ranks, an object with a state, an optimizer of no role."""
    tensor = torch.ones(2)
    schedule = SimpleNamespace(value=3)
    schedule.state_dict = lambda: {"value": schedule.value}
    schedule.load_state_dict = lambda state: setattr(schedule, "value", state["value"])
    module = _linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    state = RunState(Method(kept=tensor, schedulers__student=schedule, optimizers__other=optimizer))
    assert set(state.tensors()) == {"kept"}
    plain = state.plain()
    schedule.value = 5
    optimizer.param_groups[0]["lr"] = 7.0
    state.restore({"kept": tensor}, plain)
    assert (schedule.value, optimizer.param_groups[0]["lr"]) == (3, 0.1)
    with pytest.raises(CheckpointError, match=r"the checkpoint has no schedulers\.student"):
        state.restore({}, {"method": {}, "callbacks": {}})


def _callbacks() -> tuple[Counter, CallbackDict]:
    callbacks = CallbackDict({}, None)
    callbacks._callbacks["counter"] = counter = Counter()
    return counter, callbacks


def test_callbacks_say_which_of_their_tensors_belong_to_the_model() -> None:
    """Those are shared by the ranks; all others are kept for each rank."""
    counter, callbacks = _callbacks()
    state = RunState(Method(), callbacks)
    assert list(state.tensors()) == ["callbacks.counter.model.a"]
    counter.rest["count"] = 4
    plain = state.plain()
    assert set(plain["callbacks"]["counter"]) == {"mine", "count"}
    counter.rest["count"] = 0
    tensors, notes = state.wanted(_saved(state))
    assert notes == []
    state.restore(tensors, plain)
    assert counter.rest["count"] == 4


def test_a_callback_that_the_saved_run_did_not_have_starts_afresh(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And one that this run does not have is forgotten."""
    caplog.set_level("WARNING", "fastvideo")
    counter, callbacks = _callbacks()
    state = RunState(Method(), callbacks)
    tensors, notes = state.wanted({"callbacks.other.a.b": SimpleNamespace(size=(1,))})
    assert (tensors, len(notes)) == ({}, 1)
    assert "it has the state of callbacks.other, which this run does not have" in notes[0]
    state.restore(tensors, {"method": {}, "callbacks": {"other": {"a": 1}}})
    assert counter.rest["count"] == 0
    assert "callback 'counter': state not found in the checkpoint" in caplog.text
    RunState(Method()).restore({}, {"method": {}, "callbacks": {"other": {}}})


def test_a_callback_whose_tensors_are_gone_starts_afresh(caplog: pytest.LogCaptureFixture) -> None:
    """Its other values alone are of no use."""
    caplog.set_level("WARNING", "fastvideo")
    counter, callbacks = _callbacks()
    state = RunState(Method(), callbacks)
    plain = state.plain()
    plain["callbacks"]["counter"]["count"] = 4
    state.restore({}, plain)
    assert counter.rest["count"] == 0
    assert "callback 'counter': state not found in the checkpoint" in caplog.text


def test_settings_that_the_checkpoint_changes_are_named() -> None:
    """With both values: those of the schedule's peak, not of this step."""

    def make(lr: float, decay: float) -> RunState:
        module = _linear()
        optimizer = torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=decay)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
        return RunState(Method(roles__student__transformer=module, optimizers__student=optimizer))

    saved = make(1e-3, 0.01).plain()
    assert make(1e-3, 0.01).overridden_settings(saved) == []
    assert make(2e-3, 0.1).overridden_settings(saved) == [
        "learning rate of the role student stays 0.001 (run file: 0.002)",
        "weight decay of the role student stays 0.01 (run file: 0.1)",
    ]
    assert make(2e-3, 0.1).overridden_settings({"method": {}}) == []


def test_a_checkpoint_with_other_parameter_groups_is_refused() -> None:
    """The settings of a group belong to its parameters."""
    module = _linear()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    method = Method(roles__student__transformer=module, optimizers__student=optimizer)
    state = RunState(method)
    plain = state.plain()
    plain["method"]["optimizers.student"]["groups"] *= 2
    with pytest.raises(CheckpointError, match="has 2 parameter groups in the checkpoint and 1"):
        state.restore(state.tensors(), plain)
