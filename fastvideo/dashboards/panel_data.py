"""What a panel shows: the answers to its queries, and the field settings that apply to each."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from fastvideo.dashboards.palette import color
from fastvideo.dashboards.prometheus import natural_key, parse_duration
from fastvideo.dashboards.substitute import Choice, Window, legend, substitute
from fastvideo.dashboards.units import format_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fastvideo.dashboards.prometheus import Prometheus, Series


@dataclass(frozen=True, slots=True)
class Field:
    """The settings of one field of a panel, overrides included.

    Attributes:
        defaults: ``fieldConfig.defaults`` with what the overrides change, ``custom`` flattened
            into dotted keys.
    """

    defaults: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - settings of any type
        """Returns a setting, or the default if it is not set."""
        value = self.defaults.get(key)
        return default if value is None else value

    @property
    def steps(self) -> list[tuple[float, str]]:
        """Thresholds: where each begins, and its colour."""
        found = self.get("thresholds", {}).get("steps", [])
        return [
            (-math.inf if step["value"] is None else float(step["value"]), color(step["color"]))
            for step in found
        ]

    def threshold_color(self, value: float) -> str:
        """Returns the colour of the threshold that a value has reached."""
        reached = [name for begins, name in self.steps if value >= begins]
        return reached[-1] if reached else color("green")

    def mapped(self, value: float) -> tuple[str, str | None] | None:
        """Returns text and colour that a value is mapped to, or None."""
        for mapping in self.get("mappings", []):
            options = mapping["options"]
            result = None
            if mapping["type"] == "value":
                result = options.get(f"{value:g}")
            elif mapping["type"] == "range":
                low, high = options.get("from"), options.get("to")
                inside = (low is None or value >= low) and (high is None or value <= high)
                result = options["result"] if inside else None
            elif mapping["type"] == "special":
                match = options["match"]
                is_it = match in {"nan", "null+nan", "null"} and math.isnan(value)
                result = options["result"] if is_it else None
            if result is not None:
                name = result.get("color")
                return result.get("text", ""), color(name) if name else None
        return None

    def text(self, value: float) -> str:
        """Returns a value as the panel prints it."""
        mapped = self.mapped(value)
        if mapped is not None and mapped[0]:
            return mapped[0]
        return format_value(value, self.get("unit", "none"), self.get("decimals"))

    def color_of(self, value: float) -> str:
        """Returns the colour of a value: its mapping's, else its threshold's, or the fixed one."""
        mapped = self.mapped(value)
        if mapped is not None and mapped[1]:
            return mapped[1]
        chosen = self.get("color", {})
        if chosen.get("mode") == "fixed":
            return color(chosen.get("fixedColor", "green"))
        return self.threshold_color(value)


@dataclass(frozen=True, slots=True)
class Frame:
    """One series of a panel.

    Attributes:
        name: As the legend writes it.
        ref: Letter of its target.
        series: Labels and samples.
        field: Its settings.
    """

    name: str
    ref: str
    series: Series
    field: Field = field(default_factory=lambda: Field({}))

    @property
    def last(self) -> float:
        """The last sample that is a number; NaN if there is none."""
        return next((v for v in reversed(self.series.values) if not math.isnan(v)), math.nan)


def fetch(
    panel: Mapping[str, Any],
    prometheus: Prometheus,
    choices: Mapping[str, Choice],
    window: Window,
) -> list[Frame]:
    """Asks a panel's queries.

    Args:
        panel: The panel's JSON.
        prometheus: Whom to ask.
        choices: The dashboard's variables.
        window: The time it shows, at the panel's density.

    Returns:
        The series, targets in their order, series of a target by name, but for those that
        Prometheus sorts.

    Raises:
        PrometheusError: Prometheus does not answer, or refuses a query.
    """
    frames: list[Frame] = []
    for index, target in enumerate(panel.get("targets", [])):
        if target.get("hide") or not target.get("expr"):
            continue
        ref = target.get("refId") or chr(ord("A") + index)
        sent, found = answer_target(target, prometheus, choices, window)
        named = [(legend(target.get("legendFormat", ""), one.labels), one) for one in found]
        if not sent.startswith("sort"):
            named.sort(key=lambda pair: natural_key(pair[0]))
        frames += [
            Frame(_display_name(panel, name, ref), ref, one, settings(panel, name, ref))
            for name, one in named
        ]
    return frames


def answer_target(
    target: Mapping[str, Any],
    prometheus: Prometheus,
    choices: Mapping[str, Choice],
    window: Window,
) -> tuple[str, list[Series]]:
    """Asks one query of a panel; see :func:`fetch`.

    Returns:
        The expression as it was sent, and the answer.
    """
    own = target_window(target, window)
    expr = substitute(target["expr"], choices=choices, window=own)
    if target.get("instant"):
        return expr, prometheus.instant(expr, at=window.end)
    step = own.interval_s
    start = math.floor(window.start / step) * step
    return expr, prometheus.range(expr, start=start, end=window.end, step_s=step)


def panel_window(panel: Mapping[str, Any], window: Window, *, width_px: int) -> Window:
    """Returns the window at a panel's own density.

    Args:
        panel: The panel's JSON.
        window: The dashboard's.
        width_px: How wide the panel is drawn.
    """
    own = str(panel.get("interval") or "").lstrip(">")
    return replace(
        window,
        max_points=int(panel.get("maxDataPoints") or width_px),
        min_interval_s=parse_duration(own) if own else 0.0,
    )


def target_window(target: Mapping[str, Any], window: Window) -> Window:
    """Returns a panel's window as one target has it, whose own interval stands for the scrape's."""
    own = str(target.get("interval") or "")
    return replace(window, scrape_interval_s=parse_duration(own)) if own else window


def settings(panel: Mapping[str, Any], name: str = "", ref: str = "") -> Field:
    """Returns the settings of one field of a panel.

    Args:
        panel: The panel's JSON.
        name: The field's name before overrides.
        ref: Letter of its target.
    """
    config = panel.get("fieldConfig", {})
    merged = dict(_flat(config.get("defaults", {})))
    for override in config.get("overrides", []):
        if _matches(override["matcher"], name, ref):
            for change in override["properties"]:
                merged[change["id"]] = change.get("value")
                if isinstance(change.get("value"), dict):
                    merged |= dict(_flat({change["id"]: change["value"]}))
    return Field(merged)


def _display_name(panel: Mapping[str, Any], name: str, ref: str) -> str:
    return str(settings(panel, name, ref).get("displayName", name))


def _matches(matcher: Mapping[str, Any], name: str, ref: str) -> bool:
    kind, wanted = matcher["id"], matcher.get("options", "")
    if kind == "byName":
        return bool(wanted == name)
    if kind == "byRegexp":
        return re.search(str(wanted).strip("/"), name) is not None
    return bool(kind == "byFrameRefID" and wanted == ref)


_NESTED: Final = ("custom",)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Gives ``custom.stacking.mode`` beside ``custom``, as overrides name it."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        yield name, value
        if isinstance(value, dict) and name.partition(".")[0] in _NESTED:
            yield from _flat(value, f"{name}.")


def finite(values: Sequence[float]) -> list[float]:
    """Returns those values that are numbers."""
    return [value for value in values if math.isfinite(value)]
