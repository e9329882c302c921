"""Is training bound by data, and on which rank."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Override, Panel, Row, Target
from fastvideo.dashboards.panels import (
    DATA_WAIT,
    OVER_5_MIN,
    PLAIN,
    SMOOTH,
    bars,
    heat,
    limits,
    lines,
    stat,
)

_UID: Final = "fastvideo-data"
_OF_RANK: Final = queries.data_share(by="run, rank", where=queries.RANKS)
_TO_RANK: Final = link_to("fastvideo-step", title="Steps of this rank", choose=("run", "rank"))


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="Does training wait for data? One rank that waits holds up all others: they wait "
        "for it in their collectives.",
        rows=(
            Row("Is training bound by data?", _now()),
            Row("Since when, and where", _over_time()),
            Row("Spread of waits", _spread()),
        ),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
    )


def _now() -> tuple[Panel, ...]:
    waiting = queries.rate(f"{queries.DATALOADER}_sum", by="run", where=queries.RANKS)
    ranks = f"count by (run) (max by (run, rank) (fastvideo_run_active{{{queries.RANKS}}}))"
    samples = queries.rate("fastvideo_training_samples_total", by="run", where=queries.RANKS)
    return (
        stat(
            "Data wait of the worst rank",
            "What share of its steps does the rank that waits most wait for data? "
            "fastvideo_training_dataloader_time_seconds over "
            "fastvideo_training_step_duration_seconds, over 5 minutes. Above 20 % an alert fires: "
            "more loader workers, faster storage, or less work per sample.",
            Target(f"max by (run) ({_OF_RANK})", "{{run}}", min_interval=OVER_5_MIN),
            unit="percentunit",
            decimals=1,
            no_value="no steps",
            thresholds=limits(*DATA_WAIT),
            width=6,
        ),
        stat(
            "Data wait of all ranks",
            "What share of all step time is waiting for data? The same metric over the chosen "
            "ranks together: fastvideo_training_dataloader_time_seconds. Much less than the worst "
            "rank's: it is that rank's machine or shard, not the loader.",
            Target(queries.data_share(where=queries.RANKS), "{{run}}", min_interval=OVER_5_MIN),
            unit="percentunit",
            decimals=1,
            no_value="no steps",
            thresholds=limits(*DATA_WAIT),
            width=6,
        ),
        stat(
            "Ranks idle for data, on average",
            "How many ranks' worth of time is lost, of how many? Seconds per second of "
            "fastvideo_training_dataloader_time_seconds, added up over ranks, and the number of "
            "ranks that report. 2 of 16: two accelerators stand still all the time.",
            Target(waiting, "idle · {{run}}", min_interval=OVER_5_MIN),
            Target(ranks, "of ranks · {{run}}", min_interval=OVER_5_MIN),
            unit="short",
            no_value="not scraped",
            thresholds=PLAIN,
            width=6,
            overrides=(Override("/^idle/", (("decimals", 2),), is_pattern=True),),
        ),
        stat(
            "Samples per minute",
            "How fast is data consumed? fastvideo_training_samples_total of the chosen ranks, "
            "over 5 minutes. It is what the loader must supply. 0 in a run that goes on: it "
            "stalls.",
            Target(f"60 * {samples}", "{{run}}", min_interval=OVER_5_MIN),
            unit="short",
            decimals=1,
            no_value="not scraped",
            thresholds=PLAIN,
            width=6,
        ),
    )


def _over_time() -> tuple[Panel, ...]:
    hosts = queries.descending(queries.with_host(f"topk by (run) (10, {_OF_RANK})"))
    each_step = queries.mean(queries.DATALOADER, by="run, rank", where=queries.RANKS)
    return (
        lines(
            "Data wait, by rank",
            "Since when does the run wait for data, and is it one rank, one host or all? "
            "fastvideo_training_dataloader_time_seconds over "
            "fastvideo_training_step_duration_seconds. Above the dashed lines (10 %, 20 %) it is "
            "worth a look, and bound by data. One line above the others: that rank's storage, "
            "cores or shard of the data; ranks that wait alike lie upon each other.",
            Target(_OF_RANK, "rank {{rank}} · {{run}}", min_interval=SMOOTH),
            unit="percentunit",
            minimum=0,
            reach=0.25,
            thresholds=limits(*DATA_WAIT),
            width=8,
            links=(_TO_RANK,),
        ),
        bars(
            "The ten ranks that wait most",
            "On which machines are the ranks that wait? "
            "fastvideo_training_dataloader_time_seconds over the step, with the host of "
            "fastvideo_rank_info. All of one host: its disk or network.",
            Target(hosts, "rank {{rank}} · {{host}} · {{run}}", min_interval=OVER_5_MIN),
            unit="percentunit",
            decimals=1,
            maximum=1,
            thresholds=limits(*DATA_WAIT),
            no_value="no steps",
            width=8,
        ),
        lines(
            "Mean wait for data per step, by rank",
            "How many seconds does a step wait? Mean of "
            "fastvideo_training_dataloader_time_seconds, over all micro-batches of a step. It is "
            "near zero where the loader reads ahead fast enough.",
            Target(each_step, "rank {{rank}} · {{run}}", min_interval=SMOOTH),
            unit="s",
            minimum=0,
            width=8,
            links=(_TO_RANK,),
        ),
    )


def _spread() -> tuple[Panel, ...]:
    return (
        heat(
            "Waits for data",
            "Are all waits long, or a few? fastvideo_training_dataloader_time_seconds_bucket. A "
            "second band far above: some batches come late, such as at the first read of a file; "
            "reading further ahead helps. One wide band: the loader is too slow throughout.",
            queries.DATALOADER,
        ),
        lines(
            "Median and 99th percentile wait (bucketed)",
            "How bad are the bad waits? fastvideo_training_dataloader_time_seconds_bucket over "
            "the chosen ranks; bounds of buckets lie 50 % apart, and so does the answer. "
            "A high 99th percentile over a low median: a few batches come late.",
            *(
                Target(
                    queries.quantile(which, queries.DATALOADER, by="run", where=queries.RANKS),
                    f"{name} · {{{{run}}}}",
                    exemplar=True,
                    min_interval=SMOOTH,
                )
                for which, name in ((0.5, "median"), (0.99, "99th percentile"))
            ),
            unit="s",
            minimum=0,
        ),
    )
