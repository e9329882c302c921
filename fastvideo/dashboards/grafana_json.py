"""A dashboard as Grafana's classic JSON, which file provisioning reads.

The newer schema (v2) is refused by file provisioning, so it is not written.
"""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastvideo.dashboards.model import (
        Annotation,
        Dashboard,
        Link,
        Override,
        Panel,
        Row,
        Target,
        Variable,
    )

SCHEMA_VERSION: Final = 39
"""Grafana migrates upwards from here; 10.4 and later know it."""

COLUMNS: Final = 24
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_ROW_HEIGHT: Final = 1
_GAP_MS: Final = 900_000
"""A line goes on over gaps up to this: steps can be longer than a few scrapes."""

_REFRESH_ON_TIME_RANGE: Final = 2

_REDUCE: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND: Final = {"displayMode": "list", "placement": "bottom", "showLegend": True}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "text": {"mode": "markdown"},
    "stat": {
        "colorMode": "background",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": _REDUCE,
        "textMode": "auto",
        "wideLayout": True,
    },
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "bargauge": {
        "displayMode": "basic",
        "orientation": "horizontal",
        "reduceOptions": _REDUCE,
        "showUnfilled": True,
        "valueMode": "color",
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": True},
    },
    "table": {"cellHeight": "sm", "footer": {"show": False}, "showHeader": True},
    "state-timeline": {
        "alignValue": "left",
        "legend": _LEGEND,
        "mergeValues": True,
        "rowHeight": 0.85,
        "showValue": "auto",
        "tooltip": {"mode": "single"},
    },
}
"""What panels of each kind are drawn with."""


def to_json(dashboard: Dashboard) -> dict[str, Any]:
    """Returns the JSON of a dashboard: panels flow from left to right in 24 columns.

    Args:
        dashboard: The dashboard.

    Returns:
        What :func:`json.dumps` takes; the same for the same dashboard, with no ``id`` and no
        version, which Grafana gives.
    """
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.question,
        "tags": list(dashboard.tags),
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_variable(each) for each in dashboard.variables]},
        "annotations": {"list": [_annotation(each) for each in dashboard.annotations]},
        "links": [_menu(tag) for tag in dashboard.links],
        "panels": list(_panels(dashboard.rows)),
    }


def to_text(dashboard: Dashboard) -> str:
    """Returns the text of a dashboard's file."""
    return json.dumps(to_json(dashboard), indent=2, ensure_ascii=False) + "\n"


def _panels(rows: tuple[Row, ...]) -> Iterator[dict[str, Any]]:
    ids = count(1)
    top = 0
    for row in rows:
        grid = {"x": 0, "y": top, "w": COLUMNS, "h": _ROW_HEIGHT}
        yield {
            "id": next(ids),
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": grid,
            "panels": [],
        }
        top += _ROW_HEIGHT
        left = tallest = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top += tallest
                left = tallest = 0
            grid = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": next(ids), **_panel(panel), "gridPos": grid}
            left += panel.width
            tallest = max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel) -> dict[str, Any]:
    result: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.question,
        "options": _options(panel),
    }
    if panel.kind == "text":
        return result
    result["datasource"] = DATASOURCE
    result["fieldConfig"] = {
        "defaults": _defaults(panel),
        "overrides": [_override(each) for each in panel.overrides],
    }
    result["targets"] = [
        _target(target, ref_id=chr(ord("A") + index)) for index, target in enumerate(panel.targets)
    ]
    if interval := _min_interval(panel):
        result["interval"] = interval
    if panel.transformations:
        result["transformations"] = [dict(each) for each in panel.transformations]
    if panel.links:
        result["links"] = [_link(each) for each in panel.links]
    if panel.repeat:
        result |= {"repeat": panel.repeat, "repeatDirection": "h" if panel.per_row else "v"}
        if panel.per_row:
            result["maxPerRow"] = panel.per_row
    return result


def _min_interval(panel: Panel) -> str:
    """Returns the shortest distance of a panel's points.

    It is the panel's and not the target's: Grafana takes a target's for the interval of scrapes,
    and four times that for ``$__rate_interval``.
    """
    given = {target.min_interval for target in panel.targets if target.min_interval}
    if len(given) > 1:
        message = f"panel {panel.title!r}: targets differ in min_interval: {sorted(given)}"
        raise ValueError(message)
    return given.pop() if given else ""


def _defaults(panel: Panel) -> dict[str, Any]:
    steps = [{"value": bound, "color": colour} for bound, colour in panel.thresholds]
    steps = steps or [{"value": None, "color": "green"}]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "color": _colour(panel),
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": _mappings(panel),
        "custom": _custom(panel),
    }
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.minimum is not None:
        defaults["min"] = panel.minimum
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.no_value:
        defaults["noValue"] = panel.no_value
    if panel.links:
        defaults["links"] = [_link(each) for each in panel.links]
    return defaults


def _colour(panel: Panel) -> dict[str, str]:
    if panel.kind in ("timeseries", "heatmap"):
        return {"mode": "palette-classic"}
    return {"mode": "thresholds"}


def _mappings(panel: Panel) -> list[dict[str, Any]]:
    if not panel.words:
        return []
    options = {
        f"{word.value:g}": {"text": word.text, "color": word.colour, "index": index}
        for index, word in enumerate(panel.words)
    }
    return [{"type": "value", "options": options}]


def _custom(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        result: dict[str, Any] = {
            "drawStyle": "line",
            "lineInterpolation": "linear",
            "lineWidth": 1,
            "fillOpacity": 60 if panel.stacked else 0,
            "showPoints": "auto",
            "spanNulls": _GAP_MS,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if len(panel.thresholds) > 1 else "off"},
        }
        if panel.reach is not None:
            result["axisSoftMax"] = panel.reach
        return result
    if panel.kind == "state-timeline":
        return {"lineWidth": 0, "fillOpacity": 80, "spanNulls": _GAP_MS}
    if panel.kind == "table":
        return {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True}
    return {}


def _options(panel: Panel) -> dict[str, Any]:
    options = {**_OPTIONS[panel.kind], **dict(panel.options)}
    if panel.kind == "stat" and len(panel.thresholds) == 1:  # neither good nor bad
        options["colorMode"] = "none"
    if panel.kind == "text":
        return {**options, "content": panel.text}
    if panel.kind == "heatmap":
        return {**options, "yAxis": {"axisPlacement": "left", "unit": panel.unit}}
    return options


def _target(target: Target, *, ref_id: str) -> dict[str, Any]:
    return {
        "refId": ref_id,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": target.expr,
        "format": target.format,
        "instant": target.instant,
        "range": not target.instant,
        "exemplar": target.exemplar,
        "legendFormat": target.legend or "__auto",
    }


def _override(override: Override) -> dict[str, Any]:
    return {
        "matcher": {
            "id": "byRegexp" if override.is_pattern else "byName",
            "options": override.name,
        },
        "properties": [{"id": name, "value": value} for name, value in override.properties],
    }


def _link(link: Link) -> dict[str, Any]:
    return {"title": link.title, "url": link.url, "targetBlank": False}


def _menu(tag: str) -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "FastVideo dashboards",
        "tags": [tag],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    """Nothing is chosen here: what is chosen is the viewer's, and would differ in every export."""
    common = {
        "name": variable.name,
        "label": variable.label,
        "type": variable.kind,
        "hide": 0,
        "multi": variable.multi,
        "includeAll": variable.all,
        "regex": "",
    }
    if variable.kind == "datasource":
        return {**common, "query": variable.query, "refresh": 1}
    result = {
        **common,
        "datasource": DATASOURCE,
        "definition": variable.query,
        "query": {"query": variable.query, "refId": f"variable-{variable.name}"},
        "refresh": _REFRESH_ON_TIME_RANGE,
        "sort": variable.sort,
    }
    if variable.all_value:
        result["allValue"] = variable.all_value
    return result


def _annotation(annotation: Annotation) -> dict[str, Any]:
    return {
        "name": annotation.name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": annotation.colour,
        "expr": annotation.expr,
        "step": "60s",
        "titleFormat": annotation.name,
        "textFormat": annotation.text,
        "tagKeys": "",
        "useValueForTime": False,
    }
