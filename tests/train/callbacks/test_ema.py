"""The moving average of the student's weights, on one rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from fastvideo.errors import ConfigError
from fastvideo.train.callbacks.ema import EMACallback, trainable_parameters


class FakeTracker:
    """Remembers what is logged."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, Any], int]] = []

    def log(self, metrics: Any, step: int) -> None:
        self.logged.append((dict(metrics), step))


class Method:
    """A student, and a say in whether it stepped."""

    def __init__(self, transformer: nn.Module | None = None) -> None:
        torch.manual_seed(0)
        self.student = SimpleNamespace(transformer=transformer or nn.Linear(2, 2))
        self.tracker = FakeTracker()
        self.updates = True

    def did_update_role(self, role: str, iteration: int) -> bool:
        assert role == "student"
        return self.updates

    def move(self, by: float = 1.0) -> None:
        """Changes all weights, as an optimizer step does."""
        with torch.no_grad():
            for parameter in self.student.transformer.parameters():
                parameter.add_(by)


def started(method: Method, **kwargs: Any) -> EMACallback:
    """Returns a callback that has seen the start of the run."""
    callback = EMACallback(**kwargs)
    callback.on_train_start(method, iteration=0)
    return callback


def shadow(callback: EMACallback, name: str = "weight") -> torch.Tensor:
    """Returns a copy of one average."""
    assert callback.student_ema is not None
    return callback.student_ema.shadow[name].clone()


def test_the_average_follows_the_formula() -> None:
    """After each step it is decay * average + (1 - decay) * weight, from the first weights on."""
    method = Method()
    callback = started(method, decay=0.75)
    expected = method.student.transformer.weight.detach().clone()
    for step in range(1, 5):
        method.move()
        weight = method.student.transformer.weight.detach()
        expected = weight.clone() if step == 1 else 0.75 * expected + 0.25 * weight
        callback.on_training_step_end(method, {}, step)
        torch.testing.assert_close(shadow(callback), expected)
    assert method.tracker.logged == [({"ema/decay": 0.75}, step) for step in range(1, 5)]


def test_nothing_happens_before_the_start_iteration() -> None:
    """The first step that counts starts the average from the weights of that moment."""
    method = Method()
    callback = started(method, decay=0.5, start_iter=3)
    initial = shadow(callback)
    for step in (1, 2):
        method.move()
        callback.on_training_step_end(method, {}, step)
    assert torch.equal(shadow(callback), initial)
    assert (callback._ema_started, method.tracker.logged) == (False, [])
    method.move()
    callback.on_training_step_end(method, {}, 3)
    assert torch.equal(shadow(callback), method.student.transformer.weight.detach())
    assert callback._ema_started


def test_steps_of_other_roles_do_not_move_it() -> None:
    """Between two student steps of DMD2 the average rests, and nothing is logged."""
    method = Method()
    callback = started(method, decay=0.5)
    callback.on_training_step_end(method, {}, 1)
    before = shadow(callback)
    method.updates = False
    method.move()
    callback.on_training_step_end(method, {}, 2)
    assert torch.equal(shadow(callback), before)
    assert [step for _, step in method.tracker.logged] == [1]


def test_a_skipped_optimizer_step_does_not_move_it() -> None:
    """A step that the non-finite guard left out is no step for the average."""
    method = Method()
    callback = started(method)
    callback.on_training_step_end(method, {"optimizer_step_skipped": 1.0}, 1)
    assert method.tracker.logged == []


@pytest.mark.parametrize("selected", [True, False])
def test_methods_that_only_name_optimizers_are_understood(selected: bool) -> None:  # noqa: FBT001
    """Without did_update_role, the optimizers of the step decide."""
    transformer = nn.Linear(2, 2)
    student = torch.optim.SGD(transformer.parameters(), lr=1.0)
    critic = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    method = SimpleNamespace(
        student=SimpleNamespace(transformer=transformer),
        tracker=FakeTracker(),
        _optimizer_dict={"student": student, "critic": critic},
        get_optimizers=lambda iteration: [critic, student] if selected else [critic],
    )
    callback = started(method)
    callback.on_training_step_end(method, {}, 1)
    assert len(method.tracker.logged) == int(selected)


def test_methods_that_say_nothing_always_update() -> None:
    """A minimal method without tracker and optimizers still has an average."""
    method = SimpleNamespace(student=SimpleNamespace(transformer=nn.Linear(2, 2)))
    callback = started(method)
    callback.on_training_step_end(method, {}, 1)
    assert callback._ema_started


def test_without_a_student_the_start_fails() -> None:
    """The error says what is missing and what to do."""
    with pytest.raises(ValueError, match=r"No student transformer.*remove callbacks\.ema"):
        EMACallback().on_train_start(SimpleNamespace(), iteration=0)


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan"), "abc"])
def test_a_decay_outside_0_to_1_is_refused(decay: float) -> None:
    """The error names the key."""
    with pytest.raises(ConfigError, match=r"callbacks\.ema\.decay"):
        EMACallback(decay=decay)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both a word that is no device and CUDA where there is none; the error names the key."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"callbacks\.ema\.device: .* got 'potato'"):
        EMACallback(device="potato")
    with pytest.raises(ConfigError, match=r"callbacks\.ema\.device is 'cuda:1', but CUDA is not"):
        EMACallback(device="cuda:1")
    assert EMACallback(device="cpu").device == "cpu"


def test_a_negative_start_is_refused() -> None:
    """The error names the key."""
    with pytest.raises(ConfigError, match=r"callbacks\.ema\.start_iter must be at least 0"):
        EMACallback(start_iter=-1)


def test_the_average_is_float32_and_of_trainable_parameters_only() -> None:
    """Half-precision weights have a float32 average; frozen ones have none."""
    transformer = nn.Linear(2, 2, dtype=torch.bfloat16)
    transformer.bias.requires_grad_(False)
    method = Method(transformer)
    callback = started(method, decay=0.5)
    method.move()
    callback.on_training_step_end(method, {}, 1)
    assert callback.student_ema is not None
    assert {n: t.dtype for n, t in callback.student_ema.shadow.items()} == {"weight": torch.float32}
    small = 2.0**-10  # lost when added to 1 in bfloat16
    with torch.no_grad():
        transformer.weight.fill_(1.0)
    callback.student_ema.shadow["weight"].fill_(1.0 + small)
    callback.on_training_step_end(method, {}, 2)
    assert torch.equal(shadow(callback), torch.full((2, 2), 1.0 + small / 2))


def test_names_are_free_of_wrappers() -> None:
    """Activation checkpointing does not change the names that a checkpoint keeps."""
    plain = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1)))
    names = list(trainable_parameters(plain))
    plain[1] = checkpoint_wrapper(plain[1])
    assert (
        list(trainable_parameters(plain))
        == names
        == [
            "0.weight",
            "0.bias",
            "1.0.weight",
            "1.0.bias",
        ]
    )


def test_the_context_swaps_and_restores_bit_for_bit() -> None:
    """Inside, the module computes with the average; outside with its own weights again."""
    method = Method()
    transformer = method.student.transformer
    callback = started(method, decay=0.5)
    callback.on_training_step_end(method, {}, 1)
    method.move(1 / 3)
    callback.on_training_step_end(method, {}, 2)
    own = {name: p.detach().clone() for name, p in transformer.named_parameters()}
    with callback.ema_context(transformer) as swapped:
        assert swapped is transformer
        assert torch.equal(transformer.weight, shadow(callback))
        assert not torch.equal(transformer.weight, own["weight"])
    assert all(torch.equal(p, own[name]) for name, p in transformer.named_parameters())
    with pytest.raises(LookupError), callback.ema_context(transformer):
        raise LookupError
    assert all(torch.equal(p, own[name]) for name, p in transformer.named_parameters())


def test_the_context_passes_through_before_the_start() -> None:
    """Without an average the weights stay."""
    method = Method()
    own = method.student.transformer.weight.detach().clone()
    with EMACallback().ema_context(method.student.transformer):
        assert torch.equal(method.student.transformer.weight, own)
    callback = started(method, start_iter=9)
    method.move()
    with callback.ema_context(method.student.transformer):
        assert torch.equal(method.student.transformer.weight, own + 1.0)


def test_state_round_trip() -> None:
    """A new run that loads the state goes on as if it had not been interrupted."""
    method = Method()
    callback = started(method, decay=0.5)
    method.move()
    callback.on_training_step_end(method, {}, 1)
    state = dict(callback.state_dict())
    state["student_ema"] = {name: t.clone() for name, t in state["student_ema"].items()}
    other = EMACallback(decay=0.5)
    assert other.state_dict() == {}
    other.on_train_start(method, iteration=1)
    other.load_state_dict(state)
    method.move()
    for each in (callback, other):
        each.on_training_step_end(method, {}, 2)
    assert torch.equal(shadow(callback), shadow(other))


def test_loading_nothing_changes_nothing() -> None:
    """A checkpoint made before the start, or without EMA, leaves the average alone."""
    callback = EMACallback()
    callback.load_state_dict({})
    assert callback.student_ema is None


def test_loading_before_the_start_is_an_error() -> None:
    """There is no model yet to compare with."""
    with pytest.raises(RuntimeError, match="call on_train_start before load_state_dict"):
        EMACallback().load_state_dict({"student_ema": {}, "ema_started": True})


def test_shards_of_an_older_checkpoint_are_refused() -> None:
    """A tensor of another shape is named, with both shapes."""
    callback = started(Method())
    state = {"weight": torch.zeros(1, 2), "bias": torch.zeros(2)}
    with pytest.raises(ValueError, match=r"'weight' has shape \(1, 2\).*\(2, 2\).*shard"):
        callback.load_state_dict({"student_ema": state, "ema_started": True})
    with pytest.raises(ValueError, match="no 'bias'"):
        callback.load_state_dict({"student_ema": {"weight": torch.zeros(2, 2)}})


def test_the_average_can_live_elsewhere() -> None:
    """With a device the shadows are kept there."""
    callback = started(Method(), device="cpu")
    assert shadow(callback).device.type == "cpu"
