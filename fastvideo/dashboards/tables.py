"""Makes a table of a panel's answers, with those of Grafana's transformations that are in use."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastvideo.dashboards.panel_data import Frame

Cell = float | str | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below columns.

    Attributes:
        columns: Their names.
        rows: One cell a column; None where there is nothing.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def select(self, columns: Sequence[str]) -> Table:
        """Returns the table with these columns, in this order."""
        where = [self.columns.index(name) for name in columns]
        return Table(tuple(columns), tuple(tuple(row[i] for i in where) for row in self.rows))


def build_table(panel: Mapping[str, Any], frames: Sequence[Frame]) -> Table:
    """Returns what a table panel shows.

    Args:
        panel: Its JSON.
        frames: Its data, of instant queries.

    Raises:
        ConfigError: It uses a transformation that is not known here.
    """
    parts = _parts(panel, frames)
    for transformation in panel.get("transformations", []):
        if transformation.get("disabled"):
            continue
        parts = _transform(transformation["id"], transformation.get("options", {}), parts)
    if not parts:
        return Table((), ())
    return parts[0]


def _parts(panel: Mapping[str, Any], frames: Sequence[Frame]) -> list[Table]:
    """Returns one table a target: a row a series, its labels and its value as columns."""
    parts = []
    refs = [target["refId"] for target in panel["targets"]]
    for ref in refs:
        own = [frame for frame in frames if frame.ref == ref]
        if not own:
            continue
        labels = sorted({name for frame in own for name in frame.series.labels})
        value = "Value" if len(refs) == 1 else f"Value #{ref}"
        rows = tuple(
            (
                1000 * frame.series.times[-1],
                *(frame.series.labels.get(name) for name in labels),
                frame.series.values[-1],
            )
            for frame in own
        )
        parts.append(Table(("Time", *labels, value), rows))
    return parts


def _transform(name: str, options: Mapping[str, Any], parts: list[Table]) -> list[Table]:
    if not parts or name in _UNNEEDED:
        return parts
    if name in _JOINING:
        return [_JOINING[name](parts, options)]
    if name in _CHANGING:
        return [_CHANGING[name](part, options) for part in parts]
    message = f"the transformation {name!r} is not drawn"
    raise ConfigError(message)


def _merge(parts: list[Table], options: Mapping[str, Any]) -> Table:
    """Joins rows that agree in all columns that both have."""
    del options
    columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))
    merged: list[dict[str, Cell]] = []
    for part in parts:
        for row in part.rows:
            new = dict(zip(part.columns, row, strict=True))
            old = next((each for each in merged if _agree(each, new)), None)
            if old is None:
                merged.append(new)
            else:
                old.update(new)
    return Table(columns, tuple(tuple(row.get(name) for name in columns) for row in merged))


def _agree(one: Mapping[str, Cell], other: Mapping[str, Cell]) -> bool:
    common = one.keys() & other.keys()
    return all(one[name] == other[name] for name in common)


def _join(parts: list[Table], options: Mapping[str, Any]) -> Table:
    """Joins rows by one column; other columns that several tables have are numbered."""
    field = options["byField"]
    rows: dict[Cell, dict[str, Cell]] = {}
    columns = [field]
    for number, part in enumerate(parts, start=1):
        for name in part.columns:
            if name != field:
                columns.append(name if name not in columns else f"{name} {number}")
        fresh = iter(columns[-(len(part.columns) - 1) :])
        names = [field if name == field else next(fresh) for name in part.columns]
        for row in part.rows:
            new = dict(zip(names, row, strict=True))
            rows.setdefault(new[field], {}).update(new)
    return Table(tuple(columns), tuple(tuple(row.get(c) for c in columns) for row in rows.values()))


def _organize(part: Table, options: Mapping[str, Any]) -> Table:
    hidden = {name for name, yes in options.get("excludeByName", {}).items() if yes}
    order = options.get("indexByName", {})
    kept = [name for name in part.columns if name not in hidden]
    kept.sort(key=lambda name: order.get(name, len(part.columns) + part.columns.index(name)))
    chosen = part.select(kept)
    names = options.get("renameByName", {})
    return Table(tuple(names.get(name) or name for name in kept), chosen.rows)


def _sort(part: Table, options: Mapping[str, Any]) -> Table:
    by = options["sort"][0]
    if by["field"] not in part.columns:
        return part
    where = part.columns.index(by["field"])

    def key(row: tuple[Cell, ...]) -> tuple[int, float, str]:
        cell = row[where]
        if isinstance(cell, float):
            return (0, -math.inf if math.isnan(cell) else cell, "")
        return (1, 0.0, cell or "")

    return Table(part.columns, tuple(sorted(part.rows, key=key, reverse=bool(by.get("desc")))))


def _filter(part: Table, options: Mapping[str, Any]) -> Table:
    wanted = options.get("include", {})
    names = set(wanted.get("names", []))
    pattern = wanted.get("pattern")
    return part.select(
        [
            name
            for name in part.columns
            if name in names or (pattern and re.search(pattern.strip("/"), name))
        ]
    )


_JOINING: Final = {"merge": _merge, "joinByField": _join}
_CHANGING: Final = {"organize": _organize, "sortBy": _sort, "filterFieldsByName": _filter}
_UNNEEDED: Final = {"labelsToFields", "seriesToRows"}
"""Answers are rows with their labels as columns already."""
