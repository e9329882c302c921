"""Fills in what Grafana fills in before it sends an expression: variables, intervals, the range.

A dashboard cannot be tried without this: ``$__rate_interval`` and ``$run`` are no PromQL.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastvideo.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALL: Final = "$__all"
"""What stands for all values of a variable."""

_REFERENCE: Final = re.compile(
    r"\$\{(?P<braced>\w+)(?::(?P<format>\w+))?\}|\$(?P<bare>\w+)|\[\[(?P<old>\w+)\]\]"
)
_LABEL: Final = re.compile(r"\{\{\s*(.+?)\s*\}\}")
_ESCAPED: Final = {"\\": "\\" * 4} | {special: rf"\\{special}" for special in "$^*{}[]'+?.()|"}
_NICE_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30),
    *(60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800, 2592000),
)
_MOST_POINTS: Final = 11000
"""What Prometheus answers at most for one series."""


@dataclass(frozen=True, slots=True)
class Window:
    """The time a dashboard shows, and how densely.

    Attributes:
        start: Unix seconds.
        end: Unix seconds.
        scrape_interval_s: The datasource's ``timeInterval``, in seconds.
        max_points: Points that fit into the panel; its width in pixels in Grafana.
        min_interval_s: The panel's own shortest distance of two points, in seconds.
    """

    start: float
    end: float
    scrape_interval_s: float
    max_points: int = 1000
    min_interval_s: float = 0.0

    @property
    def interval_s(self) -> float:
        """Seconds between two points: ``$__interval``, which is also the step of the query."""
        span = self.end - self.start
        rough = span / self.max_points
        nearest = min(_NICE_S, key=lambda nice: abs(math.log(nice / rough))) if rough > 0 else 1.0
        least = max(self.scrape_interval_s, self.min_interval_s, span / _MOST_POINTS)
        return max(nearest, least)

    @property
    def rate_interval_s(self) -> float:
        """Seconds of ``$__rate_interval``: never less than four scrapes."""
        return max(self.interval_s + self.scrape_interval_s, 4 * self.scrape_interval_s)


@dataclass(frozen=True, slots=True)
class Choice:
    """What is chosen for one variable.

    Attributes:
        values: The chosen values, or ``(ALL,)``.
        all_value: What is sent for all; None sends the options, as Grafana does.
        options: Every value there is.
        multi: Whether several could be chosen; Grafana escapes values of such variables only.
    """

    values: tuple[str, ...]
    all_value: str | None = None
    options: tuple[str, ...] = field(default=())
    multi: bool = True


def substitute(expr: str, *, choices: Mapping[str, Choice], window: Window) -> str:
    """Returns an expression as it is sent to Prometheus.

    Args:
        expr: PromQL with variables, or the query of a variable.
        choices: What is chosen, by name of variable.
        window: The time the dashboard shows.

    Raises:
        ConfigError: It uses a variable that the dashboard does not have.
    """
    built_in = _built_in(window)

    def replace(match: re.Match[str]) -> str:
        name = match["braced"] or match["bare"] or match["old"]
        if name.isdigit():
            return match[0]  # a group of label_replace
        if name in built_in:
            return built_in[name]
        if name not in choices:
            message = f"there is no variable ${name} for {expr!r}.{did_you_mean(name, choices)}"
            raise ConfigError(message)
        return _insert(choices[name], match["format"])

    return _REFERENCE.sub(replace, expr)


def legend(template: str, labels: Mapping[str, str]) -> str:
    """Returns the name of a series in a legend.

    Args:
        template: With labels in double braces; empty for all labels.
        labels: The labels of the series.
    """
    if template and template != "__auto":
        return _LABEL.sub(lambda match: labels.get(match[1], ""), template)
    name = labels.get("__name__", "")
    rest = ", ".join(f'{key}="{labels[key]}"' for key in sorted(labels) if key != "__name__")
    return f"{name}{{{rest}}}" if rest else name or "Value"


def legend_labels(template: str) -> tuple[str, ...]:
    """Returns the labels that a legend names."""
    return tuple(_LABEL.findall(template))


def escape(value: str) -> str:
    """Returns a value so that a regular expression in a PromQL string takes it literally."""
    return "".join(_ESCAPED.get(character, character) for character in value)


def _insert(choice: Choice, how: str | None) -> str:
    values: Sequence[str] = choice.values
    if tuple(values) == (ALL,):
        if choice.all_value is not None:
            return choice.all_value
        values = choice.options
    if how == "raw":
        return ",".join(values)
    if how == "pipe":
        return "|".join(values)
    if not choice.multi and how is None:
        return values[0].replace("\\", "\\\\").replace('"', '\\"') if values else ""
    escaped = [escape(value) for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def _built_in(window: Window) -> dict[str, str]:
    span = window.end - window.start
    return {
        "__interval": _duration(window.interval_s),
        "__interval_ms": str(round(window.interval_s * 1000)),
        "__rate_interval": _duration(window.rate_interval_s),
        "__rate_interval_ms": str(round(window.rate_interval_s * 1000)),
        "__range": f"{max(1, round(span))}s",
        "__range_s": str(max(1, round(span))),
        "__range_ms": str(round(span * 1000)),
        "__from": str(round(window.start * 1000)),
        "__to": str(round(window.end * 1000)),
    }


def _duration(seconds: float) -> str:
    return f"{round(seconds)}s" if seconds == round(seconds) else f"{round(seconds * 1000)}ms"
