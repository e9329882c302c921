"""PromQL that several dashboards share.

Means come first: the rate of a sum divided by the rate of a count, where the count moves. Averages
of quantiles are no quantiles and do not occur. Everything is asked of the chosen runs; what
compares ranks with each other is asked of all ranks, chosen or not.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = "$__rate_interval"
RUNS: Final = 'run=~"$run"'
RANKS: Final = 'run=~"$run",rank=~"$rank"'

STEP: Final = "fastvideo_training_step_duration_seconds"
DATALOADER: Final = "fastvideo_training_dataloader_time_seconds"
REGION: Final = "fastvideo_region_duration_seconds"
DEVICE_REGION: Final = "fastvideo_region_device_duration_seconds"
UNATTRIBUTED: Final = "fastvideo_training_unattributed_seconds_total"
WAIT: Final = "fastvideo_training_collective_wait_seconds_total"
CHECKPOINT: Final = "fastvideo_training_checkpoint_duration_seconds"
VALIDATION: Final = "fastvideo_training_validation_duration_seconds"

STEP_PARTS: Final = (
    "training_dataloader",
    "training_forward",
    "training_backward",
    "training_optimizer",
    "training_callbacks",
    "nft_prompts",
    "nft_rollout",
    "nft_reward",
    "nft_advantages",
    "nft_update",
    "nft_old_policy",
)
"""The regions that a step consists of, one after the other; all others lie around or inside."""

PARTS: Final = f'region=~"{"|".join(STEP_PARTS)}"'


def rate(metric: str, *, by: str, where: str = RUNS) -> str:
    """Returns the rate of a counter, added up.

    Args:
        metric: Full name, with ``_sum`` or the like.
        by: Labels that stay, such as ``"run, rank"``.
        where: Matchers of labels.
    """
    return f"sum by ({by}) (rate({metric}{{{where}}}[{WINDOW}]))"


def increase(metric: str, *, by: str, where: str = RUNS) -> str:
    """Returns by how much a counter grew within a window, added up; as :func:`rate`."""
    return f"sum by ({by}) (increase({metric}{{{where}}}[{WINDOW}]))"


def mean(metric: str, *, by: str, where: str = RUNS) -> str:
    """Returns the mean of a histogram or summary; nothing where nothing was observed.

    Args:
        metric: Name of the family.
        by: Labels that stay.
        where: Matchers of labels.
    """
    total = rate(f"{metric}_sum", by=by, where=where)
    return f"{total} / ({rate(f'{metric}_count', by=by, where=where)} > 0)"


def quantile(which: float, metric: str, *, by: str, where: str = RUNS) -> str:
    """Returns a quantile of a histogram, which is as coarse as its buckets.

    Args:
        which: The quantile, from 0 to 1.
        metric: Name of the family.
        by: Labels that stay; empty: none.
        where: Matchers of labels.
    """
    kept = f"le, {by}" if by else "le"
    return f"histogram_quantile({which:g}, {rate(f'{metric}_bucket', by=kept, where=where)})"


def buckets(metric: str, *, where: str = RUNS) -> str:
    """Returns what a heatmap of a histogram is drawn from."""
    return increase(f"{metric}_bucket", by="le", where=where)


def steps(*, by: str, where: str = RUNS) -> str:
    """Returns steps per second added up over ranks; nothing where no step ended."""
    return f"({rate(f'{STEP}_count', by=by, where=where)} > 0)"


def mean_step(*, by: str = "run", where: str = RUNS) -> str:
    """Returns the mean step in seconds; with ``step_kind`` in ``by``, of each kind."""
    return mean(STEP, by=by, where=where)


def data_share(*, by: str = "run", where: str = RUNS) -> str:
    """Returns the share of step time that is spent waiting for data, from 0 to 1."""
    waiting = rate(f"{DATALOADER}_sum", by=by, where=where)
    return f"{waiting} / ({rate(f'{STEP}_sum', by=by, where=where)} > 0)"


def own_work(*, where: str = RUNS) -> str:
    """Returns each rank's own work per step in seconds: the step without what it waited."""
    labels = "run, rank"
    total = rate(f"{STEP}_sum", by=labels, where=where)
    waiting = rate(WAIT, by=labels, where=where)
    return f"({total} - {waiting}) / {steps(by=labels, where=where)}"


def lateness() -> str:
    """Returns by how much the slowest rank's own work exceeds the median's, as a share of the step.

    It is the part of each step that the other ranks lose by waiting for the slowest.
    """
    work = own_work()
    above = f"max by (run) ({work}) - quantile by (run) (0.5, {work})"
    return f"({above}) / ({mean_step()})"


def wait_per_step(*, where: str = RUNS) -> str:
    """Returns each rank's wait in collectives per step, in seconds."""
    labels = "run, rank"
    return f"{rate(WAIT, by=labels, where=where)} / {steps(by=labels, where=where)}"


def active() -> str:
    """Returns 1 for each run that goes on, 0 for one that ended well."""
    return f"max by (run) (fastvideo_run_active{{{RUNS}}})"


def ranks_reporting() -> str:
    """Returns the number of ranks that are scraped and go on; nothing for a run that ended."""
    return f"count by (run) (max by (run, rank) (fastvideo_run_active{{{RUNS}}}) == 1)"


def world_size() -> str:
    """Returns the number of ranks that the run started with."""
    return f"max by (run) (fastvideo_run_world_size{{{RUNS}}})"


def step_age() -> str:
    """Returns seconds since the last step of any rank ended."""
    last = "fastvideo_training_last_step_timestamp_seconds"
    return f"time() - max by (run) ({last}{{{RUNS}}})"


def stall_limit() -> str:
    """Returns how many seconds a run may be without a step, as the alert on stalled runs has it.

    Half an hour before the first step; then ten mean steps of the whole run, five minutes at
    least, and twice what a validation and a checkpoint took so far.
    """
    whole = f"sum by (run) ({STEP}_sum{{{RUNS}}}) / (sum by (run) ({STEP}_count{{{RUNS}}}) > 0)"
    events = (
        f"max by (run) ({event}_sum{{{RUNS}}} / clamp_min({event}_count{{{RUNS}}}, 1))"
        for event in (VALIDATION, CHECKPOINT)
    )
    pauses = " + ".join(f"2 * {event}" for event in events)
    return f"(clamp_min(10 * ({whole}), 300) + {pauses} or 0 * {active()} + 1800)"


def is_stalled() -> str:
    """Returns 1 where the last step is older than a run may be without one, else 0."""
    return f"{step_age()} > bool {stall_limit()}"


def verdict(expr: str, *, watch: float, bad: float) -> str:
    """Returns 0 where all is well, 1 above one limit and 2 above another."""
    return f"({expr} > bool {watch:g}) + ({expr} > bool {bad:g})"


def dropped_spans() -> str:
    """Returns how many spans were lost, without those that a large trace leaves out on purpose."""
    lost = f'{RUNS},reason!="trace_budget"'
    return increase("fastvideo_telemetry_spans_dropped_total", by="run", where=lost)


def descending(expr: str) -> str:
    """Returns an expression whose answer at one moment has the highest value first."""
    return f"sort_desc({expr})"


def with_host(expr: str) -> str:
    """Returns an expression by run and rank with the label ``host`` of each rank's machine.

    Of a rank that moved within the last minutes two machines are known; one is taken.
    """
    hosts = f"topk by (run, rank) (1, fastvideo_rank_info{{{RUNS}}})"
    return f"({expr}) * on (run, rank) group_left (host) {hosts}"
