"""The table of the layers in which two traces differ, in whatever width there is for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from fastvideo.analysis import Difference
    from fastvideo.analysis.activation_diff import Kind, LayerDifferences

HEADER: Final = ("layer", "difference", "step", "A", "B", "off by", "times")
"""Names of the columns."""

_STYLES: Final[dict[Kind, str]] = {
    "value": "yellow",
    "shape": "magenta",
    "non-finite": "red",
    "unreadable": "red",
    "only in A": "blue",
    "only in B": "blue",
}
_RIGHT: Final = ("off by", "times")
_NARROWEST: Final = {"layer": 20, "step": 12, "A": 10, "B": 10}
"""Columns that may be narrower than what is in them, and how narrow at most."""


def layer_rows(layers: Sequence[LayerDifferences]) -> list[tuple[str, ...]]:
    """Returns the cells of the table; roles and loops are named only where there are several.

    Args:
        layers: A row for each.
    """
    roles = len({layer.first.key.role for layer in layers}) > 1
    loops = len({layer.first.key.step.loop for layer in layers}) > 1
    return [_cells(layer, with_role=roles, with_loop=loops) for layer in layers]


def layer_table(
    rows: Sequence[tuple[str, ...]], kinds: Sequence[Kind], *, width: int
) -> RenderableType:
    """Returns the table.

    Args:
        rows: From :func:`layer_rows`.
        kinds: What is different in each.
        width: Columns that there are.
    """
    from rich import box  # noqa: PLC0415 - optional
    from rich.table import Table  # noqa: PLC0415 - optional
    from rich.text import Text  # noqa: PLC0415 - optional

    table = Table(
        title="Layers that differ, in the order they ran",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    widths = _widths(rows, width)
    for name in HEADER:
        justify = "right" if name in _RIGHT else "left"
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row, kind in zip(rows, kinds, strict=True):
        cells = [
            Text("\n".join(fold(cell, widths[name])))
            for name, cell in zip(HEADER, row, strict=True)
        ]
        cells[0].stylize("bold cyan")
        cells[1].stylize(_STYLES[kind])
        table.add_row(*cells)
    return table


def layer_name(difference: Difference, *, with_role: bool) -> str:
    """Returns the name of a layer, and of the part of its output if that has several.

    Args:
        difference: One of the layer.
        with_role: Whether the role of the model is named too.
    """
    key = difference.key
    name = f"{key.role} {key.module}" if with_role and key.role else key.module
    part = key.tensor.removeprefix("out")
    return f"{name} → {part}" if part else name


def fold(text: str, width: int) -> list[str]:
    """Returns a text in lines that end behind a dot, a comma or a space of it.

    So every part of a layer's name can be recognised; of one that is longer than a line, the
    middle is left out.

    Args:
        text: A name, a shape or a few words.
        width: Characters of a line, at least 3.
    """
    lines = [""]
    for part in re.findall(r"[^., ]*[., ]?", text):
        if len(lines[-1] + part.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += part if len(part.rstrip()) <= width else _without_middle(part.rstrip(), width)
    return [line.rstrip() for line in lines]


def _without_middle(text: str, width: int) -> str:
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[-end:]}"


def _widths(rows: Sequence[tuple[str, ...]], width: int) -> dict[str, int]:
    """Returns how wide the columns are, so that all of them fit."""
    columns = zip(*rows, strict=True)
    widths = {
        name: max(len(name), *map(len, cells)) for name, cells in zip(HEADER, columns, strict=True)
    }
    missing = sum(widths.values()) + 2 * len(HEADER) - width  # with what is between them
    for name in ("step", "A", "B", "layer"):
        less = max(0, min(missing, widths[name] - _NARROWEST[name]))
        widths[name] -= less
        missing -= less
    return widths


def _cells(layer: LayerDifferences, *, with_role: bool, with_loop: bool) -> tuple[str, ...]:
    first = layer.first
    step = first.key.step if with_loop else first.key.step._replace(loop="")
    call = f", call {first.key.call}" if first.key.call else ""
    return (
        layer_name(first, with_role=with_role),
        first.statistic or first.kind,
        str(step).removeprefix("step ") + call,
        first.in_a or "-",
        first.in_b or "-",
        "" if layer.worst is None else f"{layer.worst:.1e}",
        str(layer.count),
    )
