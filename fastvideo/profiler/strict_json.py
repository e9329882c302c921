"""JSON that every reader accepts: what is written is strict, and what is read must be."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


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
    types it does not have.
    """
    try:
        text = json.dumps(value, allow_nan=False, default=str, ensure_ascii=False)
    except (TypeError, ValueError):
        text = json.dumps(_plain(value), allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _plain(value: object) -> object:
    """Returns ``value`` with everything that JSON has no word for turned into strings."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)
