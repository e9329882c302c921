"""What a dashboard is made of, in words that do not depend on Grafana's JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PanelKind = Literal["stat", "timeseries", "bargauge", "heatmap", "table", "state-timeline", "text"]
TargetFormat = Literal["time_series", "table", "heatmap"]


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel.

    Attributes:
        expr: PromQL with Grafana's variables in it.
        legend: Name of a series: text with ``{{label}}`` in it; empty: the value stands alone.
        instant: Whether only the end of the time range is asked for.
        exemplar: Whether the exemplars of the range are drawn too.
        format: How Grafana takes the answer.
        min_interval: Shortest distance of two points, such as ``"5m"``; empty: the scrape interval.
            ``$__rate_interval`` is at least this and one scrape.
        may_be_empty: When a healthy run has no data here; empty: it always has.
    """

    expr: str
    legend: str = ""
    instant: bool = False
    exemplar: bool = False
    format: TargetFormat = "time_series"
    min_interval: str = ""
    may_be_empty: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """What stands in the place of one value.

    Attributes:
        value: The value.
        text: The word.
        colour: Name of a colour that Grafana has.
    """

    value: float
    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class Link:
    """A way to somewhere else.

    Attributes:
        title: What it is called.
        url: Where it leads, with Grafana's variables in it.
    """

    title: str
    url: str


@dataclass(frozen=True, slots=True)
class Override:
    """How one series, or one column of a table, differs from the others.

    Attributes:
        name: Name of the series or column: its legend, or its column's name.
        properties: Grafana's property ids and their values, such as ``("unit", "s")``.
        is_pattern: Whether ``name`` is a regular expression.
    """

    name: str
    properties: tuple[tuple[str, Any], ...]
    is_pattern: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: Its title.
        question: The question it answers, the metric it asks, and what a bad value means.
        kind: Grafana's panel type.
        targets: Its queries; a text panel has none.
        unit: Grafana's unit id.
        width: Columns of 24 it takes.
        height: Grid rows it takes.
        thresholds: Lower bounds and the colours from there on; the first bound is None.
        decimals: Digits after the point; None: as many as Grafana thinks fit.
        stacked: Whether series lie upon each other.
        minimum: Lower end of the axis; None: what the data says.
        maximum: Upper end of the axis; None: what the data says.
        reach: What the axis reaches at least, however small the data is; None: what the data says.
        no_value: What stands there where there is no data.
        words: What stands in the place of values.
        links: Where a click leads.
        overrides: How some series differ.
        transformations: Grafana's transformations, in their JSON.
        repeat: Name of a variable for each of whose values there is one such panel.
        per_row: How many of those lie side by side, over the full width; 0: they lie below each
            other.
        text: Markdown of a text panel.
        options: Grafana's options of this kind of panel that differ from the usual ones.
    """

    title: str
    question: str
    kind: PanelKind
    targets: tuple[Target, ...] = ()
    unit: str = "none"
    width: int = 12
    height: int = 8
    thresholds: tuple[tuple[float | None, str], ...] = ()
    decimals: int | None = None
    stacked: bool = False
    minimum: float | None = None
    maximum: float | None = None
    reach: float | None = None
    no_value: str = ""
    words: tuple[Word, ...] = ()
    links: tuple[Link, ...] = ()
    overrides: tuple[Override, ...] = ()
    transformations: tuple[Mapping[str, Any], ...] = ()
    repeat: str = ""
    per_row: int = 0
    text: str = ""
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and the panels under it, which flow from left to right."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard.

    Attributes:
        name: Its name in queries.
        label: Its name for people.
        kind: A choice of values that a query finds, or of data sources.
        query: The query, or the type of data source.
        multi: Whether several values can be chosen at once.
        all: Whether all can be chosen by one word, which is then where it starts.
        all_value: What stands for all; empty: all values that the query found.
        sort: Grafana's number for an order: 1 and 2 alphabetical up and down, 3 numerical up.
    """

    name: str
    label: str
    kind: Literal["query", "datasource"]
    query: str
    multi: bool = False
    all: bool = False
    all_value: str = ""
    sort: int = 1


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks in time on every graph of a dashboard.

    Attributes:
        name: What they are, as their switch says.
        expr: PromQL; where it has a value above 0 there is a mark.
        text: Text of one mark.
        colour: Name of a colour.
        may_be_empty: When a healthy run has none.
    """

    name: str
    expr: str
    text: str
    colour: str
    may_be_empty: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard.

    Attributes:
        uid: Its id in links, unique among all.
        title: Its title.
        question: What it is for, in a sentence or two.
        rows: What is on it, from top to bottom.
        variables: The choices at its top, in their order.
        annotations: The marks on its graphs.
        tags: By which Grafana finds it.
        links: Tags of dashboards that a menu at the top leads to.
    """

    uid: str
    title: str
    question: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    annotations: tuple[Annotation, ...]
    tags: tuple[str, ...] = ("fastvideo",)
    links: tuple[str, ...] = ("fastvideo",)

    def panels(self) -> Iterator[Panel]:
        """Yields the panels from top to bottom, from left to right."""
        for row in self.rows:
            yield from row.panels


@dataclass(frozen=True, slots=True)
class Expression:
    """One query of a dashboard, with what is needed to judge its answer.

    Attributes:
        dashboard: The dashboard's uid.
        panel: The panel's title, or the annotation's name.
        expr: PromQL with Grafana's variables in it.
        unit: Unit id of the values.
        legend: Name of the series; its ``{{labels}}`` must be in the answer.
        instant: Whether only one moment is asked for.
        kind: Type of the panel, or ``"annotation"``.
        min_interval: As in :class:`Target`.
        may_be_empty: When a healthy run has no data; empty: it always has.
    """

    dashboard: str
    panel: str
    expr: str
    unit: str
    legend: str
    instant: bool
    kind: str
    min_interval: str
    may_be_empty: str


def expressions(dashboard: Dashboard) -> Iterator[Expression]:
    """Yields all queries of a dashboard: those of its panels, then those of its annotations."""
    for panel in dashboard.panels():
        for target in panel.targets:
            yield Expression(
                dashboard=dashboard.uid,
                panel=panel.title,
                expr=target.expr,
                unit=panel.unit,
                legend=target.legend,
                instant=target.instant,
                kind=panel.kind,
                min_interval=target.min_interval,
                may_be_empty=target.may_be_empty,
            )
    for annotation in dashboard.annotations:
        yield Expression(
            dashboard=dashboard.uid,
            panel=annotation.name,
            expr=annotation.expr,
            unit="none",
            legend=annotation.text,
            instant=False,
            kind="annotation",
            min_interval="",
            may_be_empty=annotation.may_be_empty,
        )
