"""Reads ``OTEL_*`` variables the way the specification asks: empty is unset, nothing raises.

A value that cannot be used is one warning and the default. Warnings name the variable and, unless
it may hold a secret, the value.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from fastvideo.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LONGEST_MS: Final = 86_400_000
_MAX_SHOWN: Final = 80


class OtelEnv:
    """The environment with YAML settings below it, and what was wrong with them.

    Args:
        environ: The environment; wins.
        below: Values of the same variables from a configuration file, by variable name.

    Attributes:
        problems: One sentence per value that could not be used.
    """

    def __init__(self, environ: Mapping[str, str], below: Mapping[str, str] | None = None) -> None:
        self._environ = environ
        self._below = below or {}
        self.problems: list[str] = []

    def text(self, *names: str) -> str | None:
        """Returns the value of the first of ``names`` that is set and not blank."""
        return self.named(*names)[1]

    def named(self, *names: str) -> tuple[str, str | None]:
        """Returns the first of ``names`` that is set, and its value; the last and None if none."""
        for source in (self._environ, self._below):
            for name in names:
                value = source.get(name, "").strip()
                if value:
                    return name, value
        return names[-1], None

    def whole(self, *names: str, default: int, minimum: int = 0) -> int:
        """Returns a whole number of at least ``minimum``."""
        name, value = self.named(*names)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            self.refuse(name, value, f"a whole number of at least {minimum}", default)
            return default
        return number

    def milliseconds(self, *names: str, default: int, minimum: int = 1) -> float:
        """Returns a duration in seconds, of a variable in milliseconds; a day at most."""
        number = self.whole(*names, default=default, minimum=minimum)
        if number > _LONGEST_MS:
            name, value = self.named(*names)
            self.refuse(name, str(value), f"at most {_LONGEST_MS} milliseconds, a day", default)
            number = default
        return number / 1000

    def share(self, *names: str, default: float) -> float:
        """Returns a number from 0 to 1."""
        name, value = self.named(*names)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0.0 <= number <= 1.0:
            self.refuse(name, value, "a number from 0 to 1", default)
            return default
        return number

    def flag(self, *names: str) -> bool:
        """Returns whether a variable says ``true``; by the specification no other word does."""
        name, value = self.named(*names)
        folded = (value or "false").lower()
        if folded not in {"true", "false"}:
            self.refuse(name, str(value), "true or false", "false")
        return folded == "true"

    def choice(self, *names: str, choices: Sequence[str], default: str) -> str:
        """Returns one of ``choices``, whatever the case it is written in."""
        name, value = self.named(*names)
        if value is None:
            return default
        folded = value.lower()
        if folded not in choices:
            expected = f"one of {', '.join(choices)}"
            self.refuse(name, value, expected, default, did_you_mean(folded, choices))
            return default
        return folded

    def file(self, *names: str) -> Path | None:
        """Returns the path of a file that can be read.

        Raises:
            UnreadableFileError: The variable names something that cannot be read.
        """
        name, value = self.named(*names)
        if value is None:
            return None
        path = Path(value)
        try:
            with path.open("rb"):
                return path
        except OSError as error:
            message = f"{name}={value!r} cannot be read ({error.strerror})"
            raise UnreadableFileError(message) from error

    def pairs(self, *names: str, secret: bool) -> dict[str, str]:
        """Returns the pairs of ``key=value,key=value``, percent-decoded.

        Args:
            *names: Variables, the first that is set counts.
            secret: Whether values must not be shown. Pairs that are malformed are then left out
                one by one; otherwise, as the specification says of resource attributes, one
                malformed pair discards them all.
        """
        name, value = self.named(*names)
        found: dict[str, str] = {}
        malformed = 0
        for part in (value or "").split(","):
            key, equals, raw = part.partition("=")
            key = unquote(key.strip())
            if equals and key:
                found[key] = unquote(raw.strip())
            elif part.strip():
                malformed += 1
        if malformed:
            kept = f"{len(found)} are used" if secret else "none is used"
            self.note(f"{name}: {malformed} parts are not of the form key=value; {kept}")
        return found if secret or not malformed else {}

    def refuse(self, name: str, value: str, expected: str, default: object, hint: str = "") -> None:
        """Notes a value that cannot be used."""
        shown = value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "..."
        self.note(f"{name}={shown!r}: expected {expected}; using {default}.{hint}")

    def note(self, problem: str) -> None:
        """Notes a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)


class UnreadableFileError(Exception):
    """A file that an export depends on cannot be read."""
