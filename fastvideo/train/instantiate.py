"""Building objects that a run file names by `_target_`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from fastvideo.errors import ConfigError, FastVideoError, MissingExtraError, did_you_mean, nearest

TARGET = "_target_"

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class TargetImportError(FastVideoError, ImportError):
    """A `_target_` names something that does not exist or cannot be imported."""


class TargetTypeError(FastVideoError, TypeError):
    """What a `_target_` names is of another kind, or cannot be called with the given keys."""


def resolve_target(target: object, *, where: str = TARGET) -> Any:  # noqa: ANN401 - of any kind
    """Imports what a dotted path names.

    Args:
        target: Such as `"fastvideo.train.models.wan.WanModel"`.
        where: Key it comes from, for messages.

    Raises:
        ConfigError: (a `ValueError`) `target` is not text with at least one dot.
        ImportError: The module cannot be imported or has no such attribute; the message names both
            and the nearest match.
    """
    if not isinstance(target, str) or not all(target.split(".")) or "." not in target:
        message = f"{where} must be a dotted path 'package.module.Class', got {target!r}"
        raise ConfigError(message)
    module_name, _, attribute = target.rpartition(".")
    module = _import(module_name, target, where)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        public = [name for name in dir(module) if not name.startswith("_")]
        message = (
            f"{where} {target!r}: module {module_name!r} has no attribute {attribute!r}."
            f"{did_you_mean(attribute, public)}"
        )
        raise TargetImportError(message, name=module_name) from error


def instantiate(cfg: object, **extra: Any) -> Any:  # noqa: ANN401 - arguments of any target
    """Calls what `cfg["_target_"]` names with the other keys of `cfg` and `extra`.

    Keys the constructor does not take are left out with one warning that lists them, so that a
    file written for another version still runs. `extra` wins over `cfg`.

    Args:
        cfg: A mapping with `_target_`.
        **extra: More keyword arguments.

    Raises:
        TypeError: `cfg` is no mapping, or a required argument is missing.
        KeyError: `cfg` has no `_target_`.
        ConfigError: `_target_` is not a dotted path, or names nothing that can be called.
        ImportError: `_target_` names nothing that exists.
    """
    if not isinstance(cfg, Mapping):
        message = f"expected a mapping with {TARGET!r}, got {cfg!r} ({type(cfg).__name__})"
        raise TargetTypeError(message)
    if TARGET not in cfg:
        message = f"{TARGET!r} is missing; the mapping has {sorted(map(str, cfg))}"
        raise KeyError(message)
    factory = _factory(cfg)
    arguments = {key: value for key, value in cfg.items() if key != TARGET} | extra
    return factory(**_accepted(factory, arguments, str(cfg[TARGET])))


def check_arguments(cfg: Mapping[str, Any]) -> None:
    """Compares the keys of a mapping with the arguments of what its `_target_` names.

    Args:
        cfg: A mapping with `_target_`.

    Raises:
        TypeError: A required argument is missing.
        ConfigError: `_target_` is not a dotted path, or names nothing that can be called.
        ImportError: `_target_` names nothing that exists.
    """
    arguments = {key: value for key, value in cfg.items() if key != TARGET}
    _accepted(_factory(cfg), arguments, str(cfg[TARGET]))


def accepts_argument(factory: Callable[..., object], name: str) -> bool:
    """Tells whether a class or function takes a keyword argument called `name`."""
    named, takes_any = _parameters(factory)
    return takes_any or name in named


def _factory(cfg: Mapping[str, Any]) -> Callable[..., Any]:
    factory = resolve_target(cfg[TARGET])
    if not callable(factory):
        message = f"{TARGET} {cfg[TARGET]!r} is {factory!r}, which cannot be called"
        raise ConfigError(message)
    return cast("Callable[..., Any]", factory)


def _accepted(
    factory: Callable[..., object],
    arguments: dict[str, Any],
    target: str,
) -> dict[str, Any]:
    named, takes_any = _parameters(factory)
    if not takes_any:
        unknown = [key for key in arguments if key not in named]
        if unknown:
            _warn_dropped(target, unknown, named)
            arguments = {key: arguments[key] for key in arguments if key in named}
    missing = [
        name
        for name, parameter in named.items()
        if parameter.default is inspect.Parameter.empty and name not in arguments
    ]
    if missing:
        message = f"{target} needs {', '.join(map(repr, missing))}; given: {sorted(arguments)}"
        raise TargetTypeError(message)
    return arguments


def _parameters(factory: Callable[..., object]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Returns the named parameters, and whether any other keyword is taken too."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some built-in types have no signature to read
        return {}, True
    named = {name: p for name, p in parameters.items() if p.kind in _NAMED}
    return named, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _warn_dropped(target: str, unknown: Iterable[str], named: Iterable[str]) -> None:
    names = list(named)
    matches = {key: nearest(key, names) for key in unknown}
    listed = ", ".join(
        repr(key) + (f" (did you mean {match!r}?)" if match else "")
        for key, match in matches.items()
    )
    warnings.warn(f"{target} does not take {listed}; ignored", UserWarning, stacklevel=4)


def _import(name: str, target: str, where: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(name)
    except MissingExtraError:
        raise  # says already what to install
    except ImportError as error:
        attribute = target.rpartition(".")[2]
        message = (
            f"{where} {target!r}: cannot import module {name!r} (for {attribute!r}): {error}."
            f"{_nearest_module(name)}"
        )
        raise TargetImportError(message, name=name) from error


def _nearest_module(name: str) -> str:
    """Suggests a module beside the first part of `name` that does not exist."""
    parent = None
    done: list[str] = []
    for part in name.split("."):
        try:
            parent = importlib.import_module(".".join([*done, part]))
        except ImportError:
            paths = getattr(parent, "__path__", None) if done else None
            siblings = [module.name for module in pkgutil.iter_modules(paths)] if paths else []
            match = nearest(part, siblings)
            return f" Did you mean {'.'.join([*done, match])!r}?" if match else ""
        done.append(part)
    return ""
