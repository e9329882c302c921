"""Makes what call sites say about a region into what a span may carry.

Runs on the span worker. No value is ever asked for its text, since that may hold a secret, and no
tensor is read: reading one that lives on a device would make the device wait.
"""

from __future__ import annotations

import enum
import numbers
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.observability.tracing.records import AttributeValue
    from fastvideo.observability.tracing.settings import SpanLimits

_MAX_INT: Final = (1 << 63) - 1
_MAX_ITEMS: Final = 128
_OWN: Final = "fastvideo."

Scalar = str | bool | int | float


def coerce_attributes(
    attributes: Mapping[str, object], limits: SpanLimits
) -> tuple[dict[str, AttributeValue], int]:
    """Coerces the attributes of one entry.

    Args:
        attributes: As the call site gave them. Names without a dot are put under ``fastvideo.``;
            None is left out.
        limits: How many are kept, and how long texts may be.

    Returns:
        The attributes, and how many the limit left out.
    """
    coerced: dict[str, AttributeValue] = {}
    dropped = 0
    for name, value in attributes.items():
        if value is None:
            continue
        if len(coerced) >= limits.attributes:
            dropped += 1
            continue
        key = name if "." in name else _OWN + name
        coerced[_text(key, limits.value_length)] = coerce(value, limits.value_length)
    return coerced, dropped


def error_type(error: type[BaseException] | None) -> str | None:
    """Returns the name of an exception's type, qualified unless it is built in; None for None."""
    if error is None:
        return None
    if error.__module__ == "builtins":
        return error.__qualname__
    return f"{error.__module__}.{error.__qualname__}"


def coerce(value: object, max_length: int) -> AttributeValue:
    """Returns ``value`` as something OTLP knows.

    Numbers of numpy become Python's; sequences of plain values stay sequences; of anything else
    only the type is told, and of tensors also shape, type and device.

    Args:
        value: Anything.
        max_length: Most characters of a text.
    """
    if isinstance(value, list | tuple):
        return _sequence([_scalar(item, max_length) for item in value[:_MAX_ITEMS]])
    return _scalar(value, max_length)


def _scalar(value: object, max_length: int) -> Scalar:
    kind = type(value)
    if kind is str:
        return _text(value, max_length)  # type: ignore[arg-type]
    if kind is int or kind is float or kind is bool:
        return _bounded(value)  # type: ignore[arg-type]
    try:
        return _unusual(value, max_length)
    except Exception:  # noqa: BLE001 - a value whose own methods raise is told by its type
        return f"<{kind.__qualname__}>"


def _unusual(value: object, max_length: int) -> Scalar:
    if isinstance(value, str | PurePath | enum.Enum):
        return _text(_wording(value), max_length)
    if isinstance(value, numbers.Real):
        return _bounded(int(value)) if isinstance(value, numbers.Integral) else float(value)
    module, _, _ = type(value).__module__.partition(".")
    if module == "numpy" and type(value).__name__ in {"bool", "bool_"}:
        return bool(value)
    if module == "torch":
        return _torch(value)
    kind = value if isinstance(value, type) else type(value)
    return f"<{kind.__qualname__}>"


def _wording(value: str | PurePath | enum.Enum) -> str:
    """Returns the text of what is a text by nature."""
    if isinstance(value, enum.Enum):
        return value.name
    return str.__str__(value) if isinstance(value, str) else str(value)


def _torch(value: object) -> str:
    """Describes what belongs to torch: tensors by what they are, never by what they hold."""
    shape = getattr(value, "shape", None)
    if shape is None:
        named = type(value).__name__ in {"dtype", "device", "Size", "memory_format", "layout"}
        return str(value) if named else f"<{type(value).__qualname__}>"
    size = "x".join(str(int(extent)) for extent in shape)
    dtype, device = getattr(value, "dtype", "?"), getattr(value, "device", "?")
    return f"<{type(value).__name__} [{size}] {dtype} {device}>"


def _sequence(items: list[Scalar]) -> tuple[str, ...] | tuple[bool | int | float, ...]:
    """Returns items of one kind: numbers stay numbers only where all of them are."""
    if any(isinstance(item, str) for item in items):
        return tuple(item if isinstance(item, str) else str(item) for item in items)
    return tuple(item for item in items if not isinstance(item, str))


def _bounded(value: bool | float) -> Scalar:  # noqa: FBT001 - a value, not a switch
    """Returns a number, or its text where OTLP's 64 bits do not hold it."""
    if isinstance(value, int) and not -_MAX_INT - 1 <= value <= _MAX_INT:
        return hex(value)[:_MAX_ITEMS]
    return value


def _text(value: str, max_length: int) -> str:
    """Returns at most ``max_length`` characters, without the surrogates that UTF-8 cannot hold."""
    cut = value[:max_length]
    if cut.isascii():
        return cut
    return cut.encode("utf-8", "replace").decode("utf-8")
