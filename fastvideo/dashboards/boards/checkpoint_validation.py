"""What checkpoints and validations cost, and how old the last ones are."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Override, Panel, Row, Target
from fastvideo.dashboards.panels import PLAIN, POINTS, SMOOTH, bars, limits, lines, stat

_UID: Final = "fastvideo-checkpoint-validation"
_TO_RANK: Final = link_to("fastvideo-ranks", choose=("run", "rank"))


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="What do checkpoints and validations cost, and how much work would a crash lose? "
        "No step ends during either.",
        rows=(
            Row("Checkpoints", _event(queries.CHECKPOINT, "checkpoint", "saving")),
            Row("Validation", _event(queries.VALIDATION, "validation", "validating")),
        ),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
    )


def _event(metric: str, noun: str, verb: str) -> tuple[Panel, ...]:
    """Returns the panels on one of the two kinds of event."""
    none = f"no {noun} yet"
    whole = (
        f"sum by (run) ({metric}_sum{{{queries.RANKS}}}) / "
        f"(sum by (run) ({metric}_count{{{queries.RANKS}}}) > 0)"
    )
    seconds = f"avg by (run) (rate({metric}_sum{{{queries.RANKS}}}[{queries.WINDOW}]))"
    return (
        *_numbers(metric, noun, verb, none=none, whole=whole),
        lines(
            f"Share of time {verb}, over time",
            f"What share of the run's time goes into it? Seconds per second of {metric}, mean "
            "over ranks, over two minutes, counted where one ends; 100 % is a pause of two minutes "
            "or more. Peaks that touch each other are too much.",
            Target(
                f"clamp_max({seconds}, 1)",
                "{{run}}",
                min_interval=SMOOTH,
            ),
            unit="percentunit",
            minimum=0,
            reach=0.05,
            width=8,
        ),
        bars(
            f"Mean {noun}: the ten slowest ranks",
            f"Is one rank slower? Mean of {metric} since each process began. One far above the "
            "others: its disk or network; the others wait for it.",
            Target(
                queries.descending(
                    "topk by (run) (10, sum by (run, rank) "
                    f"({metric}_sum{{{queries.RANKS}}}) / "
                    f"(sum by (run, rank) ({metric}_count{{{queries.RANKS}}}) > 0))"
                ),
                "rank {{rank}} · {{run}}",
                may_be_empty=none,
            ),
            unit="s",
            no_value=none,
            thresholds=((None, "blue"),),
            width=8,
            links=(_TO_RANK,),
        ),
        _durations(metric, noun, none=none),
    )


def _durations(metric: str, noun: str, *, none: str) -> Panel:
    return lines(
        f"Duration of each {noun}",
        f"Do they become longer? {metric} of those that ended within about a minute: the mean "
        "over ranks, and the slowest rank. Points that rise: storage fills up or is shared "
        "with others. Points far apart: one rank keeps the others waiting.",
        Target(
            queries.mean(metric, by="run", where=queries.RANKS),
            "mean of ranks · {{run}}",
            min_interval="1m",
            may_be_empty=none,
        ),
        Target(
            f"max by (run) ({queries.mean(metric, by='run, rank', where=queries.RANKS)})",
            "slowest rank · {{run}}",
            min_interval="1m",
            may_be_empty=none,
        ),
        unit="s",
        minimum=0,
        no_value="none in this range",
        overrides=(Override("/·/", POINTS, is_pattern=True),),
        width=8,
    )


def _numbers(metric: str, noun: str, verb: str, *, none: str, whole: str) -> tuple[Panel, ...]:
    spent = f"sum by (run) ({metric}_sum{{{queries.RANKS}}})"
    everything = " + ".join(
        f"sum by (run) ({each}_sum{{{queries.RANKS}}})"
        for each in (queries.STEP, queries.CHECKPOINT, queries.VALIDATION)
    )
    grown = f"increase({metric}_count{{{queries.RANKS}}}[{queries.WINDOW}]) > 0"
    times = (
        f"time() - max by (run) (timestamp({grown}) "
        f"or max_over_time(timestamp({grown})[$__range:1m]))"
    )
    return (
        stat(
            f"Last {noun}, about … ago",
            f"How old is the last one? When {metric}_count last grew within the time range, to "
            "about a minute. For checkpoints it is the work that a crash would lose.",
            Target(times, "{{run}}", min_interval="1m", may_be_empty=none),
            unit="s",
            decimals=0,
            no_value="none in this range",
            thresholds=PLAIN,
            width=6,
        ),
        stat(
            f"{noun.capitalize()}s so far",
            f"How many were there? {metric}_count of the rank with the most, since its process "
            "began. 0 after hours of training: the setting that says how often is missing.",
            Target(f"max by (run) ({metric}_count{{{queries.RANKS}}})", "{{run}}"),
            no_value="not scraped",
            thresholds=PLAIN,
            width=6,
        ),
        stat(
            f"Mean {noun}",
            f"How long does one take? Mean of {metric} since the processes began, over ranks. "
            "Minutes: the run stands still for that long each time.",
            Target(whole, "{{run}}", may_be_empty=none),
            unit="s",
            no_value=none,
            thresholds=PLAIN,
            width=6,
        ),
        stat(
            f"Share of time {verb}, so far",
            f"What does it cost? Seconds of {metric} since the processes began, over those of "
            "steps, checkpoints and validations together. Over hours it should stay below 5 %: do "
            "it less often, or faster.",
            Target(f"{spent} / ({everything} > 0)", "{{run}}"),
            unit="percentunit",
            decimals=1,
            no_value="no steps",
            thresholds=limits(0.05, 0.2),
            width=6,
        ),
    )
