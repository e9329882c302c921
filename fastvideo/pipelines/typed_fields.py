"""Dataclasses filled from mappings: run files, requests and keyword arguments.

Every error names the path of the field, as it is written in a run file or on the command line.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from typing import NoReturn

    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_NAMES: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


def field_names(cls: type[DataclassInstance]) -> list[str]:
    """Returns the names of a dataclass's fields, in order."""
    return [field.name for field in dataclasses.fields(cls)]


def from_mapping(cls: type[T], values: object, *, where: str) -> T:
    """Builds a dataclass from a mapping, nested dataclasses included.

    Args:
        cls: The dataclass.
        values: Values by field name. Numbers and flags may be given as text.
        where: Path of the mapping, for messages; "" at the root.

    Raises:
        ConfigError: It is no mapping, or a field is unknown, missing, or of the wrong type.
    """
    if not isinstance(values, Mapping):
        fail(where or "the configuration", f"expected a mapping, got {values!r}")
    checked = checked_values(cls, values, where=where)
    for field in dataclasses.fields(cls):
        absent = field.default is dataclasses.MISSING and (
            field.default_factory is dataclasses.MISSING
        )
        if absent and field.name not in checked:
            fail(_join(where, field.name), "missing required field")
    return cls(**checked)


def checked_values(
    cls: type[DataclassInstance], values: Mapping[str, Any], *, where: str
) -> dict[str, Any]:
    """Returns the values with the types of a dataclass's fields.

    Args:
        cls: The dataclass.
        values: Values of some of its fields, by name.
        where: Path of the mapping, for messages.

    Raises:
        ConfigError: A name is unknown, or a value is of the wrong type.
    """
    hints = get_type_hints(cls)
    known = field_names(cls)
    unknown = [name for name in values if name not in known]
    if unknown:
        more = f" (as are {', '.join(map(str, unknown[1:]))})" if len(unknown) > 1 else ""
        hint = did_you_mean(str(unknown[0]), known)
        fail(_join(where, unknown[0]), f"unknown field{more}.{hint} Known: {', '.join(known)}")
    return {
        name: checked_value(value, hints[name], where=_join(where, name))
        for name, value in values.items()
    }


def checked_value(value: object, kind: Any, *, where: str) -> Any:  # noqa: ANN401 - any type
    """Returns a value as the type that its field has.

    Args:
        value: What was given.
        kind: The field's annotation: a plain type, a dataclass, a literal, a list, a mapping, or
            one of these or None.
        where: Path of the field, for messages.

    Raises:
        ConfigError: The value cannot be used.
    """
    origin = get_origin(kind)
    if origin in {types.UnionType, Union}:
        return _checked_union(value, get_args(kind), where=where)
    if origin is Literal:
        if value not in get_args(kind):
            fail(where, f"expected one of {list(get_args(kind))}, got {value!r}")
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else from_mapping(kind, value, where=where)
    if origin is list:
        return _checked_list(value, get_args(kind)[0], where=where)
    if origin is dict:
        if not isinstance(value, Mapping):
            fail(where, f"expected a mapping, got {value!r}")
        return dict(value)
    return _checked_plain(value, kind, where=where)


def expanded(path: str | Path, *, where: str) -> Path:
    """Returns a path with the home directory in place of ``~``.

    Args:
        path: As it was given.
        where: What it is called, for messages.

    Raises:
        ConfigError: There is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        fail(where, f"there is no such user in {str(path)!r}")


def fail(where: str, what: str) -> NoReturn:
    """Raises the error of a field.

    Args:
        where: Path of the field.
        what: What is wrong with it.

    Raises:
        ConfigError: Always.
    """
    message = f"{where}: {what}"
    raise ConfigError(message)


def _checked_union(value: object, kinds: tuple[Any, ...], *, where: str) -> object:
    if value is None and type(None) in kinds:
        return None
    if isinstance(value, str) and value.lower() in {"none", "null"} and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    for kind in rest[:-1]:
        try:
            return checked_value(value, kind, where=where)
        except ConfigError:
            continue
    if len(rest) > 1 and not isinstance(value, list | tuple):
        names = " or ".join(_NAMES.get(kind, "a list") for kind in rest)
        fail(where, f"expected {names}, got {value!r}")
    return checked_value(value, rest[-1], where=where)


def _checked_list(value: object, kind: object, *, where: str) -> list[Any]:
    if isinstance(value, str) and kind is not str:
        value = value.strip("[] ").replace(",", " ").split()
    if not isinstance(value, list | tuple):
        fail(where, f"expected a list, got {value!r}")
    return [checked_value(item, kind, where=f"{where}[{at}]") for at, item in enumerate(value)]


def _checked_plain(value: object, kind: Any, *, where: str) -> object:  # noqa: ANN401
    if kind is bool:
        if isinstance(value, str) and value.lower() in {"true", "false"}:
            return value.lower() == "true"
        if isinstance(value, bool):
            return value
    elif kind is int or kind is float:
        number = _number(value)
        if number is not None and (kind is float or number.is_integer()):
            return int(value) if kind is int else number  # type: ignore[call-overload]
    elif kind is str:
        if isinstance(value, str):
            return value
    else:
        return value
    return fail(where, f"expected {_NAMES[kind]}, got {value!r}")


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _join(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)
