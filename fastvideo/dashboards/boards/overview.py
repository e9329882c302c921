"""Is the run healthy, and if not, which dashboard to open next."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Override, Panel, Row, Target, Word
from fastvideo.dashboards.panels import (
    ANY_IS_BAD,
    ANY_IS_SUSPECT,
    DASHED,
    DATA_WAIT,
    FIRING,
    LATE,
    NONE_IS_GOOD,
    OVER_5_MIN,
    PLAIN,
    SMOOTH,
    column,
    limits,
    lines,
    stat,
    table,
)

_UID: Final = "fastvideo-overview"
_HELD_SINCE: Final = 'ALERTS_FOR_STATE{alertname=~"FastVideo.*",run=~"$run|"}'
_SEVERITIES: Final = {"page": "red", "warning": "yellow", "info": "blue"}
_WORST_DATA_SHARE: Final = f"max by (run) ({queries.data_share(by='run, rank')})"


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="Is the run healthy? If not, the field that is not green says what to open next: "
        "click on it.",
        rows=(
            Row(
                "Is it healthy? Click on what is not green",
                (*_state(), *_pace(), *_speed(), *_trouble()),
            ),
            Row("What was wrong, and when", (_verdicts(), _firing())),
            Row("Progress", _progress()),
            Row("What runs", (_about(),)),
        ),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
    )


def _state() -> tuple[Panel, ...]:
    return (
        stat(
            "Run → Ranks",
            "Does the run go on? fastvideo_run_active, and the age of the last step "
            "(fastvideo_training_last_step_timestamp_seconds). Stalled: no step for ten mean "
            "steps and five minutes (half an hour before the first step). Not scraped: no process "
            "answers; it was killed, or Prometheus cannot reach it.",
            Target(
                f"{queries.active()} + {queries.active()} * ({queries.is_stalled()}) "
                f"or {queries.active()}",
                "{{run}}",
            ),
            no_value="not scraped",
            thresholds=((None, "blue"), (1, "green"), (2, "red")),
            words=(
                Word(0, "ended", "blue"),
                Word(1, "running", "green"),
                Word(2, "stalled", "red"),
            ),
            links=(link_to("fastvideo-ranks"),),
        ),
        stat(
            "Ranks missing → Ranks",
            "Do all ranks report? fastvideo_run_world_size less the ranks whose "
            "fastvideo_run_active is scraped as 1. Any that is missing is bad: its process died, "
            "or nobody can scrape it.",
            Target(f"{queries.world_size()} - {queries.ranks_reporting()}", "{{run}}"),
            no_value="no rank at work",
            thresholds=ANY_IS_BAD,
            words=NONE_IS_GOOD,
            links=(link_to("fastvideo-ranks"),),
        ),
        stat(
            "Last step ended … ago → Ranks",
            "How long ago did the last step end? fastvideo_training_last_step_timestamp_seconds "
            "of the rank that is furthest. More than a few mean steps: the run hangs, validates, "
            "or saves a checkpoint.",
            Target(f"{queries.step_age()} and {queries.active()} == 1", "{{run}}"),
            unit="s",
            decimals=0,
            no_value="no rank at work",
            thresholds=((None, "green"), (300, "yellow")),
            links=(link_to("fastvideo-ranks"),),
        ),
    )


def _pace() -> tuple[Panel, ...]:
    now = queries.mean_step(by="run, step_kind")
    usual = f"quantile_over_time(0.25, ({now})[1h:1m])"
    times_as_long = f"max by (run) (({now}) / ({usual} > 0))"
    return (
        stat(
            "Data wait, worst rank → Data",
            "What share of its step does the rank that waits most wait for data? "
            "fastvideo_training_dataloader_time_seconds over "
            "fastvideo_training_step_duration_seconds, over 5 minutes. Above 10 % the loader is "
            "worth a look; above 20 % training is bound by data.",
            Target(_WORST_DATA_SHARE, "{{run}}", min_interval=OVER_5_MIN),
            unit="percentunit",
            decimals=1,
            no_value="no steps",
            thresholds=limits(*DATA_WAIT),
            links=(link_to("fastvideo-data"),),
        ),
        stat(
            "Slowest rank vs median → Ranks",
            "What share of each step do the others lose waiting for the slowest rank? Own work is "
            "fastvideo_training_step_duration_seconds less "
            "fastvideo_training_collective_wait_seconds_total, over 5 minutes. All ranks' steps "
            "are equally long, so only this shows a straggler. Above 10 % one rank holds up the "
            "run.",
            Target(queries.lateness(), "{{run}}", min_interval=OVER_5_MIN),
            unit="percentunit",
            decimals=1,
            no_value="no steps",
            thresholds=limits(*LATE),
            links=(link_to("fastvideo-ranks"),),
        ),
        stat(
            "Step vs last hour → Step anatomy",
            "Did steps become slower? How many times as long a step takes as it did: "
            "fastvideo_training_step_duration_seconds, the mean over 5 minutes, over the lower "
            "quartile of such means in the last hour, or since the run began, for the kind of step "
            "that changed most. 1: as before; below 1: faster; 2: twice as long. Above 1.25: see "
            "which region grew. Above 1.5 an alert fires, if nothing known explains it.",
            Target(times_as_long, "{{run}}", min_interval=OVER_5_MIN),
            unit="suffix:x as long",
            decimals=2,
            no_value="no steps",
            thresholds=limits(1.25, 1.5),
            links=(link_to("fastvideo-step"),),
        ),
    )


def _speed() -> tuple[Panel, ...]:
    return (
        stat(
            "Mean step → Step anatomy",
            "How long is a step? Mean of fastvideo_training_step_duration_seconds over 5 minutes, "
            "for each kind: a method may have short and long ones. Compare it with a run you know.",
            Target(
                queries.mean_step(by="run, step_kind"),
                "{{step_kind}} · {{run}}",
                min_interval=OVER_5_MIN,
            ),
            unit="s",
            no_value="no steps",
            thresholds=PLAIN,
            links=(link_to("fastvideo-step"),),
        ),
        stat(
            "Steps per minute → Step anatomy",
            "How fast does it go? fastvideo_training_steps_total over 5 minutes, of the fastest "
            "rank. 0 where a run should train: it stalls.",
            Target(
                "60 * max by (run) "
                f"(rate(fastvideo_training_steps_total{{{queries.RUNS}}}[{queries.WINDOW}]))",
                "{{run}}",
                min_interval=OVER_5_MIN,
            ),
            unit="short",
            decimals=1,
            no_value="not scraped",
            thresholds=PLAIN,
            links=(link_to("fastvideo-step"),),
        ),
    )


def _trouble() -> tuple[Panel, ...]:
    firing = f"count by (severity) (ALERTS{{{FIRING}}})"
    none = f"vector(0) unless on () ALERTS{{{FIRING}}}"
    quiet = f'label_replace({none}, "severity", "none", "", "")'
    return (
        stat(
            "Non-finite losses → Losses",
            "Was a loss NaN or infinite? fastvideo_training_nonfinite_loss_total of the rank with "
            "the most, since its process began. Any is bad: the weights may be lost.",
            Target(
                f"max by (run) (fastvideo_training_nonfinite_loss_total{{{queries.RUNS}}})",
                "{{run}}",
            ),
            no_value="not scraped",
            thresholds=ANY_IS_BAD,
            words=NONE_IS_GOOD,
            links=(link_to("fastvideo-losses"),),
        ),
        stat(
            "Errors in steps → Losses",
            "Did exceptions end steps? fastvideo_training_errors_total over all ranks and types, "
            "since their processes began. Any is bad.",
            Target(f"sum by (run) (fastvideo_training_errors_total{{{queries.RUNS}}})", "{{run}}"),
            no_value="not scraped",
            thresholds=ANY_IS_BAD,
            words=NONE_IS_GOOD,
            links=(link_to("fastvideo-losses"),),
        ),
        stat(
            "Lost telemetry → Telemetry",
            "Can the numbers and traces be believed? Spans that were dropped "
            "(fastvideo_telemetry_spans_dropped_total) and errors inside telemetry "
            "(fastvideo_telemetry_sink_errors_total) within 5 minutes. Any: traces have holes; "
            "training goes on.",
            Target(
                f"ceil({queries.dropped_spans()} + {_sink_errors()})",
                "{{run}}",
                min_interval=OVER_5_MIN,
            ),
            unit="short",
            no_value="not scraped",
            thresholds=ANY_IS_SUSPECT,
            words=NONE_IS_GOOD,
            links=(link_to("fastvideo-telemetry"),),
        ),
        stat(
            "Alerts firing → below",
            "How many alerts fire for these runs? ALERTS, which Prometheus makes of the alerting "
            "rules, by severity: red are those that page, yellow are warnings, blue inform. They "
            "are listed below.",
            Target(f"{firing} or {quiet}", "{{severity}}"),
            thresholds=ANY_IS_BAD,
            words=NONE_IS_GOOD,
            overrides=tuple(
                Override(severity, (("color", {"mode": "fixed", "fixedColor": colour}),))
                for severity, colour in _SEVERITIES.items()
            ),
        ),
    )


def _sink_errors() -> str:
    return queries.increase("fastvideo_telemetry_sink_errors_total", by="run")


def _verdicts() -> Panel:
    nonfinite = queries.increase("fastvideo_training_nonfinite_loss_total", by="run")
    errors = queries.increase("fastvideo_training_errors_total", by="run")
    missing = f"{queries.world_size()} > bool {queries.ranks_reporting()}"
    data = queries.verdict(_WORST_DATA_SHARE, watch=DATA_WAIT[0], bad=DATA_WAIT[1])
    late = queries.verdict(queries.lateness(), watch=LATE[0], bad=LATE[1])
    return Panel(
        "Verdicts",
        "What was wrong, and when? The judgements above over time. Ranks: one is missing "
        "(fastvideo_run_world_size). Progress: stalled "
        "(fastvideo_training_last_step_timestamp_seconds). Losses: NaN, infinite, or an "
        "exception. Data wait: above 10 %, 20 %. Slowest rank: above 5 %, 10 % of the step. "
        "Telemetry: spans dropped, or an error inside. Read from the top: what is above often "
        "explains what is below.",
        "state-timeline",
        (
            Target(f"2 * ({missing})", "ranks · {{run}}"),
            Target(
                f"2 * ({queries.is_stalled()}) and {queries.active()} == 1", "progress · {{run}}"
            ),
            Target(f"2 * ({nonfinite} + {errors} > bool 0)", "losses · {{run}}"),
            Target(data, "data wait · {{run}}", min_interval=SMOOTH),
            Target(late, "slowest rank · {{run}}", min_interval=SMOOTH),
            Target(f"{queries.dropped_spans()} + {_sink_errors()} > bool 0", "telemetry · {{run}}"),
        ),
        width=14,
        height=9,
        thresholds=limits(1, 2),
        words=(
            Word(0, "fine", "green"),
            Word(1, "watch", "yellow"),
            Word(2, "look here", "red"),
        ),
    )


def _firing() -> Panel:
    return table(
        "Alerts that fire now",
        "What does Prometheus complain about, and for how long? ALERTS, and ALERTS_FOR_STATE, "
        "which says since when its condition holds: an alert fires some minutes later. The "
        "runbooks have a section for each that says what to do. An empty table is good.",
        Target(
            f"time() - {_HELD_SINCE} and ignoring (alertstate) ALERTS{{{FIRING}}}",
            may_be_empty="no alert fires",
        ),
        width=10,
        height=9,
        hide=("alertstate",),
        columns={"alertname": "alert", "Value": "holds for"},
        first=("alertname", "severity", "Value", "run"),
        overrides=(column("holds for", "s", decimals=0),),
        no_value="none",
    )


def _progress() -> tuple[Panel, ...]:
    return (
        lines(
            "Mean step, by kind",
            "Does the step time hold? Mean of fastvideo_training_step_duration_seconds for each "
            "kind of step. A rise that stays: see the step's regions.",
            Target(
                queries.mean_step(by="run, step_kind"),
                "{{step_kind}} · {{run}}",
                min_interval=SMOOTH,
            ),
            unit="s",
            minimum=0,
            width=8,
            links=(link_to("fastvideo-step", choose=("run",)),),
        ),
        lines(
            "Ranks reporting",
            "Since when is a rank missing? Ranks whose fastvideo_run_active is scraped as 1, and "
            "fastvideo_run_world_size. The lines part where a rank is lost.",
            Target(queries.ranks_reporting(), "reporting · {{run}}"),
            Target(queries.world_size(), "world size · {{run}}"),
            unit="short",
            decimals=0,
            minimum=0,
            width=8,
            overrides=(Override("/^world size/", DASHED, is_pattern=True),),
            links=(link_to("fastvideo-ranks", choose=("run",)),),
        ),
        lines(
            "Total loss",
            "Does it learn? fastvideo_training_loss, the mean over ranks of the sum of all terms; "
            "each term has a panel of its own. A jump is bad, and so is a gap: NaN is not drawn.",
            Target(
                f'avg by (run) (fastvideo_training_loss{{{queries.RUNS},loss="total_loss"}})',
                "{{run}}",
            ),
            width=8,
            links=(link_to("fastvideo-losses", choose=("run",)),),
        ),
    )


def _about() -> Panel:
    return table(
        "Runs",
        "What is running here? The labels of fastvideo_run_info and fastvideo_build_info. Two "
        "lines for one run: its ranks do not have the same versions.",
        Target(f"count by (run, method, model, world_size) (fastvideo_run_info{{{queries.RUNS}}})"),
        Target(
            f"count by (run, version, python, torch, cuda) (fastvideo_build_info{{{queries.RUNS}}})"
        ),
        width=24,
        height=5,
        hide=("Value #A", "Value #B"),
        columns={"world_size": "world size", "version": "fastvideo"},
    )
