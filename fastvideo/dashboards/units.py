"""Writes numbers the way Grafana does, by its unit ids: ``s``, ``percentunit``, ``bytes`` …"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

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
_TO_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9, "m": 60.0}
_WORDS: Final = {
    "bool": ("False", "True"),
    "bool_yes_no": ("No", "Yes"),
    "bool_on_off": ("Off", "On"),
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
    if unit in _TO_SECONDS:
        return _seconds(value * _TO_SECONDS[unit], decimals)
    if unit in _SCALED:
        return _scaled(value, *_SCALED[unit], decimals)
    if unit in {"percent", "percentunit"}:
        return _number(value * (100 if unit == "percentunit" else 1), decimals) + "%"
    if unit in _WORDS:
        return _WORDS[unit][value != 0]
    if unit.startswith("dateTime"):
        return _date(value, unit)
    if unit in {"dtdurations", "dthms", "clocks"}:
        return _clock(value)
    if unit.startswith("suffix:"):
        return f"{_number(value, decimals)} {unit.removeprefix('suffix:').strip()}"
    if unit == "sci":
        return f"{value:.{2 if decimals is None else decimals}e}"
    if unit == "locale":
        return f"{value:,.{_decimals(value) if decimals is None else decimals}f}"
    return _number(value, decimals)


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


def _date(milliseconds: float, unit: str) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    if unit == "dateTimeFromNow":
        ago = (datetime.now(UTC) - moment).total_seconds()
        return f"{_seconds(abs(ago), 0)} {'ago' if ago >= 0 else 'from now'}"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{rest:02d}"


def _number(value: float, decimals: int | None) -> str:
    digits = _decimals(value) if decimals is None else decimals
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _decimals(value: float) -> int:
    """Returns how many digits behind the point give three significant ones."""
    if value == 0 or value == round(value):
        return 0
    return min(10, max(0, 2 - math.floor(math.log10(abs(value)))))
