"""Can the other dashboards be believed: what telemetry lost, what it costs, who answers."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES
from fastvideo.dashboards.model import Dashboard, Panel, Row, Target
from fastvideo.dashboards.panels import (
    ANY_IS_SUSPECT,
    NONE_IS_GOOD,
    OVER_5_MIN,
    SMOOTH,
    limits,
    lines,
    stat,
    table,
)

_UID: Final = "fastvideo-telemetry"
_SPANS: Final = "fastvideo_telemetry_spans_total"
_DROPPED: Final = "fastvideo_telemetry_spans_dropped_total"
_SINKS: Final = "fastvideo_telemetry_sink_errors_total"
_OVERHEAD: Final = "fastvideo_telemetry_overhead_seconds_total"
_SEGMENTS: Final = "fastvideo_profiler_segments_total"
_EXPORT: Final = "fastvideo_profiler_export_duration_seconds"
_WRITTEN: Final = "fastvideo_profiler_written_bytes_total"
_NO_SPANS: Final = "spans are off"
_NO_TRACES: Final = "no kernel trace was recorded"

_TARGETS: Final = (
    "on (job, instance) group_left (run, rank) "
    f"topk by (job, instance) (1, fastvideo_rank_info{{{queries.RANKS}}})"
)
"""What Prometheus says of a target, with the run and the rank that answer there."""

_HISTOGRAMS: Final = {
    "step": queries.STEP,
    "data wait": queries.DATALOADER,
    "checkpoint": queries.CHECKPOINT,
    "validation": queries.VALIDATION,
    "request": "fastvideo_inference_request_duration_seconds",
    "denoising step": "fastvideo_inference_denoising_step_duration_seconds",
}


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="Can the other dashboards be believed, and what does telemetry cost? Telemetry "
        "never stops a run: what it cannot keep it drops and counts.",
        rows=(
            Row("Is telemetry sound?", _now()),
            Row("Spans", _spans()),
            Row("Scrapes", _scrapes()),
            Row("Numbers", _numbers()),
            Row("Kernel traces", _segments()),
        ),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
    )


def _increase(metric: str, *, by: str = "run", more: str = "") -> str:
    return queries.increase(metric, by=by, where=f"{queries.RANKS}{more}")


def _overhead() -> str:
    spent = queries.rate(_OVERHEAD, by="run", where=queries.RANKS)
    return f"{spent} / ({queries.rate(f'{queries.STEP}_sum', by='run', where=queries.RANKS)} > 0)"


def _now() -> tuple[Panel, ...]:
    return (
        stat(
            "Spans lost",
            f"Do traces have holes? {_DROPPED} within 5 minutes, without those that a large trace "
            "leaves out on purpose (trace_budget). Any: see the reasons below.",
            Target(f"ceil({queries.dropped_spans()})", "{{run}}", min_interval=OVER_5_MIN),
            unit="short",
            no_value="not scraped",
            thresholds=ANY_IS_SUSPECT,
            words=NONE_IS_GOOD,
            width=6,
        ),
        stat(
            "Errors inside telemetry",
            f"Did telemetry itself fail? {_SINKS} of the chosen ranks, since their processes "
            "began. Any: some numbers or spans are missing; the log says what raised.",
            Target(f"sum by (run) ({_SINKS}{{{queries.RANKS}}})", "{{run}}"),
            no_value="not scraped",
            thresholds=ANY_IS_SUSPECT,
            words=NONE_IS_GOOD,
            width=6,
        ),
        stat(
            "Cost, as a share of the step",
            f"What does telemetry cost? {_OVERHEAD} over "
            "fastvideo_training_step_duration_seconds, over 5 minutes, where it is measured. Above "
            "1 %: steps are very short, or too many regions are entered.",
            Target(_overhead(), "{{run}}", min_interval=OVER_5_MIN),
            unit="percentunit",
            decimals=3,
            no_value="no steps",
            thresholds=limits(0.01, 0.05),
            width=6,
        ),
        stat(
            "Longest scrape of 5 minutes",
            "Does an endpoint answer slowly? scrape_duration_seconds of the slowest rank. Near 10 "
            "seconds, where Prometheus gives up, numbers have gaps: the host is overloaded.",
            Target(
                f"max by (run) (max_over_time(scrape_duration_seconds[5m]) * {_TARGETS})",
                "{{run}}",
            ),
            unit="s",
            no_value="not scraped",
            thresholds=limits(1, 5),
            width=6,
        ),
    )


def _spans() -> tuple[Panel, ...]:
    return (
        lines(
            "Spans per second, by outcome",
            f"Are spans sent? {_SPANS} of the chosen ranks. All 0: spans are off, or no step is "
            "in the sample. Any that is dropped: see beside.",
            Target(
                queries.rate(_SPANS, by="run, outcome", where=queries.RANKS),
                "{{outcome}} · {{run}}",
            ),
            unit="short",
            minimum=0,
            width=8,
        ),
        lines(
            "Share of spans dropped",
            f"How large are the holes? {_DROPPED} without trace_budget, over {_SPANS}. Above 1 % "
            "an alert fires.",
            Target(
                f"{queries.dropped_spans()} / ({queries.increase(_SPANS, by='run')} > 0)",
                "{{run}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_SPANS,
            ),
            unit="percentunit",
            minimum=0,
            reach=0.02,
            thresholds=((None, "green"), (0.01, "red")),
            no_value=_NO_SPANS,
            width=8,
        ),
        lines(
            "Dropped spans, by reason",
            f"Why are spans dropped? {_DROPPED} per second and reason, those that occur. "
            "queue_full: more than can be sent; sample less. unreachable, timeout, unavailable, "
            "rejected: the collector.",
            Target(
                queries.rate(_DROPPED, by="run, reason", where=queries.RANKS) + " > 0",
                "{{reason}} · {{run}}",
                may_be_empty="no span was dropped",
            ),
            unit="short",
            minimum=0,
            no_value="none dropped",
            width=8,
        ),
    )


def _scrapes() -> tuple[Panel, ...]:
    return (
        lines(
            "Scrape time, by rank",
            "Which endpoint is slow? scrape_duration_seconds of each chosen rank. It should be "
            "milliseconds; a rise on one host: its cores are busy.",
            Target(f"scrape_duration_seconds * {_TARGETS}", "rank {{rank}} · {{run}}"),
            unit="s",
            minimum=0,
            width=8,
        ),
        lines(
            "Samples per scrape, by rank",
            "How many series does a rank have? scrape_samples_scraped. Some hundreds are usual; "
            "one that keeps growing is bad: a label has no bound.",
            Target(f"scrape_samples_scraped * {_TARGETS}", "rank {{rank}} · {{run}}"),
            unit="short",
            minimum=0,
            width=8,
        ),
        table(
            "Targets that do not answer",
            "Whom can Prometheus not reach? up is 0, in jobs whose name has fastvideo in it. A "
            "process that was killed leaves its target file behind. An empty table is good.",
            Target(
                'count by (job, instance) (up{job=~".*fastvideo.*"} == 0)',
                may_be_empty="all targets answer",
            ),
            hide=("Value",),
            show=("job", "instance"),
            columns={"instance": "address"},
            first=("instance",),
            no_value="none",
            width=8,
            height=8,
        ),
    )


def _beyond(metric: str) -> str:
    """Returns the share of observations above a histogram's highest bound.

    Buckets are cumulative, so the highest bound's has the most; its bound is not named, as the
    text of a bound differs between formats of exposition.
    """
    labels = "run, rank, step_kind" if metric == queries.STEP else "run, rank"
    below = (
        f"sum by (run) (max by ({labels}) "
        f'(increase({metric}_bucket{{{queries.RANKS},le!="+Inf"}}[{queries.WINDOW}])))'
    )
    rounded = f"round(1 - {below} / ({_increase(f'{metric}_count')} > 0), 1e-6)"
    return f"clamp_min({rounded}, 0)"


def _numbers() -> tuple[Panel, ...]:
    always = ("step", "data wait")
    return (
        lines(
            "Share of observations beyond the highest bound, by histogram",
            "Do histograms reach far enough? Observations in the bucket of +Inf over all: "
            + ", ".join(f"{metric}_bucket" for metric in _HISTOGRAMS.values())
            + ". Above 0 quantiles and heatmaps are cut off; means stay right. Bounds reach half "
            "an hour, an hour for checkpoints and validations.",
            *(
                Target(
                    _beyond(metric),
                    f"{name} · {{{{run}}}}",
                    min_interval=OVER_5_MIN,
                    may_be_empty="" if name in always else f"there is no {name}",
                )
                for name, metric in _HISTOGRAMS.items()
            ),
            unit="percentunit",
            minimum=0,
            reach=0.01,
            width=8,
        ),
        lines(
            "Errors inside telemetry, by part",
            f"Which part fails? {_SINKS} by the part that raised, over the chosen ranks. A line "
            "that rises is bad.",
            Target(f"sum by (run, sink) ({_SINKS}{{{queries.RANKS}}})", "{{sink}} · {{run}}"),
            minimum=0,
            decimals=0,
            width=8,
        ),
        lines(
            "Cost over time",
            f"Does telemetry cost more than it did? {_OVERHEAD} over "
            "fastvideo_training_step_duration_seconds. It should stay below 1 %.",
            Target(_overhead(), "{{run}}", min_interval=SMOOTH),
            unit="percentunit",
            minimum=0,
            reach=0.01,
            width=8,
        ),
    )


def _segments() -> tuple[Panel, ...]:
    return (
        lines(
            "Segments, by status",
            f"What became of kernel traces? {_SEGMENTS} of the chosen ranks, since their "
            "processes began, those that occur. no_kernels on a CUDA machine, failed and "
            "summary_failed are bad; skipped: the limit of segments was reached.",
            Target(
                f"sum by (run, status) ({_SEGMENTS}{{{queries.RANKS}}}) > 0",
                "{{status}} · {{run}}",
                may_be_empty=_NO_TRACES,
            ),
            minimum=0,
            decimals=0,
            no_value=_NO_TRACES,
            width=8,
        ),
        lines(
            "Mean export of a segment",
            f"How long is a segment under way? Mean of {_EXPORT}, off the training thread. "
            "Minutes: segments are too large; record fewer steps.",
            Target(
                queries.mean(_EXPORT, by="run", where=queries.RANKS),
                "{{run}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_TRACES,
            ),
            unit="s",
            minimum=0,
            no_value=_NO_TRACES,
            width=8,
        ),
        lines(
            "Bytes of kernel traces written",
            f"Does the disk fill up? {_WRITTEN} over the chosen ranks, since their processes "
            "began. Compare it with what is free.",
            Target(f"sum by (run) ({_WRITTEN}{{{queries.RANKS}}})", "{{run}}"),
            unit="bytes",
            minimum=0,
            width=8,
        ),
    )
