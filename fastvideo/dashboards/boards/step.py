"""Where the time of a step goes."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Override, Panel, Row, Target, Variable
from fastvideo.dashboards.panels import OVER_5_MIN, SMOOTH, bars, heat, lines

_UID: Final = "fastvideo-step"
_KINDS: Final = Variable(
    "step_kind",
    "Kind of step",
    "query",
    f'label_values({queries.STEP}_count{{run=~"$run"}}, step_kind)',
    multi=True,
    all=True,
)
_PER_STEP: Final = f"on (run) group_left () {queries.steps(by='run', where=queries.RANKS)}"
_AROUND: Final = "(training|inference)_.*|model_loading"
_MANAGED: Final = "|".join(part for part in queries.STEP_PARTS if not part.startswith("training_"))
_INSIDE: Final = f'{queries.RANKS},region!~"{_AROUND}|{_MANAGED}"'
_OF_PARTS: Final = f"{queries.RANKS},{queries.PARTS}"
_NO_INNER: Final = "the method enters no regions of its own"


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="Where does the time of a step go, and since when? Dots are exemplars: a click "
        "on one opens the trace of that step.",
        rows=(
            Row("A step by region", (_anatomy(), _shares())),
            Row("Kinds of step", _kinds()),
            Row("Spread of step times", _spread()),
            Row("Inside the regions", _inside()),
        ),
        variables=(*VARIABLES, _KINDS),
        annotations=ANNOTATIONS,
    )


def _part(region_label: str) -> str:
    return queries.rate(f"{queries.REGION}_sum", by=region_label, where=_OF_PARTS)


def _anatomy() -> Panel:
    rest = queries.rate(queries.UNATTRIBUTED, by="run", where=queries.RANKS)
    on_top = (
        ("custom.stacking", {"mode": "none"}),
        ("custom.fillOpacity", 0),
        ("custom.lineWidth", 2),
        ("custom.lineStyle", {"fill": "dash", "dash": [6, 6]}),
    )
    return lines(
        "A step of $run, by region",
        "Which region makes the step long? fastvideo_region_duration_seconds of the regions "
        "that a step consists of and fastvideo_training_unattributed_seconds_total, per step "
        "and as a mean over ranks and kinds of step. Together they are the mean step, the "
        "dashed line. A band that grows is where the time goes; a large unattributed rest is "
        "time outside of all regions, such as logging.",
        Target(f"{_part('run, region')} / {_PER_STEP} > 0", "{{region}}", min_interval=SMOOTH),
        Target(f"{rest} / {_PER_STEP}", "unattributed", min_interval=SMOOTH),
        Target(queries.mean_step(where=queries.RANKS), "mean step", min_interval=SMOOTH),
        unit="s",
        minimum=0,
        width=16,
        height=10,
        overrides=(Override("mean step", on_top),),
        links=(link_to("fastvideo-ranks"),),
        stacked=True,
        repeat="run",
    )


def _shares() -> Panel:
    whole = queries.rate(f"{queries.STEP}_sum", by="run", where=queries.RANKS)
    rest = queries.rate(queries.UNATTRIBUTED, by="run", where=queries.RANKS)
    share = f"on (run) group_left () ({whole} > 0)"
    return bars(
        "Share of step time now",
        "What share of step time does each region have? fastvideo_region_duration_seconds and "
        "fastvideo_training_unattributed_seconds_total over "
        "fastvideo_training_step_duration_seconds, over 5 minutes. training_dataloader above "
        "20 %: bound by data. The shares add up to 100 %.",
        Target(
            f"{_part('run, region')} / {share} > 0",
            "{{region}} · {{run}}",
            min_interval=OVER_5_MIN,
        ),
        Target(f"{rest} / {share}", "unattributed · {{run}}", min_interval=OVER_5_MIN),
        unit="percentunit",
        decimals=1,
        maximum=1,
        width=8,
        height=10,
        thresholds=((None, "blue"),),
    )


def _kinds() -> tuple[Panel, ...]:
    per_rank = queries.rate(f"{queries.STEP}_count", by="run, rank, step_kind", where=queries.RANKS)
    return (
        lines(
            "Mean step, by kind",
            "Did one kind of step become slower? Mean of fastvideo_training_step_duration_seconds "
            "for each kind; a mean over kinds moves with their mixture. A rise that stays is bad.",
            Target(
                queries.mean_step(by="run, step_kind", where=queries.RANKS),
                "{{step_kind}} · {{run}}",
                min_interval=SMOOTH,
            ),
            unit="s",
            minimum=0,
        ),
        lines(
            "Steps per minute, by kind",
            "How many steps of each kind are made? fastvideo_training_step_duration_seconds_count "
            "of the fastest rank. A changed mixture changes the mean over kinds, and nothing else.",
            Target(
                f"60 * max by (run, step_kind) ({per_rank})",
                "{{step_kind}} · {{run}}",
                min_interval=SMOOTH,
            ),
            unit="short",
            minimum=0,
        ),
    )


def _spread() -> tuple[Panel, ...]:
    quantiles = tuple(
        Target(
            queries.quantile(which, queries.STEP, by="run, step_kind", where=queries.RANKS),
            f"{{{{step_kind}}}} {name} · {{{{run}}}}",
            exemplar=True,
            min_interval=SMOOTH,
        )
        for which, name in ((0.5, "median"), (0.95, "95th percentile"))
    )
    return (
        heat(
            "Duration of steps of kind $step_kind",
            "Are steps alike, or are some slow? fastvideo_training_step_duration_seconds_bucket"
            " of one kind of step. A second band, or dots far above the band: some steps "
            "stall; open the trace of one.",
            queries.STEP,
            where=f'{queries.RANKS},step_kind=~"$step_kind"',
            width=24,
            repeat="step_kind",
            per_row=2,
        ),
        lines(
            "Median and 95th percentile step (bucketed)",
            "How slow are slow steps? fastvideo_training_step_duration_seconds_bucket, each kind "
            "of step for itself; bounds of buckets lie 25 % apart, and so does the answer. The "
            "two lines far from each other: some steps stall.",
            *quantiles,
            unit="s",
            minimum=0,
            width=24,
        ),
    )


def _inside() -> tuple[Panel, ...]:
    inner = queries.rate(f"{queries.REGION}_sum", by="run, region", where=_INSIDE)
    return (
        lines(
            "Regions within the regions, per step",
            "What does the method spend the time on? fastvideo_region_duration_seconds of all "
            "regions that lie inside those above, per step. They lie inside each other too, so "
            "they do not add up. A line that grows while the others do not is where to look.",
            Target(
                f"{inner} / {_PER_STEP} > 0",
                "{{region}} · {{run}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_INNER,
            ),
            unit="s",
            minimum=0,
            no_value=_NO_INNER,
        ),
        lines(
            "Mean time in a region of a step, per entry",
            "How long is one entry? Mean of fastvideo_region_duration_seconds of the regions that "
            "a step consists of: a forward pass of one micro-batch, where a step has several. A "
            "rise is bad.",
            Target(
                queries.mean(queries.REGION, by="run, region", where=_OF_PARTS),
                "{{region}} · {{run}}",
                min_interval=SMOOTH,
            ),
            unit="s",
            minimum=0,
        ),
    )
