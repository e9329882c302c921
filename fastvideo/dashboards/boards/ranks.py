"""Which rank is the slow one, and is any missing or behind."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Panel, Row, Target
from fastvideo.dashboards.panels import (
    ANY_IS_BAD,
    LATE,
    NONE_IS_GOOD,
    OVER_5_MIN,
    PLAIN,
    SMOOTH,
    bars,
    column,
    limits,
    lines,
    stat,
    table,
)

_UID: Final = "fastvideo-ranks"
_STEP_NUMBER: Final = "fastvideo_training_step"
_TO_RANK: Final = link_to("fastvideo-step", title="Steps of this rank", choose=("run", "rank"))
_NO_REPLICAS: Final = "no replicas that exchange gradients (hsdp_replicate_dim is 1)"
_NO_WAIT: Final = "no rank waits for another one"
_NAMED: Final = (("textMode", "value_and_name"),)


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="Which rank holds up the others? Every rank's step takes as long as the slowest "
        "rank needs, so step times do not tell. The slow one waits least and works most.",
        rows=(
            Row("Who is slow, and what does it cost?", _now()),
            Row("Own work and waiting", _work()),
            Row("Collectives and progress", _progress()),
            Row("All ranks", (_all_ranks(),)),
        ),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
    )


def _now() -> tuple[Panel, ...]:
    return (
        stat(
            "Lost to the slowest rank",
            "What share of each step do the others lose waiting for the slowest rank? Its own "
            "work above the median rank's, over the step: "
            "fastvideo_training_step_duration_seconds less "
            "fastvideo_training_collective_wait_seconds_total, over 5 minutes. Above 10 % an "
            "alert fires.",
            Target(queries.lateness(), "{{run}}", min_interval=OVER_5_MIN),
            unit="percentunit",
            decimals=1,
            no_value="no steps",
            thresholds=limits(*LATE),
            width=6,
        ),
        _one_rank(
            "Works most: the slow one",
            "Which rank is slow, if any is? The rank with the most own work per step: "
            "fastvideo_training_step_duration_seconds less "
            "fastvideo_training_collective_wait_seconds_total. It matters only where the field on "
            "the left is not green.",
            f"topk by (run) (1, {queries.own_work()})",
        ),
        _one_rank(
            "Waits least: the slow one",
            "Does the waiting say the same? The rank with the least "
            "fastvideo_training_collective_wait_seconds_total per step. Another rank than on the "
            "left: neither is slow, or the cause moves about.",
            f"bottomk by (run) (1, {queries.wait_per_step()})",
        ),
        stat(
            "Ranks missing",
            "Do all ranks report? fastvideo_run_world_size less the ranks whose "
            "fastvideo_run_active is scraped as 1. Any that is missing is bad; the table below "
            "has those that report.",
            Target(f"{queries.world_size()} - {queries.ranks_reporting()}", "{{run}}"),
            no_value="no rank at work",
            thresholds=ANY_IS_BAD,
            words=NONE_IS_GOOD,
            width=6,
        ),
    )


def _one_rank(title: str, question: str, chosen: str) -> Panel:
    """Returns the field that names the rank which a query chooses, and its seconds per step."""
    return stat(
        title,
        question,
        Target(
            queries.with_host(chosen),
            "rank {{rank}} · {{host}} · {{run}}",
            min_interval=OVER_5_MIN,
        ),
        unit="s",
        no_value="no steps",
        thresholds=PLAIN,
        width=6,
        options=_NAMED,
        links=(_TO_RANK,),
    )


def _work() -> tuple[Panel, ...]:
    work = queries.own_work()
    chosen = queries.own_work(where=queries.RANKS)
    return (
        lines(
            "Own work per step: slowest, median and fastest rank",
            "Is one rank slower than the others, and since when? Own work: "
            "fastvideo_training_step_duration_seconds less "
            "fastvideo_training_collective_wait_seconds_total. The slowest far above the median: "
            "a straggler. All three rise: the work has grown.",
            Target(f"max by (run) ({work})", "slowest · {{run}}", min_interval=SMOOTH),
            Target(f"quantile by (run) (0.5, {work})", "median · {{run}}", min_interval=SMOOTH),
            Target(f"min by (run) ({work})", "fastest · {{run}}", min_interval=SMOOTH),
            unit="s",
            minimum=0,
        ),
        bars(
            "The ten ranks that work most",
            "On which machines are the slow ranks? Own work per step "
            "(fastvideo_training_step_duration_seconds less "
            "fastvideo_training_collective_wait_seconds_total) with the host of "
            "fastvideo_rank_info. One rank: its accelerator. All of one host: its cooling, "
            "network or neighbours.",
            Target(
                queries.descending(queries.with_host(f"topk by (run) (10, {work})")),
                "rank {{rank}} · {{host}} · {{run}}",
                min_interval=OVER_5_MIN,
            ),
            unit="s",
            thresholds=((None, "blue"),),
            no_value="no steps",
        ),
        lines(
            "Own work per step, by rank",
            "How did the chosen ranks do? Own work of each: "
            "fastvideo_training_step_duration_seconds less "
            "fastvideo_training_collective_wait_seconds_total. Highest is slowest.",
            Target(chosen, "rank {{rank}} · {{run}}", min_interval=SMOOTH),
            unit="s",
            minimum=0,
            links=(_TO_RANK,),
        ),
        lines(
            "Waiting per step, by rank",
            "Who waits for whom? fastvideo_training_collective_wait_seconds_total of each chosen "
            "rank, per step. The rank that waits least is the one that the others wait for.",
            Target(
                queries.wait_per_step(where=queries.RANKS),
                "rank {{rank}} · {{run}}",
                min_interval=SMOOTH,
            ),
            unit="s",
            minimum=0,
            links=(_TO_RANK,),
        ),
    )


def _progress() -> tuple[Panel, ...]:
    kinds = queries.rate(queries.WAIT, by="run, collective", where=queries.RANKS)
    per_step = queries.steps(by="run", where=queries.RANKS)
    furthest = f"max by (run) ({_STEP_NUMBER}{{{queries.RUNS}}})"
    own = f"max by (run, rank) ({_STEP_NUMBER}{{{queries.RANKS}}})"
    return (
        lines(
            "Waiting per step, by collective",
            "In which collective is time spent? fastvideo_training_collective_wait_seconds_total "
            "per step, mean over ranks. all_gather and reduce_scatter: between the shards of a "
            "model; all_reduce: between its replicas (hsdp_replicate_dim above 1); rollout and "
            "rewards: what ranks of DMD2 and of DiffusionNFT agree on. grad_norm comes last in a "
            "step and collects what the others left; all of them high on all ranks: the network.",
            Target(
                f"{kinds} / on (run) group_left () {per_step} > 0",
                "{{collective}} · {{run}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_WAIT,
            ),
            unit="s",
            minimum=0,
            no_value=_NO_WAIT,
            width=8,
        ),
        _waiting_between_replicas(),
        lines(
            "Steps behind the furthest rank",
            "Is a rank behind? fastvideo_training_step of the furthest rank less that of each "
            "chosen rank. Ranks are scraped at different moments, so steps that are shorter than "
            "a scrape interval show as a few steps of lag; a lag that grows is bad.",
            Target(
                f"{furthest} - on (run) group_right () {own}",
                "rank {{rank}} · {{run}}",
            ),
            unit="short",
            decimals=0,
            minimum=0,
            width=8,
            links=(_TO_RANK,),
        ),
    )


def _waiting_between_replicas() -> Panel:
    exchanging = queries.rate(
        queries.WAIT, by="run, rank", where=f'{queries.RANKS},collective="all_reduce"'
    )
    ranks_steps = queries.steps(by="run, rank", where=queries.RANKS)
    return lines(
        "Waiting between replicas per step, by rank",
        "Which replica do the others wait for? "
        "fastvideo_training_collective_wait_seconds_total of all_reduce, the exchange of "
        "gradients between replicas, of each chosen rank per step. The replica whose ranks "
        "wait least is the slow one; high on all ranks: the network between replicas.",
        Target(
            f"{exchanging} / {ranks_steps} > 0",
            "rank {{rank}} · {{run}}",
            min_interval=SMOOTH,
            may_be_empty=_NO_REPLICAS,
        ),
        unit="s",
        minimum=0,
        width=8,
        no_value=_NO_REPLICAS,
        links=(_TO_RANK,),
    )


def _all_ranks() -> Panel:
    age = (
        "time() - max by (run, rank) "
        f"(fastvideo_training_last_step_timestamp_seconds{{{queries.RANKS}}})"
    )
    chosen = queries.RANKS
    columns = {
        "Value #B": "own work",
        "Value #C": "waiting",
        "Value #D": "data wait",
        "Value #E": "step",
        "Value #F": "last step ended … ago",
        "local_rank": "local rank",
    }
    units = (
        column("own work", "s"),
        column("waiting", "s"),
        column("data wait", "percentunit", decimals=1),
        column("step", "none"),
        column("last step ended … ago", "s", decimals=0),
    )
    return table(
        "Ranks that report",
        "Where does each rank run, and how does it do? fastvideo_rank_info; own work and waiting "
        "per step, data wait, fastvideo_training_step, and "
        "fastvideo_training_last_step_timestamp_seconds as seconds ago. Sort by a column: the "
        "slow rank is first by own work. A rank that is not listed does not report.",
        Target(f"max by (run, rank, host, local_rank, device) (fastvideo_rank_info{{{chosen}}})"),
        Target(queries.own_work(where=chosen), min_interval=OVER_5_MIN),
        Target(queries.wait_per_step(where=chosen), min_interval=OVER_5_MIN),
        Target(queries.data_share(by="run, rank", where=chosen), min_interval=OVER_5_MIN),
        Target(f"max by (run, rank) ({_STEP_NUMBER}{{{chosen}}})"),
        Target(age),
        hide=("Value #A",),
        columns=columns,
        first=("run", "rank", "host", "local_rank", "device"),
        overrides=units,
        options=(("sortBy", [{"displayName": "own work", "desc": True}]),),
        width=24,
        height=10,
    )
