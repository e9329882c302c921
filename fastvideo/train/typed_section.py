"""From mappings to the dataclasses of `fastvideo.train.config`, and the paths that they define.

A field's type annotation says how its value is cast; its metadata says what else must hold:
`choices`, `at_least`, `at_most`, `lower` (fold case first), `idle` (no effect in this version),
and `derived` (not a key of the file). The reference page reads these too, and besides `unit`,
`allowed` (what is checked elsewhere) and `default` (what an unset value becomes).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, get_type_hints

from fastvideo.errors import did_you_mean
from fastvideo.logger import init_logger
from fastvideo.train.config import DataPath
from fastvideo.train.options import (
    as_betas,
    as_bool,
    as_choice,
    as_float,
    as_int,
    as_mapping,
    as_text,
    reject_value,
)

logger = init_logger(__name__)

Section = TypeVar("Section")


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One typed key of the run file.

    Attributes:
        path: Its dotted path.
        hint: The type annotation of its field.
        metadata: The metadata of its field.
    """

    path: str
    hint: Any
    metadata: Mapping[str, Any]

    @property
    def is_text(self) -> bool:
        """Whether the key may hold text, so that a value like `007` is a name and no number."""
        return self.hint in {str, str | None, DataPath} and "choices" not in self.metadata

    @property
    def is_mapping(self) -> bool:
        """Whether any key may follow below this one."""
        return bool(self.hint == dict[str, Any])


def build_section(cls: type[Section], raw: object, *, where: str) -> Section:
    """Builds a dataclass from the mapping a run file holds for it.

    A null or missing value means the default. An unknown key is one warning with the nearest
    known key, because files written for another version must still run.

    Args:
        cls: The dataclass.
        raw: The mapping, or None for all defaults.
        where: Its YAML path.

    Raises:
        ConfigError: `raw` is no mapping, or a value is of the wrong type or out of range.
    """
    mapping = {} if raw is None else as_mapping(raw, where=where)
    hints = get_type_hints(cls)
    fields = {f.name: f for f in _own_fields(cls)}
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        path = f"{where}.{key}"
        field = fields.get(key)
        if field is None:
            logger.warning("unknown key %s is ignored.%s", path, did_you_mean(key, fields))
        elif dataclasses.is_dataclass(hints[key]):
            values[key] = build_section(hints[key], value, where=path)
        elif value is not None:
            values[key] = cast_leaf(value, Leaf(path, hints[key], field.metadata))
            if field.metadata.get("idle"):
                logger.warning("%s has no effect in this version", path)
    return cls(**values)


def leaves(cls: type[Any], *, where: str) -> Iterator[Leaf]:
    """Yields every typed key below a section, depth first in declaration order."""
    hints = get_type_hints(cls)
    for field in _own_fields(cls):
        path = f"{where}.{field.name}"
        if dataclasses.is_dataclass(hints[field.name]):
            yield from leaves(hints[field.name], where=path)
        else:
            yield Leaf(path, hints[field.name], field.metadata)


def cast_leaf(value: object, leaf: Leaf) -> Any:  # noqa: ANN401 - the type is the leaf's
    """Returns `value` in the type of its key.

    Raises:
        ConfigError: The value cannot be cast, is not among the choices or is out of range.
    """
    if isinstance(value, str) and leaf.metadata.get("lower"):
        value = value.strip().lower()
    choices = leaf.metadata.get("choices")
    if choices is not None:
        return as_choice(value, choices, where=leaf.path)
    result = _CASTS[leaf.hint](value, where=leaf.path)
    low, high = leaf.metadata.get("at_least"), leaf.metadata.get("at_most")
    if (low is not None and result < low) or (high is not None and result > high):
        bounds = f"a number of at least {low}" + ("" if high is None else f" and at most {high}")
        reject_value(leaf.path, bounds, value)
    return result


def _own_fields(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if not f.metadata.get("derived")]


def _as_text_list(value: object, *, where: str) -> list[str]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        reject_value(where, "a list of names", value)
    names = [as_text(item, where=where).strip() for item in items]
    return [name for name in names if name]


def _as_data_path(value: object, *, where: str) -> DataPath:
    if isinstance(value, Mapping):
        return {
            as_text(path, where=f"a path in {where}"): as_int(repeat, where=f"{where}.{path}")
            for path, repeat in value.items()
        }
    if isinstance(value, list | tuple):
        return [as_text(item, where=where) for item in value]
    if not isinstance(value, str):
        reject_value(where, "a path, a list of paths, or a mapping from path to repeat", value)
    return value


_CASTS: dict[Any, Callable[..., Any]] = {
    bool: as_bool,
    int: as_int,
    float: as_float,
    float | None: as_float,
    str: as_text,
    str | None: as_text,
    list[str]: _as_text_list,
    tuple[float, float]: as_betas,
    dict[str, Any]: as_mapping,
    DataPath: _as_data_path,
}
