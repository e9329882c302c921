"""Grafana dashboards of a run's metrics, written in Python and rendered as JSON."""

from __future__ import annotations

from fastvideo.dashboards.catalogue import BOARDS, all_dashboards
from fastvideo.dashboards.grafana_json import to_json, to_text
from fastvideo.dashboards.model import Dashboard, Expression, Panel, Target, expressions

__all__ = [
    "BOARDS",
    "Dashboard",
    "Expression",
    "Panel",
    "Target",
    "all_dashboards",
    "expressions",
    "to_json",
    "to_text",
]
