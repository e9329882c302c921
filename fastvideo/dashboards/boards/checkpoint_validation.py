"""What checkpoints and validations cost, and how old the last ones are."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Panel, Row, Target
from fastvideo.dashboards.panels import OVER_5_MIN, PLAIN, SMOOTH, bars, heat, limits, lines, stat

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
    return (
        *_numbers(metric, noun, verb, none=none, whole=whole),
        lines(
            f"Share of time {verb}",
            f"What share of the run's time goes into it? Seconds per second of {metric}, mean "
            "over ranks. A peak of 1 is a pause of the whole run; peaks that touch each other "
            "are too much.",
            Target(
                f"avg by (run) (rate({metric}_sum{{{queries.RANKS}}}[{queries.WINDOW}]))",
                "{{run}}",
                min_interval=SMOOTH,
            ),
            unit="percentunit",
            minimum=0,
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
                "{{run}} rank {{rank}}",
                may_be_empty=none,
            ),
            unit="s",
            no_value=none,
            thresholds=((None, "blue"),),
            width=8,
            links=(_TO_RANK,),
        ),
        heat(
            f"Durations of each {noun}",
            f"Do they become longer? {metric}_bucket; a click on a dot opens its trace. Rising "
            "cells: storage fills up or is shared with others.",
            metric,
            width=8,
        ),
    )


def _numbers(metric: str, noun: str, verb: str, *, none: str, whole: str) -> tuple[Panel, ...]:
    times = (
        "time() - max by (run) (max_over_time(timestamp("
        f"increase({metric}_count{{{queries.RANKS}}}[{queries.WINDOW}]) > 0)"
        "[$__range:1m]))"
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
            f"Share of time {verb}, now",
            f"What does it cost? Seconds per second of {metric} over the last minutes, mean over "
            "ranks. Over hours it should stay below 5 %: do it less often, or faster.",
            Target(
                f"avg by (run) (rate({metric}_sum{{{queries.RANKS}}}[{queries.WINDOW}]))",
                "{{run}}",
                min_interval=OVER_5_MIN,
            ),
            unit="percentunit",
            decimals=1,
            no_value="not scraped",
            thresholds=limits(0.05, 0.2),
            width=6,
        ),
    )
