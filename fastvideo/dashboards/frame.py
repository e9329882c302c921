"""What all dashboards have around their panels: choices, marks in time, ways to one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.dashboards.model import Annotation, Link, Variable
from fastvideo.dashboards.queries import RUNS, WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

TITLES: Final = {
    "fastvideo-overview": "Overview",
    "fastvideo-step": "Step anatomy",
    "fastvideo-data": "Data",
    "fastvideo-ranks": "Ranks",
    "fastvideo-device": "Device and host",
    "fastvideo-checkpoint-validation": "Checkpoint and validation",
    "fastvideo-losses": "Losses and errors",
    "fastvideo-inference": "Inference",
    "fastvideo-telemetry": "Telemetry health",
}
"""All uids, and what a link to each of them says."""

VARIABLES: Final = (
    Variable("datasource", "Data source", "datasource", "prometheus"),
    # One at first: without a word for all, Grafana starts with the first. Names that end in a date
    # put the newest there.
    Variable("run", "Run", "query", "label_values(fastvideo_run_info, run)", multi=True, sort=2),
    Variable(
        "host",
        "Host",
        "query",
        'label_values(fastvideo_rank_info{run=~"$run"}, host)',
        multi=True,
        all=True,
        all_value=".*",
    ),
    # All ranks are those of the chosen hosts, which a pattern for anything would forget.
    Variable(
        "rank",
        "Rank",
        "query",
        'label_values(fastvideo_rank_info{run=~"$run",host=~"$host"}, rank)',
        multi=True,
        all=True,
        sort=3,
    ),
)

_CHECKPOINTS: Final = "fastvideo_training_checkpoint_duration_seconds_count"
_STARTS: Final = f"fastvideo_run_active{{{RUNS}}}"
_RESETS: Final = f"max by (run) (resets(fastvideo_training_steps_total{{{RUNS}}}[{WINDOW}])) > 0"

ANNOTATIONS: Final = (
    Annotation(
        "Checkpoint saved",
        f"max by (run) (changes({_CHECKPOINTS}{{{RUNS}}}[{WINDOW}])) > 0",
        "{{run}}",
        "blue",
        "no checkpoint was saved",
    ),
    Annotation(
        "Run started or restarted",
        f"{_RESETS} or (count by (run) ({_STARTS}) unless count by (run) ({_STARTS} offset 2m))",
        "{{run}}",
        "purple",
        "the run began before the time range",
    ),
    Annotation(
        "Kernel trace recorded",
        f"sum by (run, status) (changes(fastvideo_profiler_segments_total{{{RUNS}}}[{WINDOW}]))"
        " > 0",
        "{{run}}: {{status}}",
        "orange",
        "no kernel trace was recorded",
    ),
    Annotation(
        "Alert",
        'ALERTS{alertname=~"FastVideo.*",alertstate="firing",run=~"$run|"}',
        "{{alertname}} ({{severity}}) {{run}}",
        "red",
        "no alert fires",
    ),
)


def link_to(uid: str, *, title: str = "", choose: Sequence[str] = ()) -> Link:
    """Returns a link to another dashboard that keeps data source, choices and time range.

    Args:
        uid: The dashboard, one of `TITLES`.
        title: What it says; empty: to open the dashboard.
        choose: Labels of the series clicked on whose value is chosen there, instead of what is
            chosen here; of ``run``, ``host`` and ``rank``.
    """
    parts = ["${datasource:queryparam}"]
    for name in ("run", "host", "rank"):
        clicked = f"var-{name}=${{__field.labels.{name}}}"
        parts.append(clicked if name in choose else f"${{{name}:queryparam}}")
    parts.append("${__url_time_range}")
    return Link(title or f"Open {TITLES[uid]}", f"/d/{uid}?{'&'.join(parts)}")
