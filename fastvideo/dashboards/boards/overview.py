"""Is the run healthy, and if not, which dashboard to open next."""

from __future__ import annotations

from typing import Any, Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Override, Panel, Row, Target, Word

_UID: Final = "fastvideo-overview"
_FIVE_MINUTES: Final = "5m"
_VERDICTS: Final = (
    Word(0, "fine", "green"),
    Word(1, "watch", "yellow"),
    Word(2, "look here", "red"),
)
_HIDDEN: Final = ("Time", "Value", "__name__", "job", "instance")


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="Is the run healthy? If not, the coloured field says which dashboard to open: "
        "click on it.",
        rows=(
            Row("Is it healthy? Click on what is not green", _health()),
            Row("What was wrong, and when", (_verdicts(), _firing())),
            Row("Progress", _progress()),
            Row("What runs", (_about(),)),
        ),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
    )


def _health() -> tuple[Panel, ...]:
    return (
        _run_state(),
        _ranks_missing(),
        _last_step(),
        _data_wait(),
        _slowest_rank(),
        _alerts(),
        _mean_step(),
        _step_rate(),
        _regression(),
        _nonfinite(),
        _errors(),
        _drops(),
    )


def _stat(title: str, question: str, target: Target, **rest: Any) -> Panel:  # noqa: ANN401 - Panel's
    return Panel(title, question, "stat", (target,), width=4, height=4, **rest)


def _run_state() -> Panel:
    return _stat(
        "Run",
        "Does the run go on? fastvideo_run_active, and the age of the last step "
        "(fastvideo_training_last_step_timestamp_seconds). Stalled: no step for 5 minutes and for "
        "10 mean steps of this run. Not scraped: no process answers; it was killed, or Prometheus "
        "cannot reach it.",
        Target(f"{queries.active()} + {queries.active()} * ({queries.is_stalled()})", "{{run}}"),
        no_value="not scraped",
        words=(
            Word(0, "ended", "blue"),
            Word(1, "running", "green"),
            Word(2, "stalled", "red"),
        ),
        links=(link_to("fastvideo-losses"),),
    )


def _ranks_missing() -> Panel:
    return _stat(
        "Ranks missing",
        "Do all ranks report? fastvideo_run_world_size less the ranks whose fastvideo_run_active "
        "is scraped as 1. Any missing rank is bad: its process died, or nobody scrapes it.",
        Target(f"{queries.world_size()} - {queries.ranks_reporting()}", "{{run}}"),
        no_value="run is over",
        thresholds=((None, "green"), (1, "red")),
        words=(Word(0, "none", "green"),),
        links=(link_to("fastvideo-ranks"),),
    )


def _last_step() -> Panel:
    return _stat(
        "Last step ended",
        "How long ago did the last step end? fastvideo_training_last_step_timestamp_seconds of "
        "the rank that is furthest. More than a few mean steps: the run hangs, or validates, or "
        "saves a checkpoint.",
        Target(f"{queries.step_age()} and {queries.active()} == 1", "{{run}}"),
        unit="s",
        decimals=0,
        no_value="run is over",
        thresholds=((None, "green"), (300, "yellow")),
        links=(link_to("fastvideo-step"),),
    )


def _data_wait() -> Panel:
    return _stat(
        "Data wait",
        "What share of step time do the ranks wait for data? "
        "fastvideo_training_dataloader_time_seconds over "
        "fastvideo_training_step_duration_seconds, over all ranks and 5 minutes. Above 10 % the "
        "data loader is worth a look; above 20 % training is bound by it.",
        Target(queries.data_share(), "{{run}}", min_interval=_FIVE_MINUTES),
        unit="percentunit",
        decimals=1,
        no_value="no steps",
        thresholds=((None, "green"), (0.1, "yellow"), (0.2, "red")),
        links=(link_to("fastvideo-data"),),
    )


def _slowest_rank() -> Panel:
    return _stat(
        "Slowest rank's own work above the median",
        "Does one rank hold up the others? Own work is the step less the wait in collectives "
        "(fastvideo_training_step_duration_seconds, "
        "fastvideo_training_collective_wait_seconds_total): the slowest rank against the median "
        "rank. All ranks' steps are equally long, so only this shows a straggler. Above 10 % "
        "look at the rank, above 20 % it costs the whole run that much.",
        Target(queries.own_work_excess(), "{{run}}", min_interval=_FIVE_MINUTES),
        unit="percentunit",
        decimals=1,
        no_value="no steps",
        thresholds=((None, "green"), (0.1, "yellow"), (0.2, "red")),
        links=(link_to("fastvideo-ranks"),),
    )


def _alerts() -> Panel:
    return _stat(
        "Alerts firing",
        "How many alerts fire for these runs? ALERTS, which Prometheus makes of the alerting "
        "rules. Any is worth reading: the list is below.",
        Target(
            'count(ALERTS{alertname=~"FastVideo.*",alertstate="firing",run=~"$run|"}) or vector(0)'
        ),
        thresholds=((None, "green"), (1, "red")),
        words=(Word(0, "none", "green"),),
    )


def _mean_step() -> Panel:
    return _stat(
        "Mean step, by kind",
        "How long is a step? Mean of fastvideo_training_step_duration_seconds over 5 minutes, for "
        "each kind of step: a method may have short and long ones. Compare it with a run that "
        "you know.",
        Target(
            queries.mean_step(by="run, step_kind"),
            "{{run}} {{step_kind}}",
            min_interval=_FIVE_MINUTES,
        ),
        unit="s",
        no_value="no steps",
        thresholds=((None, "text"),),
        links=(link_to("fastvideo-step"),),
    )


def _step_rate() -> Panel:
    return _stat(
        "Steps per minute",
        "How fast does it go? fastvideo_training_steps_total over 5 minutes, of the fastest rank. "
        "0 where a run should train: it stalls.",
        Target(
            "60 * max by (run) "
            f"(rate(fastvideo_training_steps_total{{{queries.RUNS}}}[{queries.WINDOW}]))",
            "{{run}}",
            min_interval=_FIVE_MINUTES,
        ),
        unit="short",
        thresholds=((None, "text"),),
        links=(link_to("fastvideo-step"),),
    )


def _regression() -> Panel:
    now = queries.mean_step(by="run, step_kind")
    before = now.replace(f"[{queries.WINDOW}]", f"[{queries.WINDOW}] offset 1h")
    return _stat(
        "Step time against an hour ago",
        "Did steps become slower? Mean of fastvideo_training_step_duration_seconds now against an "
        "hour ago, for the kind of step that changed most. More than 15 % slower: see which "
        "region grew.",
        Target(
            f"max by (run) (({now}) / ({before}) - 1)",
            "{{run}}",
            min_interval=_FIVE_MINUTES,
            may_be_empty="the run is younger than an hour",
        ),
        unit="percentunit",
        decimals=1,
        no_value="run is young",
        thresholds=((None, "green"), (0.15, "yellow"), (0.3, "red")),
        links=(link_to("fastvideo-step"),),
    )


def _nonfinite() -> Panel:
    return _stat(
        "Non-finite losses",
        "Was a loss NaN or infinite? fastvideo_training_nonfinite_loss_total of the rank with the "
        "most, since its process began. Any is bad: the weights may be lost.",
        Target(
            f"max by (run) (fastvideo_training_nonfinite_loss_total{{{queries.RUNS}}})", "{{run}}"
        ),
        no_value="not scraped",
        thresholds=((None, "green"), (1, "red")),
        words=(Word(0, "none", "green"),),
        links=(link_to("fastvideo-losses"),),
    )


def _errors() -> Panel:
    return _stat(
        "Errors in steps",
        "Did exceptions end steps? fastvideo_training_errors_total over all ranks and types, "
        "since their processes began. Any is bad.",
        Target(f"sum by (run) (fastvideo_training_errors_total{{{queries.RUNS}}})", "{{run}}"),
        no_value="not scraped",
        thresholds=((None, "green"), (1, "red")),
        words=(Word(0, "none", "green"),),
        links=(link_to("fastvideo-losses"),),
    )


def _drops() -> Panel:
    return _stat(
        "Telemetry lost or failing",
        "Can these numbers and traces be believed? Spans dropped "
        "(fastvideo_telemetry_spans_dropped_total) and errors inside telemetry "
        "(fastvideo_telemetry_sink_errors_total) within 5 minutes. Any: traces have holes; "
        "training goes on.",
        Target(
            queries.increase("fastvideo_telemetry_spans_dropped_total", by="run")
            + " + "
            + queries.increase("fastvideo_telemetry_sink_errors_total", by="run"),
            "{{run}}",
            min_interval=_FIVE_MINUTES,
        ),
        unit="short",
        no_value="not scraped",
        thresholds=((None, "green"), (1, "yellow")),
        words=(Word(0, "none", "green"),),
        links=(link_to("fastvideo-telemetry"),),
    )


def _two_limits(expr: str, watch: float, bad: float) -> str:
    return f"({expr} > bool {watch:g}) + ({expr} > bool {bad:g})"


def _verdicts() -> Panel:
    nonfinite = queries.increase("fastvideo_training_nonfinite_loss_total", by="run")
    errors = queries.increase("fastvideo_training_errors_total", by="run")
    dropped = queries.increase("fastvideo_telemetry_spans_dropped_total", by="run")
    failed = queries.increase("fastvideo_telemetry_sink_errors_total", by="run")
    missing = f"{queries.world_size()} > bool {queries.ranks_reporting()}"
    return Panel(
        "Verdicts",
        "What was wrong, and when? The same judgements as above, over time. Progress: stalled. "
        "Ranks: one is missing. Data wait: above 10 %, above 20 % of step time. Slowest rank: own "
        "work 10 %, 20 % above the median. Losses: NaN, infinite, or an exception. Telemetry: "
        "spans dropped or an error inside. Read it from top to bottom: what is above explains "
        "what is below.",
        "state-timeline",
        (
            Target(f"2 * ({queries.is_stalled()}) and {queries.active()} == 1", "{{run}} progress"),
            Target(f"2 * ({missing})", "{{run}} ranks"),
            Target(f"2 * ({nonfinite} + {errors} > bool 0)", "{{run}} losses"),
            Target(_two_limits(queries.data_share(), 0.1, 0.2), "{{run}} data wait"),
            Target(_two_limits(queries.own_work_excess(), 0.1, 0.2), "{{run}} slowest rank"),
            Target(f"{dropped} + {failed} > bool 0", "{{run}} telemetry"),
        ),
        width=14,
        height=9,
        thresholds=((None, "green"), (1, "yellow"), (2, "red")),
        words=_VERDICTS,
    )


def _hide(*names: str) -> dict[str, Any]:
    """Returns the transformation that leaves columns of a table out."""
    excluded = dict.fromkeys((*_HIDDEN, *names), True)
    return {"id": "organize", "options": {"excludeByName": excluded}}


def _firing() -> Panel:
    return Panel(
        "Alerts that fire now",
        "What does Prometheus complain about? ALERTS. Each alert's page in the runbooks says "
        "what to do. An empty table is good.",
        "table",
        (
            Target(
                'ALERTS{alertname=~"FastVideo.*",alertstate="firing",run=~"$run|"}',
                instant=True,
                format="table",
                may_be_empty="no alert fires",
            ),
        ),
        width=10,
        height=9,
        transformations=(_hide("alertstate"),),
        no_value="none",
        overrides=(Override("alertname", (("displayName", "alert"),)),),
    )


def _progress() -> tuple[Panel, ...]:
    return (
        Panel(
            "Mean step, by kind",
            "Does the step time hold? Mean of fastvideo_training_step_duration_seconds for each "
            "kind of step. A rise that stays: see the step's regions.",
            "timeseries",
            (
                Target(
                    queries.mean_step(by="run, step_kind"), "{{run}} {{step_kind}}", exemplar=True
                ),
            ),
            unit="s",
            minimum=0,
            width=8,
            links=(link_to("fastvideo-step", choose=("run",)),),
        ),
        Panel(
            "Ranks reporting",
            "Since when is a rank missing? Ranks whose fastvideo_run_active is scraped as 1, and "
            "fastvideo_run_world_size. The lines part where a rank is lost.",
            "timeseries",
            (
                Target(queries.ranks_reporting(), "{{run}} reporting"),
                Target(queries.world_size(), "{{run}} world size"),
            ),
            unit="short",
            decimals=0,
            minimum=0,
            width=8,
            overrides=(
                Override(
                    "/world size$/",
                    (("custom.lineStyle", {"fill": "dash", "dash": [6, 6]}),),
                    is_pattern=True,
                ),
            ),
            links=(link_to("fastvideo-ranks", choose=("run",)),),
        ),
        Panel(
            "Loss",
            "Does it learn? fastvideo_training_loss, each term's mean over ranks. A jump, or a "
            "gap (NaN), is bad.",
            "timeseries",
            (
                Target(
                    f"avg by (run, loss) (fastvideo_training_loss{{{queries.RUNS}}})",
                    "{{run}} {{loss}}",
                ),
            ),
            width=8,
            links=(link_to("fastvideo-losses", choose=("run",)),),
        ),
    )


def _about() -> Panel:
    return Panel(
        "Runs",
        "What is running here? Labels of fastvideo_run_info and fastvideo_build_info. Two lines "
        "for one run: its ranks do not have the same versions.",
        "table",
        (
            Target(
                f"count by (run, method, model, world_size) (fastvideo_run_info{{{queries.RUNS}}})",
                instant=True,
                format="table",
            ),
            Target(
                "count by (run, version, python, torch, cuda) "
                f"(fastvideo_build_info{{{queries.RUNS}}})",
                instant=True,
                format="table",
            ),
        ),
        width=24,
        height=5,
        transformations=({"id": "merge", "options": {}}, _hide("Value #A", "Value #B")),
    )
