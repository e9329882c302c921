"""JSON that every reader accepts: what is written is strict, and what is read must be."""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn


def _reject_constant(token: str) -> NoReturn:
    message = f"{token} is not JSON"
    raise ValueError(message)


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def loads(text: str) -> Any:  # noqa: ANN401 - a JSON document has any shape
    """Parses ``text``, refusing the NaN and Infinity tokens that Python's parser lets through.

    Raises:
        ValueError: ``text`` is not strict JSON.
    """
    return _DECODER.decode(text)


def dumps(value: object) -> bytes:
    """Encodes ``value`` on one line of strict UTF-8 JSON, whatever it holds.

    Numbers that JSON does not have become strings (``"nan"``, ``"inf"``), and so do objects of
    types it does not have. What cannot even be made a string, or is nested too deeply, is named by
    its type.
    """
    try:
        text = json.dumps(value, allow_nan=False, default=str, ensure_ascii=False)
    except Exception:  # noqa: BLE001 - objects may raise anything when they are asked for a string
        text = json.dumps(_plain(value, _MAX_DEPTH), allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", "replace")


_MAX_DEPTH: Final = 32
_MAX_BITS: Final = 1024


def _plain(value: object, depth: int) -> object:
    """Returns ``value`` with everything that JSON has no word for turned into strings."""
    if depth == 0:
        return _name_of(value)
    if isinstance(value, dict):
        return {_text(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth - 1) for item in value]
    return _plain_number(value) if isinstance(value, (int, float)) else _plain_other(value)


def _plain_number(value: float) -> object:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:  # too long for int.__str__
        return f"<{type(value).__name__} of {value.bit_length()} bits>"
    if isinstance(value, float) and not math.isfinite(value):
        return float.__repr__(value)
    return value


def _plain_other(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - see above
        return _name_of(value)


def _name_of(value: object) -> str:
    return f"<{type(value).__name__}>"
