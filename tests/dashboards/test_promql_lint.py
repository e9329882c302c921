"""Mistakes in queries, found in their syntax trees."""

from __future__ import annotations

import pytest

from fastvideo.dashboards.promql_lint import family_of, lint_query, metrics_in
from fastvideo.observability.metrics.families import FAMILIES

W = "[$__rate_interval]"
STEP = "fastvideo_training_step_duration_seconds"
REGION = "fastvideo_region_duration_seconds"
STEPS = "fastvideo_training_steps_total"


@pytest.mark.parametrize(
    ("expr", "problem"),
    [
        (f"{STEP}", f"'{STEP}' is no metric of this package"),
        (f"rate({REGION}_bucket{W})", f"'{REGION}_bucket' is no metric of this package"),
        (f"{REGION}{{quantile='0.5'}}", f"'{REGION}' is no metric of this package"),
        ("fastvideo_training_step_total", "is no metric of this package. Did you mean"),
        ("node_load1", "'node_load1' is no metric of this package"),
        ('{run="a"}', "a selector without the name of a metric"),
        (f"rate({STEPS}[5m])", "rate over a window that is not $__rate_interval"),
        (f"increase({STEPS}[$__interval])", "increase over a window that is not $__rate"),
        (f"resets({STEPS}[$__range])", "resets over a window that is not $__rate_interval"),
        (f"rate(sum by (run) ({STEPS})[5m:1m])", "rate over a window that is not"),
        (f"rate(fastvideo_training_step{W})", "rate of fastvideo_training_step, which is a gauge"),
        (
            f"histogram_quantile(0.5, sum by (run) (rate({STEP}_bucket{W})))",
            "histogram_quantile of what has lost its label le",
        ),
        (
            f"histogram_quantile(0.5, sum without (le) (rate({STEP}_bucket{W})))",
            "histogram_quantile of what has lost its label le",
        ),
        (f"histogram_quantile(0.5, rate({STEP}_sum{W}))", "has lost its label le"),
        (
            f"avg(histogram_quantile(0.5, rate({STEP}_bucket{W})))",
            "avg of histogram_quantile: quantiles cannot be averaged",
        ),
        (
            f"sum by (run) (2 * histogram_quantile(0.5, rate({STEP}_bucket{W})))",
            "sum of histogram_quantile: quantiles cannot be averaged",
        ),
        (
            f"avg_over_time(histogram_quantile(0.5, rate({STEP}_bucket{W}))[$__range:1m])",
            "avg_over_time of histogram_quantile: quantiles cannot be averaged",
        ),
        (f'{STEP}_bucket{{le="1"}}', "le is matched as text (1)"),
        (f'{STEP}_bucket{{le=~"1|2.0"}}', "le is matched as text"),
        (f"{STEP}_sum / {STEP}_count", "a division by what can be zero"),
        (f"1 / (sum({STEPS}) == 0)", "a division by what can be zero"),
        (f"sum by (host) ({STEPS})", "sum by or without host, which its operand does not have"),
        (
            f"sum by (run) ({STEPS}) * sum by (run, rank) ({STEPS})",
            "'*' of {run} and {rank, run}: labels differ, nothing matches",
        ),
        (
            f"sum by (run) ({STEPS}) and sum by (rank) ({STEPS})",
            "'and' of {run} and {rank}: labels differ, nothing matches",
        ),
        (f'{STEPS}{{run="$nobody"}}', "$nobody is no variable of the dashboard"),
        (f"sum({STEPS}", "no PromQL"),
        ("rate(up)", "no PromQL"),
    ],
)
def test_a_mistake_is_found(expr: str, problem: str) -> None:
    """One line says what is wrong."""
    assert any(problem in line for line in lint_query(expr))


@pytest.mark.parametrize(
    "expr",
    [
        f"rate({STEP}_count{W} offset 1h)",
        f"sum(rate({STEP}_sum{W})) / (sum(rate({STEP}_count{W})) > 0)",
        f"sum by (run) ({STEPS}) / clamp_min(sum by (run) ({STEPS}), 1)",
        f"histogram_quantile(0.5, sum by (le, run) (rate({STEP}_bucket{W})))",
        f"histogram_quantile(0.5, sum without (rank) (rate({STEP}_bucket{W})))",
        f"max(histogram_quantile(0.5, rate({STEP}_bucket{W})))",
        f'{STEP}_bucket{{le!="+Inf"}}',
        f"max_over_time(timestamp({STEPS})[$__range:1m])",
        "changes(fastvideo_training_step[$__rate_interval])",
        'count(ALERTS{alertstate="firing"}) or vector(0)',
        f"sum by (run, rank) ({STEPS}) * on (run, rank) group_left (host) fastvideo_rank_info",
        f"max by (run) ({STEPS}) - on (run) group_right () sum by (run, rank) ({STEPS})",
        "1 - time() / 60",
        f"{STEPS} unless on (run) up",
    ],
)
def test_what_is_right_passes(expr: str) -> None:
    """Idioms that the dashboards use are no mistakes."""
    assert lint_query(expr) == []


@pytest.mark.parametrize(
    ("expr", "kept", "lost"),
    [
        (STEPS, "rank", "region"),
        (f"{REGION}_sum", "region", "le"),
        (f"{STEP}_bucket", "le", "region"),
        (f"sum by (run) ({STEPS})", "run", "rank"),
        (f"sum without (run) ({STEPS})", "rank", "run"),
        (f"sum({STEPS})", "", "run"),
        (f"topk by (run) (3, {STEPS})", "rank", "host"),
        (f"histogram_quantile(0.5, rate({STEP}_bucket{W}))", "step_kind", "le"),
        (f"time() - max by (run) ({STEPS})", "run", "rank"),
        (f"sum by (run) ({STEPS}) or vector(0)", "", "run"),
        (f"{STEPS} and on (run) up", "rank", "region"),
        (f"{STEPS} * on (run, rank) fastvideo_run_active", "rank", "job"),
        (f"{STEPS} * on (run) group_left (host) fastvideo_rank_info", "host", "device"),
        (f"fastvideo_rank_info * on (run) group_right (host) {STEPS}", "host", "device"),
        (f"-({STEPS} > 0)", "rank", "region"),
    ],
)
def test_legends_name_what_is_kept(expr: str, kept: str, lost: str) -> None:
    """The labels of an answer follow from its query."""
    if kept:
        assert lint_query(expr, legend=f"{{{{{kept}}}}}") == []
    assert lint_query(expr, legend=f"{{{{{lost}}}}}") == [
        f"the legend names {lost!r}, which the query does not keep"
    ]


def test_variables_have_values() -> None:
    """A variable of the dashboard may be used in each of Grafana's ways of writing it."""
    for way in ("$run", "${run}", "${run:regex}"):
        assert lint_query(f'{STEPS}{{run=~"{way}"}}', variables={"run": "a"}) == []


def test_metrics_are_found() -> None:
    """Names are those of series, and lead to their families."""
    expr = f'sum(rate({STEP}_sum{{run=~"$run"}}{W})) + {STEPS}'
    assert metrics_in(expr) == {f"{STEP}_sum", STEPS}
    assert {family_of(name) for name in metrics_in(expr)} == {STEP, STEPS}


@pytest.mark.parametrize(
    ("series", "family"),
    [(f"{STEP}_bucket", STEP), (f"{REGION}_count", REGION), (STEPS, STEPS), ("up", None)],
)
def test_series_belong_to_families(series: str, family: str | None) -> None:
    """Histograms have buckets, summaries do not, and others are what they are called."""
    assert family_of(series) == family
    assert family is None or family in FAMILIES
