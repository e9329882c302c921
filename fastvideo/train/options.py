"""Reading values that people wrote: casts for typed keys, and lookups for free sections.

The `as_*` functions turn one value into a type or raise; the `get_*` and `require_*` functions look
a key up in a mapping such as `cfg.method`. Every failure is a `ConfigError` (a `ValueError`) that
names the YAML path, what was expected and what was given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
_PAIR = 2


def reject_value(where: str, expected: str, value: object, hint: str = "") -> NoReturn:
    """Raises the one error that a wrong value gets.

    Args:
        where: YAML path of the value, such as `training.data.seed`.
        expected: What the value should have been, as a noun phrase.
        value: What was given instead.
        hint: Text to append, such as a suggestion; starts with a blank.

    Raises:
        ConfigError: Always.
    """
    message = f"{where}: expected {expected}, got {value!r} ({type(value).__name__}).{hint}"
    raise ConfigError(message)


def as_mapping(value: object, *, where: str) -> dict[str, Any]:
    """Returns a shallow copy of `value` with text keys.

    Raises:
        ConfigError: `value` is not a mapping, or one of its keys is not text.
    """
    if not isinstance(value, Mapping):
        message = f"Expected mapping at {where}, got {value!r} ({type(value).__name__})."
        raise ConfigError(message)
    for key in value:
        if not isinstance(key, str):
            reject_value(where, "keys that are text", key, " Put the key in quotes.")
    return dict(value)


def as_bool(value: object, *, where: str) -> bool:
    """Returns `value` as a truth value; accepts 0, 1 and the usual words.

    Raises:
        ConfigError: `value` is anything else.
    """
    if isinstance(value, bool):
        return value
    folded = str(value).strip().lower()
    if isinstance(value, int | str) and folded in _TRUE:
        return True
    if isinstance(value, int | str) and folded in _FALSE:
        return False
    reject_value(where, "true or false", value)


def as_int(value: object, *, where: str) -> int:
    """Returns `value` as a whole number; accepts `4.0` and `"4"`, refuses truth values.

    Raises:
        ConfigError: `value` is anything else.
    """
    if isinstance(value, bool):
        reject_value(where, "a whole number", value)
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    number = _number(value)
    if number is None or not number.is_integer():
        reject_value(where, "a whole number", value)
    return int(number)


def as_float(value: object, *, where: str) -> float:
    """Returns `value` as a finite number; accepts `"1e-3"`, refuses truth values.

    Raises:
        ConfigError: `value` is anything else, or not finite.
    """
    number = None if isinstance(value, bool) else _number(value)
    if number is None or not math.isfinite(number):
        reject_value(where, "a finite number", value)
    return number


def as_text(value: object, *, where: str) -> str:
    """Returns `value` as text; a number that YAML made of a name is turned back.

    Raises:
        ConfigError: `value` is a truth value, a list or a mapping.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        reject_value(where, "text", value, " Put it in quotes.")
    return str(value)


def as_betas(value: object, *, where: str) -> tuple[float, float]:
    """Returns AdamW betas from a pair or from the text `"b1,b2"`, each in [0, 1).

    Raises:
        ConfigError: `value` is not two such numbers.
    """
    expected = "two numbers in [0, 1), such as [0.9, 0.999] or '0.9,0.999'"
    parts = value.strip("[]() ").split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) != _PAIR:
        reject_value(where, expected, value)
    first, second = (None if isinstance(part, bool) else _number(part) for part in parts)
    if first is None or second is None or not (0.0 <= first < 1.0 and 0.0 <= second < 1.0):
        reject_value(where, expected, value)
    return first, second


def as_choice(value: object, choices: Sequence[str], *, where: str) -> str:
    """Returns `value` if it is one of `choices`.

    Raises:
        ConfigError: It is not; the message lists the choices and the nearest one.
    """
    if isinstance(value, str) and value in choices:
        return value
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    reject_value(where, f"one of {', '.join(choices)}", value, hint)


def get_optional_int(
    mapping: Mapping[str, Any],
    key: str,
    *,
    default: int | None = None,
    where: str = "",
) -> int | None:
    """Returns `mapping[key]` as a whole number, or `default` if it is absent or null.

    Args:
        mapping: Where to look, such as `cfg.method`.
        key: The key.
        default: What an absent or null value means.
        where: YAML path of the mapping or of the value itself, for the message.

    Raises:
        ConfigError: The value is not a whole number.
    """
    value = mapping.get(key)
    return default if value is None else as_int(value, where=_path(where, key))


def get_optional_float(
    mapping: Mapping[str, Any],
    key: str,
    *,
    default: float | None = None,
    where: str = "",
) -> float | None:
    """Returns `mapping[key]` as a finite number, or `default` if it is absent or null.

    Arguments are those of `get_optional_int`.

    Raises:
        ConfigError: The value is not a finite number.
    """
    value = mapping.get(key)
    return default if value is None else as_float(value, where=_path(where, key))


def parse_betas(
    mapping: Mapping[str, Any],
    key: str,
    *,
    default: tuple[float, float] | None = None,
    where: str = "",
) -> tuple[float, float]:
    """Returns `mapping[key]` as AdamW betas.

    Arguments are those of `get_optional_int`; without a default the key is required.

    Raises:
        ConfigError: The value is missing or not two numbers in [0, 1).
    """
    return as_betas(_required(mapping, key, default, where), where=_path(where, key))


def require_positive_int(
    mapping: Mapping[str, Any],
    key: str,
    *,
    default: int | None = None,
    where: str = "",
) -> int:
    """Returns `mapping[key]` as a whole number of at least 1.

    Arguments are those of `get_optional_int`; without a default the key is required.

    Raises:
        ConfigError: The value is missing or anything else.
    """
    return _require_int(mapping, key, default, where, at_least=1)


def require_non_negative_int(
    mapping: Mapping[str, Any],
    key: str,
    *,
    default: int | None = None,
    where: str = "",
) -> int:
    """Returns `mapping[key]` as a whole number of at least 0.

    Arguments are those of `get_optional_int`; without a default the key is required.

    Raises:
        ConfigError: The value is missing or anything else.
    """
    return _require_int(mapping, key, default, where, at_least=0)


def require_non_negative_float(
    mapping: Mapping[str, Any],
    key: str,
    *,
    default: float | None = None,
    where: str = "",
) -> float:
    """Returns `mapping[key]` as a finite number of at least 0.

    Arguments are those of `get_optional_int`; without a default the key is required.

    Raises:
        ConfigError: The value is missing or anything else.
    """
    path = _path(where, key)
    number = as_float(_required(mapping, key, default, where), where=path)
    if number < 0.0:
        reject_value(path, "a number of at least 0", number)
    return number


def require_choice(
    mapping: Mapping[str, Any],
    key: str,
    choices: Sequence[str],
    *,
    default: str | None = None,
    where: str = "",
) -> str:
    """Returns `mapping[key]`, which must be one of `choices`; blanks and case are ignored.

    Other arguments are those of `get_optional_int`; without a default the key is required.

    Raises:
        ConfigError: The value is missing or not among the choices.
    """
    value = _required(mapping, key, default, where)
    if isinstance(value, str):
        value = value.strip().lower()
    return as_choice(value, choices, where=_path(where, key))


def require_bool(
    mapping: Mapping[str, Any],
    key: str,
    *,
    default: bool | None = None,
    where: str = "",
) -> bool:
    """Returns `mapping[key]` as a truth value.

    Arguments are those of `get_optional_int`; without a default the key is required.

    Raises:
        ConfigError: The value is missing or neither true nor false.
    """
    return as_bool(_required(mapping, key, default, where), where=_path(where, key))


def _require_int(
    mapping: Mapping[str, Any],
    key: str,
    default: int | None,
    where: str,
    *,
    at_least: int,
) -> int:
    path = _path(where, key)
    number = as_int(_required(mapping, key, default, where), where=path)
    if number < at_least:
        reject_value(path, f"a whole number of at least {at_least}", number)
    return number


def _required(mapping: Mapping[str, Any], key: str, default: object, where: str) -> object:
    value = mapping.get(key)
    if value is None:
        value = default
    if value is None:
        message = f"{_path(where, key)} is required and missing.{did_you_mean(key, mapping)}"
        raise ConfigError(message)
    return value


def _path(where: str, key: str) -> str:
    """Callers name either the mapping or the value; both end in the key exactly once."""
    if not where or where == key or where.endswith(f".{key}"):
        return where or key
    return f"{where}.{key}"


def _number(value: object) -> float | None:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None
