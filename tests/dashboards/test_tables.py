"""Tables, and what Grafana's transformations make of them."""

from __future__ import annotations

from typing import Any

import pytest

from fastvideo.dashboards.panel_data import Frame
from fastvideo.dashboards.prometheus import Series
from fastvideo.dashboards.tables import build_table
from fastvideo.errors import ConfigError


def frame(ref: str, value: float, **labels: str) -> Frame:
    """An answer of an instant query."""
    return Frame("", ref, Series(labels, (100.0,), (value,)))


def panel(*transformations: tuple[str, dict[str, Any]], refs: str = "AB") -> dict[str, Any]:
    """A table panel."""
    return {
        "targets": [{"refId": ref} for ref in refs],
        "transformations": [{"id": name, "options": options} for name, options in transformations],
    }


FRAMES = [
    frame("A", 1.0, rank="0"),
    frame("A", 2.0, rank="1"),
    frame("B", 30.0, rank="1"),
    frame("B", 40.0, rank="0"),
]


def test_one_query_gives_time_labels_and_value() -> None:
    """A row a series."""
    table = build_table(panel(refs="A"), FRAMES[:2])
    assert table.columns == ("Time", "rank", "Value")
    assert table.rows == ((100_000.0, "0", 1.0), (100_000.0, "1", 2.0))


def test_merge_joins_rows_that_agree() -> None:
    """Queries become columns of one table."""
    table = build_table(panel(("merge", {})), FRAMES)
    assert table.columns == ("Time", "rank", "Value #A", "Value #B")
    assert table.rows == ((100_000.0, "0", 1.0, 40.0), (100_000.0, "1", 2.0, 30.0))


def test_organize_hides_orders_and_renames() -> None:
    """Columns that have no place come behind those that have one."""
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {"Value #B": 0, "rank": 1},
        "renameByName": {"Value #A": "own work"},
    }
    table = build_table(panel(("merge", {}), ("organize", organize)), FRAMES)
    assert table.columns == ("Value #B", "rank", "own work")
    assert table.rows == ((40.0, "0", 1.0), (30.0, "1", 2.0))


def test_rows_are_sorted_by_a_column() -> None:
    """Largest first, if that is asked for."""
    by = {"sort": [{"field": "Value #A", "desc": True}]}
    table = build_table(panel(("merge", {}), ("sortBy", by)), FRAMES)
    assert [row[1] for row in table.rows] == ["1", "0"]


def test_join_by_field_numbers_columns_of_the_same_name() -> None:
    """Both tables have a time."""
    table = build_table(panel(("joinByField", {"byField": "rank"})), FRAMES)
    assert table.columns == ("rank", "Time", "Value #A", "Time 2", "Value #B")
    assert [row[4] for row in table.rows] == [40.0, 30.0]


def test_columns_are_chosen_by_name_or_pattern() -> None:
    """Either will do."""
    keep = {"include": {"names": ["rank"], "pattern": "/#B$/"}}
    table = build_table(panel(("merge", {}), ("filterFieldsByName", keep)), FRAMES)
    assert table.columns == ("rank", "Value #B")


def test_no_data_is_an_empty_table() -> None:
    """And no error."""
    assert build_table(panel(("merge", {})), []).rows == ()


def test_an_unknown_transformation_is_an_error() -> None:
    """A picture that leaves it out would lie."""
    with pytest.raises(ConfigError, match="'calculateField' is not drawn"):
        build_table(panel(("calculateField", {})), FRAMES)
