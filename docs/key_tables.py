"""Makes tables of keys from the code that reads them.

Types and defaults are those of dataclass fields and of constructors' parameters, meanings those of
their docstrings' sections `Attributes` and `Args`. What a field may hold, its unit, and what an
unset one becomes stand in the field's metadata; a parameter has such a mapping in `Annotated`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fastvideo.train.config import TrainingConfig

REQUIRED = "required"

_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "text"}
_COLUMNS = ("key", "type", "default", "allowed", "unit", "meaning")
_TYPING: dict[str, Any] = {"Mapping": Mapping, "TrainingConfig": TrainingConfig}
"""What modules import for their annotations alone."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A row of the page.

    Attributes:
        key: Its dotted path.
        type: What is written there.
        default: What an unset one is, as YAML in backticks or in words; or that there must be one.
        allowed: The values that are accepted, or "".
        unit: Unit of the number, or "".
        meaning: What it does.
    """

    key: str
    type: str
    default: str
    allowed: str
    unit: str
    meaning: str


def key_of(path: str, hint: object, default: object, notes: Mapping[str, Any], meaning: str) -> Key:
    """Returns the row of a key.

    Args:
        path: The dotted path.
        hint: Its type annotation.
        default: Its default value; `REQUIRED` if there is none.
        notes: Metadata of its field, or what `Annotated` says of its parameter.
        meaning: Its description in a docstring.
    """
    shown = default if default == REQUIRED else f"`{as_yaml(default)}`"
    return Key(
        key=path,
        type=notes.get("type") or type_name(hint),
        default=notes.get("default", shown),
        allowed=allowed(hint, notes),
        unit=notes.get("unit", ""),
        meaning=meaning,
    )


def keys_of_fields(
    cls: type[Any],
    where: str,
    *,
    only: tuple[str, ...] = (),
    defaults: Mapping[str, object] | None = None,
) -> list[Key]:
    """Returns the rows of a dataclass's fields.

    Args:
        cls: The dataclass.
        where: Path of the section that it is filled from.
        only: The fields to take; all but nested sections when empty.
        defaults: Defaults of fields that the dataclass itself gives none.
    """
    hints = get_type_hints(cls, localns=_TYPING)
    meanings = described(cls, "Attributes")
    rows = []
    for field in dataclasses.fields(cls):
        if field.metadata.get("derived") or dataclasses.is_dataclass(hints[field.name]):
            continue
        if only and field.name not in only:
            continue
        default: object = REQUIRED
        if defaults is not None:
            default = defaults[field.name]
        elif field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        path = f"{where}.{field.name}"
        rows.append(key_of(path, hints[field.name], default, field.metadata, meanings[field.name]))
    return rows


def keys_of_parameters(cls: type[Any], where: str, *, given: tuple[str, ...] = ()) -> list[Key]:
    """Returns the rows of a constructor's parameters.

    Args:
        cls: A class that a `_target_` names.
        where: Path of the mapping that has the `_target_`.
        given: Parameters that are no keys.
    """
    hints = get_type_hints(cls.__init__, localns=_TYPING, include_extras=True)
    meanings = described(cls, "Args")
    rows = []
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if name in given or parameter.kind is parameter.VAR_KEYWORD:
            continue
        hint, notes = hints[name], {}
        if get_origin(hint) is Annotated:
            hint, notes = get_args(hint)
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        rows.append(key_of(f"{where}.{name}", hint, default, notes, meanings[name]))
    return rows


def described(cls: type[Any], section: str) -> dict[str, str]:
    """Returns the descriptions in a section of a class's docstring, by name.

    Args:
        cls: The class.
        section: `Attributes` or `Args`.
    """
    text = inspect.getdoc(cls) or ""
    found = re.search(rf"^{section}:\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
    entries = re.split(r"^    (?! )", found[1] if found else "", flags=re.MULTILINE)
    pairs = (entry.partition(":") for entry in entries if entry.strip())
    return {name.strip("* "): plain(meaning) for name, _, meaning in pairs}


def introduced(cls: type[Any]) -> str:
    """Returns what a class's docstring says before its first section."""
    text = inspect.getdoc(cls) or ""
    before = re.split(r"^(?:Args|Attributes|Raises):$", text, maxsplit=1, flags=re.MULTILINE)[0]
    return "\n\n".join(plain(paragraph) for paragraph in before.strip().split("\n\n"))


def plain(text: str) -> str:
    """Returns docstring text as one line of Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r"\bNone\b", "null", " ".join(text.split()).replace("``", "`"))
    return re.sub(r"\b(FASTVIDEO_[A-Z_]+)\b", r"`\1`", text)


def type_name(hint: object) -> str:
    """Returns a type in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {types.UnionType, Union}:
        names = [type_name(one) for one in inner if one is not type(None)]
        return " or ".join(names)
    if origin is Literal:
        return "text"
    if origin in {list, tuple}:
        number = "two " if origin is tuple and Ellipsis not in inner else "list of "
        return f"{number}{type_name(inner[0])}s"
    return _NAMES.get(hint, "mapping")


def allowed(hint: object, notes: Mapping[str, Any]) -> str:
    """Returns the values that a key may have; "" for all of its type."""
    stated = notes.get("allowed") or notes.get("choices") or ()
    for one in (hint, *get_args(hint)):
        if get_origin(one) is Literal:
            stated = get_args(one)
    if isinstance(stated, str):
        return stated
    if stated:
        return ", ".join(f"`{as_yaml(value)}`" for value in stated)
    low, high = notes.get("at_least"), notes.get("at_most")
    if low is None:
        return ""
    return f"at least {low:g}" if high is None else f"{low:g} to {high:g}"


def as_yaml(value: object) -> str:
    """Returns a value as it is written in a run file."""
    if isinstance(value, str):
        return value or '""'
    return json.dumps(value)


def table(rows: list[Key]) -> list[str]:
    """Returns the lines of a table; columns that would be empty are left out."""
    columns = [name for name in _COLUMNS if any(getattr(row, name) for row in rows)]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = dataclasses.asdict(row) | {"key": f"`{row.key}`"}
        lines.append("| " + " | ".join(cells[name].replace("|", "\\|") for name in columns) + " |")
    return lines


def section(title: str, text: str, rows: list[Key], *, level: int = 2) -> list[str]:
    """Returns the lines of a section of the page."""
    return ["#" * level + f" {title}", "", text, "", *table(rows), ""]
