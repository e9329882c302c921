"""Grafana's colours: those it has names for, the classic palette, and those of its dark theme."""

from __future__ import annotations

from typing import Final

BACKGROUND: Final = "#111217"
PANEL: Final = "#181b1f"
BORDER: Final = "#2b2d33"
TEXT: Final = "#d5d6e0"
FAINT: Final = "#8e9099"
GRID: Final = "#2a2c31"
ACCENT: Final = "#6e9fff"

_HUES: Final = {
    "red": ("#FFA6B0", "#FF7383", "#F2495C", "#E02F44", "#C4162A"),
    "orange": ("#FFCB7D", "#FFB357", "#FF9830", "#FF780A", "#FA6400"),
    "yellow": ("#FFF899", "#FFEE52", "#FADE2A", "#F2CC0C", "#E0B400"),
    "green": ("#C8F2C2", "#96D98D", "#73BF69", "#56A64B", "#37872D"),
    "blue": ("#C0D8FF", "#8AB8FF", "#5794F2", "#3274D9", "#1F60C4"),
    "purple": ("#DEB6F2", "#CA95E5", "#B877D9", "#A352CC", "#8F3BB8"),
}
_SHADES: Final = ("super-light-", "light-", "", "semi-dark-", "dark-")
_NAMED: Final = {
    f"{shade}{hue}": code
    for hue, codes in _HUES.items()
    for shade, code in zip(_SHADES, codes, strict=True)
} | {"text": TEXT, "gray": "#808080", "grey": "#808080", "white": "#FFFFFF", "transparent": PANEL}

CLASSIC: Final = (
    *("#73BF69", "#F2CC0C", "#8AB8FF", "#FF780A", "#F2495C", "#5794F2", "#B877D9", "#705DA0"),
    *("#37872D", "#FADE2A", "#447EBC", "#C15C17", "#890F02", "#0A437C", "#6D1F62", "#584477"),
    *("#B7DBAB", "#F4D598", "#70DBED", "#F9BA8F", "#F29191", "#82B5D8", "#E5A8E2", "#AEA2E0"),
)
"""Colours of series, in order."""


def color(name: str) -> str:
    """Returns a colour as ``#rrggbb``.

    Args:
        name: Grafana's name of it, such as ``semi-dark-red``, or a code.
    """
    return name if name.startswith("#") else _NAMED.get(name, FAINT)
