"""What a real Prometheus answers to the queries, for runs whose numbers are known."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest
from past_runs import DEVICE, KINDS, STEPS_PER_S, Past, Run

from fastvideo.dashboards import all_dashboards, expressions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastvideo.dashboards import Panel

pytestmark = pytest.mark.integration

BOARDS = {board.uid: board for board in all_dashboards()}
RUNS = (
    Run("fine"),
    Run(
        "ill",
        ranks=(0, 1),
        data={0: 0.04, 1: 0.24},
        wait={0: 0.3, 1: 0.14},
    ),
    Run("stuck", stopped_s=900),
    Run("over", stopped_s=900, active=0, cuda=False),
)
MEAN_STEP_S = 1 / STEPS_PER_S
FRACTION = {"percentunit"}


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """A Prometheus that remembers the runs."""
    prometheus = Past(tmp_path_factory.mktemp("past"), RUNS)
    yield prometheus
    prometheus.close()


def _fill_in(expr: str, run: str) -> str:
    values = {
        "run": run,
        "rank": "0|1|2",
        "host": ".*",
        "loss": ".*",
        "step_kind": ".*",
        "__rate_interval": "5m",
        "__range": "30m",
    }
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)


def _panel(uid: str, title: str) -> Panel:
    return next(panel for panel in BOARDS[uid].panels() if panel.title == title)


def _value(past: Past, uid: str, title: str, run: str) -> float | None:
    """The only number of a panel with one query; None where it has none."""
    (target,) = _panel(uid, title).targets
    rows = past.ask(_fill_in(target.expr, run))
    assert len(rows) <= 1
    return float(rows[0]["value"][1]) if rows else None


@pytest.mark.parametrize("uid", BOARDS)
def test_a_healthy_run_has_data_everywhere(past: Past, uid: str) -> None:
    """Each query answers with finite numbers in its unit's range and the labels of its legend."""
    for each in expressions(BOARDS[uid]):
        rows = past.ask(_fill_in(each.expr, "fine"))
        where = f"{each.panel}: {each.expr}"
        assert rows or each.may_be_empty, where
        for row in rows:
            value = float(row["value"][1])
            assert math.isfinite(value), where
            assert each.unit not in FRACTION or -1 <= value <= 1, where
            assert each.unit != "s" or value >= 0, where
            named = set(re.findall(r"\{\{(\w+)\}\}", each.legend))
            assert named <= set(row["metric"]), where


@pytest.mark.parametrize("uid", BOARDS)
def test_queries_do_not_collide_with_several_runs(past: Past, uid: str) -> None:
    """With all runs chosen no query fails for labels that match more than one series."""
    for each in expressions(BOARDS[uid]):
        past.ask(_fill_in(each.expr, "fine|ill|stuck|over"))


@pytest.mark.parametrize("run", ["fine", "ill"])
def test_regions_and_the_rest_are_the_mean_step(past: Past, run: str) -> None:
    """What is stacked adds up to the dashed line, which is the mean over kinds of step."""
    regions, rest, step = _panel("fastvideo-step", "A step of $run, by region").targets
    parts = [
        float(row["value"][1])
        for target in (regions, rest)
        for row in past.ask(_fill_in(target.expr, run))
    ]
    (mean,) = past.ask(_fill_in(step.expr, run))
    assert len(parts) == 6
    assert sum(parts) == pytest.approx(float(mean["value"][1]), rel=1e-6)
    assert sum(parts) == pytest.approx(MEAN_STEP_S, rel=1e-6)


def test_shares_of_the_step_are_a_whole(past: Past) -> None:
    """The bars of regions and of the rest add up to all of the step time."""
    targets = _panel("fastvideo-step", "Share of step time now").targets
    rows = [row for target in targets for row in past.ask(_fill_in(target.expr, "ill"))]
    assert sum(float(row["value"][1]) for row in rows) == pytest.approx(1, rel=1e-6)


def test_kinds_of_step_have_their_own_means(past: Past) -> None:
    """A long and a short kind of step are not mixed."""
    (target,) = _panel("fastvideo-overview", "Mean step → Step anatomy").targets
    rows = past.ask(_fill_in(target.expr, "fine"))
    means = {row["metric"]["step_kind"]: float(row["value"][1]) for row in rows}
    assert means == pytest.approx({kind: seconds for kind, (seconds, _) in KINDS.items()})


@pytest.mark.parametrize(
    ("title", "fine", "ill", "stuck", "over"),
    [
        ("Run → Ranks", 1, 1, 2, 0),
        ("Ranks missing → Ranks", 0, 1, 0, None),
        ("Last step ended … ago → Ranks", 0, 0, 900, None),
        ("Data wait, worst rank → Data", 0.04, 0.24, None, None),
        ("Slowest rank vs median → Ranks", 0, 0.08, None, None),
        ("Step vs last hour → Step anatomy", 1, 1, None, None),
        ("Steps per minute → Step anatomy", 37.5, 37.5, 0, 0),
        ("Non-finite losses → Losses", 0, 0, 0, 0),
        ("Errors in steps → Losses", 0, 0, 0, 0),
        ("Lost telemetry → Telemetry", 0, 0, 0, 0),
        ("Alerts firing → below", 0, 0, 0, 0),
    ],
)
def test_the_overview_judges_runs(
    past: Past,
    title: str,
    fine: float | None,
    ill: float | None,
    stuck: float | None,
    over: float | None,
) -> None:
    """Each number of the top rows is what the run's numbers make it."""
    expected = {"fine": fine, "ill": ill, "stuck": stuck, "over": over}
    for run, value in expected.items():
        found = _value(past, "fastvideo-overview", title, run)
        assert found == (None if value is None else pytest.approx(value, rel=1e-3, abs=1e-6)), run


def test_verdicts_say_what_is_wrong(past: Past) -> None:
    """Over time the same is said in words: 0 fine, 1 watch, 2 look here."""

    def verdicts(run: str) -> dict[str, float]:
        found = {}
        for target in _panel("fastvideo-overview", "Verdicts").targets:
            rows = past.ask(_fill_in(target.expr, run))
            for row in rows:
                found[target.legend.removesuffix(" · {{run}}")] = float(row["value"][1])
        return found

    fine = dict.fromkeys(
        ("ranks", "progress", "losses", "data wait", "slowest rank", "telemetry"), 0.0
    )
    assert verdicts("fine") == fine
    assert verdicts("ill") == fine | {"ranks": 2, "data wait": 2, "slowest rank": 1}
    assert verdicts("stuck")["progress"] == 2
    assert "progress" not in verdicts("over")


def test_the_slow_rank_is_named_with_its_host(past: Past) -> None:
    """The rank that works most is the one that waits least, and it has its machine's name."""
    for title in ("Works most: the slow one", "Waits least: the slow one"):
        (target,) = _panel("fastvideo-ranks", title).targets
        (row,) = past.ask(_fill_in(target.expr, "ill"))
        assert (row["metric"]["rank"], row["metric"]["host"]) == ("1", "node0")


def test_device_time_is_compared_with_host_time(past: Past) -> None:
    """A region that the device has twice as long as the host has 2, an equal one 1."""
    (target,) = _panel(
        "fastvideo-device", "Device / host time by region: 1.2+ device-bound, 1 launch-bound"
    ).targets
    rows = past.ask(_fill_in(target.expr, "fine"))
    ratios = {row["metric"]["region"]: float(row["value"][1]) for row in rows}
    assert ratios == pytest.approx({"training_forward": 2, "training_backward": 1})
    assert past.ask(_fill_in(target.expr, "over")) == []


def test_both_passes_on_the_device_are_added_up(past: Past) -> None:
    """Per step and rank, as one step has both."""
    (target,) = _panel(
        "fastvideo-device", "Forward + backward on the device per step, by rank"
    ).targets
    rows = past.ask(_fill_in(target.expr, "fine"))
    both = sum(DEVICE.values()) / STEPS_PER_S
    assert [float(row["value"][1]) for row in rows] == [pytest.approx(both)] * 3


def test_memory_is_compared_with_that_of_its_own_device(past: Past) -> None:
    """The fullest rank has 2 of 4 GiB."""
    assert _value(past, "fastvideo-device", "Fullest rank: share used", "fine") == 0.5
    assert _value(past, "fastvideo-device", "Fullest rank: share used", "over") is None


def test_idle_ranks_are_counted_beside_all_ranks(past: Past) -> None:
    """Three ranks wait for a twenty-fifth of the time each."""
    targets = _panel("fastvideo-data", "Ranks idle for data, on average").targets
    found = [past.ask(_fill_in(target.expr, "fine")) for target in targets]
    assert [float(row["value"][1]) for (row,) in found] == pytest.approx([0.12, 3])


def test_what_is_beyond_all_buckets_is_a_share(past: Past) -> None:
    """Steps within the bounds leave nothing in the bucket of +Inf."""
    targets = _panel(
        "fastvideo-telemetry", "Share of observations beyond the highest bound, by histogram"
    ).targets
    for target in targets:
        rows = past.ask(_fill_in(target.expr, "fine"))
        assert [float(row["value"][1]) for row in rows] in ([], [0.0])


def test_the_slowest_come_first(past: Past) -> None:
    """Bars of ranks begin with the one to look at."""
    for uid, title in (
        ("fastvideo-ranks", "The ten ranks that work most"),
        ("fastvideo-data", "The ten ranks that wait most"),
    ):
        (target,) = _panel(uid, title).targets
        rows = past.ask(_fill_in(target.expr, "ill"))
        assert [row["metric"]["rank"] for row in rows] == ["1", "0"]
