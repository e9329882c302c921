"""Building callbacks from a run file and calling their hooks."""

from __future__ import annotations

from typing import Any

import pytest

from fastvideo.errors import ConfigError
from fastvideo.train.callbacks import Callback, CallbackDict
from fastvideo.train.callbacks.ema import EMACallback
from fastvideo.train.callbacks.grad_clip import GradNormClipCallback
from fastvideo.train.config import TrainingConfig


class Recorder(Callback):
    """Remembers its calls in a list that all recorders share."""

    def __init__(self, log: list[Any], label: str) -> None:
        self.log = log
        self.label = label
        self.loaded: Any = None

    def on_train_end(self, method: Any, iteration: int = 0) -> None:
        self.log.append((self.label, method, iteration))

    def own_hook(self) -> None:
        self.log.append((self.label, "own"))

    def state_dict(self) -> dict[str, Any]:
        return {"label": self.label}

    def load_state_dict(self, state_dict: Any) -> None:
        self.loaded = state_dict


def recorders(*labels: str) -> tuple[CallbackDict, list[Any]]:
    """Returns a dict of recorders and their common log."""
    callbacks = CallbackDict({}, TrainingConfig())
    log: list[Any] = []
    for label in labels:
        callbacks._callbacks[label] = Recorder(log, label)
    return callbacks, log


def test_builtin_names_need_no_target() -> None:
    """The names grad_clip, ema and validation build their own classes, in the order given."""
    config = TrainingConfig()
    callbacks = CallbackDict({"ema": {"decay": 0.5}, "grad_clip": {"max_grad_norm": 2}}, config)
    ema, clip = callbacks._callbacks.values()
    assert isinstance(ema, EMACallback)
    assert isinstance(clip, GradNormClipCallback)
    assert (ema.decay, clip.max_grad_norm) == (0.5, 2.0)
    assert (ema.name, clip.name) == ("ema", "grad_clip")
    assert ema.training_config is config
    assert ema._callback_dict is callbacks
    assert callbacks.get("ema") is ema
    assert callbacks.get("nothing") is None
    assert len(callbacks) == 2


def test_a_target_names_any_callback() -> None:
    """A name of one's own works with _target_, and a target wins over a built-in name."""
    target = "fastvideo.train.callbacks.ema.EMACallback"
    callbacks = CallbackDict({"mine": {"_target_": target, "decay": 0.5}}, None)
    assert isinstance(callbacks.get("mine"), EMACallback)
    callbacks = CallbackDict({"grad_clip": {"_target_": target}}, None)
    assert isinstance(callbacks.get("grad_clip"), EMACallback)


def test_an_unknown_name_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The warning says what is missing, where, and the nearest name."""
    callbacks = CallbackDict({"grad_clipp": {}}, None)
    assert len(callbacks) == 0
    (record,) = caplog.records
    message = record.getMessage()
    assert "callbacks.grad_clipp is missing _target_" in message
    assert "Did you mean 'grad_clip'?" in message


def test_a_target_that_is_no_callback_is_an_error() -> None:
    """The error says what was expected and what came."""
    config = {"x": {"_target_": "collections.OrderedDict"}}
    with pytest.raises(TypeError, match=r"callbacks\.x: expected a Callback.*OrderedDict"):
        CallbackDict(config, None)


@pytest.mark.parametrize("value", [None, 1, "text", ["a"]])
def test_an_entry_that_is_no_mapping_is_an_error(value: Any) -> None:
    """The error names the path."""
    with pytest.raises(ConfigError, match=r"Expected mapping at callbacks\.ema"):
        CallbackDict({"ema": value}, None)


def test_an_argument_that_does_not_exist_is_a_warning() -> None:
    """A key of another version is reported and left out."""
    with pytest.warns(UserWarning, match="decai"):
        callbacks = CallbackDict({"ema": {"decai": 0.5}}, None)
    ema = callbacks.get("ema")
    assert isinstance(ema, EMACallback)
    assert ema.decay == 0.9999


def test_hooks_reach_all_callbacks_in_order() -> None:
    """Arguments pass through; a hook that only some have is called where it is."""
    callbacks, log = recorders("a", "b")
    callbacks._callbacks["plain"] = Callback()
    callbacks.on_train_end("method", iteration=3)
    callbacks.own_hook()
    callbacks.unknown_hook(1, 2, three=4)
    assert log == [("a", "method", 3), ("b", "method", 3), ("a", "own"), ("b", "own")]


def test_private_names_are_no_hooks() -> None:
    """An attribute with an underscore does not exist, so copying and pickling work as usual."""
    callbacks, _ = recorders()
    with pytest.raises(AttributeError, match="_anything"):
        _ = callbacks._anything


def test_every_hook_of_the_base_class_does_nothing() -> None:
    """A bare callback can be called everywhere and has no state."""
    callback = Callback()
    for hook in ("on_train_start", "on_before_optimizer_step", "on_validation_begin",
                 "on_validation_end", "on_train_end"):  # fmt: skip
        assert getattr(callback, hook)(object(), iteration=1) is None
    assert callback.on_training_step_end(object(), {}, 1) is None
    assert callback.state_dict() == {}
    assert callback.load_state_dict({"x": 1}) is None


def test_state_goes_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """Each callback gets its own state; one that has none saved is reported."""
    callbacks, _ = recorders("a", "b")
    assert callbacks.state_dict() == {"a": {"label": "a"}, "b": {"label": "b"}}
    callbacks.load_state_dict({"a": {"label": "saved"}, "gone": {}})
    first, second = callbacks._callbacks.values()
    assert first.loaded == {"label": "saved"}
    assert second.loaded is None
    assert "callback 'b': state not found in the checkpoint" in caplog.text
