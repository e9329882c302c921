"""A small dashboard without mistakes, for tests to put one in."""

from __future__ import annotations

from typing import Any

from fastvideo.dashboards import Dashboard, Panel, Target, to_json
from fastvideo.dashboards.frame import ANNOTATIONS, VARIABLES, link_to
from fastvideo.dashboards.model import Row
from fastvideo.dashboards.queries import STEP, mean_step, quantile

MEAN = mean_step(by="run, step_kind")
GOOD = Dashboard(
    uid="fastvideo-small",
    title="Small",
    question="Is it small?",
    rows=(
        Row(
            "First",
            (
                Panel(
                    "Mean",
                    f"How long? {STEP}.",
                    "timeseries",
                    (Target(MEAN, "{{run}} {{step_kind}}"),),
                    unit="s",
                    width=14,
                    links=(link_to("fastvideo-step"),),
                ),
                Panel(
                    "Median (bucketed)",
                    f"How long mostly? {STEP}_bucket.",
                    "timeseries",
                    (Target(quantile(0.5, STEP, by="run"), "{{run}}", exemplar=True),),
                    unit="s",
                    width=10,
                ),
            ),
        ),
        Row(
            "Second",
            (Panel("Words", "What is this?", "text", text="Nothing.", width=24, height=3),),
        ),
    ),
    variables=VARIABLES,
    annotations=ANNOTATIONS,
)


def good() -> dict[str, Any]:
    """Returns the dashboard's JSON, new each time."""
    return to_json(GOOD)
