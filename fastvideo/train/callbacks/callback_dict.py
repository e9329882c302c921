"""The callbacks of a run, built from the ``callbacks`` section and called in its order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError, FastVideoError, did_you_mean
from fastvideo.logger import init_logger
from fastvideo.train.callbacks.callback import Callback
from fastvideo.train.instantiate import (
    TargetTypeError,
    check_arguments,
    instantiate,
    resolve_target,
)
from fastvideo.train.targets import is_own

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.train.config import TrainingConfig

logger = init_logger(__name__)

_BUILTIN_CALLBACKS: Final[dict[str, str]] = {
    "ema": "fastvideo.train.callbacks.ema.EMACallback",
    "grad_clip": "fastvideo.train.callbacks.grad_clip.GradNormClipCallback",
    "validation": "fastvideo.train.callbacks.validation.ValidationCallback",
}


class CallbackExitError(FastVideoError, RuntimeError):
    """A callback asked Python to end, in the middle of a run."""


class CallbackDict:
    """Callbacks by name, and one method per hook that calls them all in order.

    Any public attribute is a dispatcher: ``callbacks.on_train_end(method, iteration=9)`` calls
    ``on_train_end`` of every callback that has it.

    Args:
        callback_configs: Name to keyword arguments, with ``_target_`` for callbacks that are not
            built in.
        training_config: Handed to every callback.

    Raises:
        ConfigError: An entry is not a mapping.
        TypeError: A ``_target_`` is not a :class:`Callback`.
    """

    def __init__(
        self,
        callback_configs: Mapping[str, Any] | None,
        training_config: TrainingConfig | None,
    ) -> None:
        self._callbacks: dict[str, Callback] = {}
        for name, config in (callback_configs or {}).items():
            callback = _build(name, config)
            if callback is None:
                continue
            callback.name = name
            callback.training_config = training_config
            callback._callback_dict = self  # noqa: SLF001 - the contract with callbacks
            self._callbacks[name] = callback

    def __getattr__(self, hook: str) -> Callable[..., None]:
        if hook.startswith("_"):
            raise AttributeError(hook)

        def dispatch(*args: object, **kwargs: object) -> None:
            for callback in self._callbacks.values():
                function = getattr(callback, hook, None)
                if function is not None:
                    _call(function, f"callbacks.{callback.name}.{hook}", args, kwargs)

        return dispatch

    def __len__(self) -> int:
        return len(self._callbacks)

    def get(self, name: str) -> Callback | None:
        """Returns the callback called ``name``, or None."""
        return self._callbacks.get(name)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Returns every callback's state, by name."""
        return {name: callback.state_dict() for name, callback in self._callbacks.items()}

    def load_state_dict(self, state_dict: Mapping[str, Mapping[str, Any]]) -> None:
        """Gives every callback its state back; a callback without one is reported.

        Args:
            state_dict: What :meth:`state_dict` returned, perhaps in a run with other callbacks.
        """
        for name, callback in self._callbacks.items():
            if name in state_dict:
                callback.load_state_dict(state_dict[name])
            else:
                logger.warning(
                    "callback %r: state not found in the checkpoint; it starts afresh", name
                )


def check_callbacks(
    callback_configs: Mapping[str, Any] | None, training_config: TrainingConfig
) -> None:
    """Refuses settings of callbacks before a model is loaded.

    Callbacks of this package are made, which starts nothing, and asked. Of others the class and the
    names of its arguments are looked at.

    Args:
        callback_configs: As for :class:`CallbackDict`.
        training_config: The run's ``training`` section.

    Raises:
        FastVideoError: A value cannot be used, or a ``_target_`` is no :class:`Callback`.
    """
    for name, config in (callback_configs or {}).items():
        target = config.get("_target_") if isinstance(config, Mapping) else None
        if target is None or is_own(target):
            callback = _build(name, config)
            if callback is not None:
                callback.check_settings(training_config)
            continue
        found = resolve_target(target, where=f"callbacks.{name}._target_")
        if isinstance(found, type) and not issubclass(found, Callback):
            raise _no_callback(name, target, found)
        check_arguments(config)


def _call(
    function: Callable[..., object], where: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    try:
        function(*args, **kwargs)
    except SystemExit as stop:
        if type(stop) is not SystemExit:  # a signal that came while the callback ran
            raise
        message = (
            f"{where} called for the end of the program (SystemExit {stop.code!r}), which ended "
            f"the run before its last step; raise another exception for an error, or return"
        )
        raise CallbackExitError(message) from stop


def _no_callback(name: str, target: object, found: type) -> TargetTypeError:
    message = (
        f"callbacks.{name}: expected a Callback, but {target} gives {found.__name__}; derive it "
        f"from fastvideo.train.callbacks.Callback"
    )
    return TargetTypeError(message)


def _build(name: str, config: object) -> Callback | None:
    if not isinstance(config, Mapping):
        message = (
            f"Expected mapping at callbacks.{name}, got {type(config).__name__} {config!r}; "
            f"write  {name}: {{}}  for the defaults, or leave it out"
        )
        raise ConfigError(message)
    target = config.get("_target_", _BUILTIN_CALLBACKS.get(name))
    if target is None:
        logger.warning(
            "callbacks.%s is missing _target_ and is no built-in callback (%s); it is skipped.%s",
            name,
            ", ".join(_BUILTIN_CALLBACKS),
            did_you_mean(name, _BUILTIN_CALLBACKS),
        )
        return None
    callback = instantiate({**config, "_target_": target})
    if not isinstance(callback, Callback):
        raise _no_callback(name, target, type(callback))
    return callback
