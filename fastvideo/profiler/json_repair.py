"""Makes strict JSON of what torch's native trace writer gets wrong.

It writes names and metadata as they are: quotes, tabs and control characters stay bare, bytes that
are no UTF-8 stay in, and numbers that do not exist are printed as ``nan`` or ``inf``. Where a
string ends can then only be told from what follows, and the writer's layout helps: it puts each
field of an event on a line of its own.
"""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"[-+]?(?:nan|inf(?:inity)?)\b(?:\([^)\s]*\))?", re.IGNORECASE)
_EVENT_KEY: Final = re.compile(r'\n {4}"[^"\n]*"\s*:\s*\Z')
_HEADER_KEY: Final = re.compile(r'\n {4,6}"[^"\n]*"\s*:\s*\Z')
_AFTER_KEY: Final = re.compile(r"\s*:")
_AFTER_ITEM: Final = re.compile(r'\s*(?:\]|,\s*(?:["\[{\-0-9]|true\b|false\b|null\b|nan\b|inf\b))')
_AFTER_FIELD: Final = re.compile(r'\s*(?:\}|,\s*"[^"\n]*"\s*:)')
_AFTER_LINE: Final = re.compile(r'[ \t]*,?[ \t]*\n\s*(?:,\s*)?(?:"|\})')
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_CONTROL: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}


def repair(text: str, *, header: bool = False) -> str:
    """Returns ``text`` with its strings escaped and its impossible numbers turned into null.

    The result is meant to be parsed: what cannot be made out stays wrong.

    Args:
        text: One JSON value that a strict parser refuses.
        header: Whether it is the header of a trace, whose fields are indented further than those
            of an event.
    """
    return _Repair(text, _HEADER_KEY if header else _EVENT_KEY).run()


class _Repair:
    """One pass over the text; knows for every string whether it is a key, a field or an item."""

    def __init__(self, text: str, line_key: re.Pattern[str]) -> None:
        self._text = text
        self._line_key = line_key
        self._out: list[str] = []
        self._open: list[str] = []
        self._key_next = False

    def run(self) -> str:
        text, position = self._text, 0
        while position < len(text):
            character = text[position]
            if character == '"':
                position = self._string(position)
                continue
            number = _NUMBER.match(text, position) if character in "nNiI+-" else None
            if number:
                self._out.append("null")
                position = number.end()
                continue
            self._structure(character)
            self._out.append(character)
            position += 1
        return "".join(self._out)

    def _structure(self, character: str) -> None:
        if character in "{[":
            self._open.append(character)
            self._key_next = character == "{"
        elif character in "}]":
            if self._open:
                self._open.pop()
            self._key_next = False
        elif character == ",":
            self._key_next = bool(self._open) and self._open[-1] == "{"
        elif character == ":":
            self._key_next = False

    def _string(self, start: int) -> int:
        """Copies the string that begins at ``start``; returns the position behind it."""
        end = self._end_of_string(start)
        self._out.append('"' + _escape(self._text[start + 1 : end]) + '"')
        return end + 1

    def _end_of_string(self, start: int) -> int:
        text = self._text
        if self._key_next:
            after = _AFTER_KEY
        elif self._open and self._open[-1] == "[":
            after = _AFTER_ITEM
        elif self._line_key.search(text, max(0, start - 200), start) and self._has_line_end(start):
            after = _AFTER_LINE
        else:
            after = _AFTER_FIELD
        fallback = -1
        end = text.find('"', start + 1)
        while end != -1:
            if after.match(text, end + 1):
                if after is _AFTER_LINE or not _is_escaped(text, start, end):
                    return end
                fallback = end if fallback == -1 else fallback
            end = text.find('"', end + 1)
        return fallback if fallback != -1 else len(text)

    def _has_line_end(self, start: int) -> bool:
        """Whether the field is the only one that begins on its line."""
        line_end = self._text.find("\n", start)
        return self._text[start:line_end].rstrip().endswith(('"', '",'))


def _is_escaped(text: str, start: int, quote: int) -> bool:
    """Whether an odd number of backslashes stands before the quote."""
    first = quote
    while first - 1 > start and text[first - 1] == "\\":
        first -= 1
    return (quote - first) % 2 == 1


def _escape(content: str) -> str:
    """Escapes the bare quotes, backslashes and control characters of a string's content."""
    out: list[str] = []
    position = 0
    while position < len(content):
        character = content[position]
        if character == "\\":
            escape = _ESCAPE.match(content, position)
            out.append(escape.group() if escape else "\\\\")
            position = escape.end() if escape else position + 1
            continue
        if character == '"':
            out.append('\\"')
        elif character < " ":
            out.append(_CONTROL.get(character, f"\\u{ord(character):04x}"))
        else:
            out.append(character)
        position += 1
    return "".join(out)
