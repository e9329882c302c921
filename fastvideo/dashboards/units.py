"""Writes numbers the way Grafana does, by its unit ids, such as ``s`` or ``percentunit``."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS: Final = (
    (1e-6, 1e-9, " ns"),
    (1e-3, 1e-6, " µs"),
    (1.0, 1e-3, " ms"),
    (60.0, 1.0, " s"),
    (3600.0, 60.0, " mins"),
    (86400.0, 3600.0, " hours"),
    (604800.0, 86400.0, " days"),
    (math.inf, 604800.0, " weeks"),
)
"""Below which number of seconds, what a second is divided by, and the word for it."""

_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_SHORT: Final = ("", " K", " Mil", " Bil", " Tri")

_SCALED: Final = {
    "bytes": (1024.0, tuple(f" {word}" for word in _BINARY)),
    "decbytes": (1000.0, tuple(f" {word}" for word in _DECIMAL)),
    "binBps": (1024.0, tuple(f" {word}/s" for word in _BINARY)),
    "Bps": (1000.0, tuple(f" {word}/s" for word in _DECIMAL)),
    "short": (1000.0, _SHORT),
    "hertz": (1000.0, (" Hz", " kHz", " MHz", " GHz")),
    "flops": (1000.0, (" FLOPS", " kFLOPS", " MFLOPS", " GFLOPS", " TFLOPS", " PFLOPS")),
    "ops": (1000.0, (" ops/s", "K ops/s", "M ops/s")),
    "reqps": (1000.0, (" req/s", "K req/s", "M req/s")),
    "cps": (1000.0, (" c/s", "K c/s", "M c/s")),
    "wps": (1000.0, (" wr/s", "K wr/s", "M wr/s")),
    "iops": (1000.0, (" io/s", "K io/s", "M io/s")),
}


def format_value(value: float, unit: str = "none", decimals: int | None = None) -> str:
    """Returns a number with its unit.

    Args:
        value: In the unit, such as seconds for ``s`` and 0.5 for ``percentunit``.
        unit: Grafana's id of the unit; ``suffix: x`` writes " x" behind the number.
        decimals: Digits after the point; as many as give three significant ones when None.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    prefix, colon, word = unit.partition(":")
    if colon and prefix == "suffix":
        return f"{_number(value, decimals)} {word.strip()}"
    if unit in _SCALED:
        return _scaled(value, *_SCALED[unit], decimals)
    return _WRITERS.get(unit, _number)(value, decimals)


def _seconds(value: float, decimals: int | None) -> str:
    if value == 0:
        return "0 s"
    for below, divisor, word in _SECONDS:
        if abs(value) < below:
            return _number(value / divisor, decimals) + word
    raise AssertionError  # the last bound is infinite


def _scaled(value: float, base: float, words: tuple[str, ...], decimals: int | None) -> str:
    index = 0
    while abs(value) >= base and index < len(words) - 1:
        value /= base
        index += 1
    return _number(value, decimals) + words[index]


def _ago(milliseconds: float, decimals: int | None) -> str:
    seconds = time.time() - milliseconds / 1000
    return f"{_seconds(abs(seconds), decimals or 0)} {'ago' if seconds >= 0 else 'from now'}"


def _date(milliseconds: float, decimals: int | None) -> str:
    del decimals
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _clock(seconds: float, decimals: int | None) -> str:
    del decimals
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest:02d}"


def _exponent(value: float, decimals: int | None) -> str:
    if value == 0:
        return "0"
    number, _, power = f"{value:.{2 if decimals is None else decimals}e}".partition("e")
    if decimals is None and "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number}e{int(power):+d}"


def _grouped(value: float, decimals: int | None) -> str:
    return f"{value:,.{_decimals(value) if decimals is None else decimals}f}"


def _number(value: float, decimals: int | None) -> str:
    digits = _decimals(value) if decimals is None else decimals
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _decimals(value: float) -> int:
    """Returns how many digits behind the point give three significant ones."""
    if value == 0 or value == round(value):
        return 0
    return min(10, max(0, 2 - math.floor(math.log10(abs(value)))))


def _times(factor: float) -> Callable[[float, int | None], str]:
    return lambda value, decimals: _seconds(factor * value, decimals)


def _percent(factor: float) -> Callable[[float, int | None], str]:
    return lambda value, decimals: _number(factor * value, decimals) + "%"


def _either(no: str, yes: str) -> Callable[[float, int | None], str]:
    return lambda value, _: yes if value else no


_WRITERS: Final[dict[str, Callable[[float, int | None], str]]] = {
    "s": _times(1.0),
    "ms": _times(1e-3),
    "µs": _times(1e-6),
    "ns": _times(1e-9),
    "m": _times(60.0),
    "percent": _percent(1.0),
    "percentunit": _percent(100.0),
    "bool": _either("False", "True"),
    "bool_yes_no": _either("No", "Yes"),
    "bool_on_off": _either("Off", "On"),
    "dateTimeAsIso": _date,
    "dateTimeAsLocal": _date,
    "dateTimeAsSystem": _date,
    "dateTimeFromNow": _ago,
    "dtdurations": _clock,
    "dthms": _clock,
    "clocks": _clock,
    "sci": _exponent,
    "locale": _grouped,
}
"""Writers of the units that have no prefixes; all other units are numbers alone."""
