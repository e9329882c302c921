"""The tensors in what a module returns, with names that say where they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_DEPTH: Final = 8


def named_tensors(output: Any) -> tuple[tuple[str, Tensor], ...]:  # noqa: ANN401 - any output
    """Returns the tensors of an output: ``out``, ``out[0]``, ``out.sample``, ``out.states[1]``.

    Mappings (which outputs of diffusers are), dataclasses and named tuples are walked by the names
    of their fields, lists and tuples by position. Other objects have no tensors.

    Args:
        output: What a module returned.
    """
    if isinstance(output, Tensor):
        return (("out", output),)
    return tuple(_walk(output, "out", _MAX_DEPTH))


def _walk(value: Any, name: str, depth: int) -> Iterator[tuple[str, Tensor]]:  # noqa: ANN401
    if isinstance(value, Tensor):
        yield name, value
        return
    if depth:
        for part, item in _parts(value):
            yield from _walk(item, name + part, depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yields the members of a container; in the order of its declaration."""
    if isinstance(value, Mapping):
        yield from ((f".{key}", item) for key, item in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{field}", item) for field, item in zip(value._fields, value, strict=False))
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name, None)
