"""The declared metric families."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from fastvideo.observability.metrics.families import FAMILIES, geometric_buckets
from fastvideo.profiler.catalogue import BUILT_IN

STEP = "fastvideo_training_step_duration_seconds"


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Names are snake case, carry base units, and end in _total exactly where they count."""
    for family in FAMILIES.values():
        assert re.fullmatch(r"fastvideo_[a-z]+(_[a-z]+)*", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert not re.search(r"_(ms|milliseconds|minutes|mb|count|sum|bucket)$", family.name)


def test_no_family_has_labels_that_scraping_or_the_endpoint_adds() -> None:
    """What Prometheus, Kubernetes or the constant labels add is no label of a family."""
    reserved = {"job", "instance", "pod", "namespace", "node", "container", "rank", "run", "le"}
    assert [f.name for f in FAMILIES.values() if reserved & {*f.labels}] == []


def test_initial_series_have_all_labels_and_no_more() -> None:
    """Every initial series names one value for each label."""
    for family in FAMILIES.values():
        assert all(len(labels) == len(family.labels) for labels in family.initial), family.name


def test_every_counter_exists_from_the_start() -> None:
    """Counters that appear at one, rather than zero, are invisible to rate()."""
    assert [f.name for f in FAMILIES.values() if f.kind == "counter" and not f.initial] == []


def test_every_built_in_region_exists_from_the_start() -> None:
    """The regions of the catalogue are the initial series of the durations."""
    initial = FAMILIES["fastvideo_region_duration_seconds"].initial
    assert [region for (region,) in initial] == list(BUILT_IN)


def test_step_buckets_reach_half_an_hour_in_steps_of_a_quarter() -> None:
    """A video step of minutes lands in a bucket of its own, and quantiles are good to 25 %."""
    buckets = FAMILIES[STEP].buckets
    assert (buckets[0], buckets[-1]) == (0.01, 1800.0)
    assert max(high / low for low, high in pairwise(buckets)) <= 1.25
    assert len(buckets) == 56


def test_every_histogram_reaches_half_an_hour() -> None:
    """No histogram ends where video generation begins."""
    ends = {f.name: f.buckets[-1] for f in FAMILIES.values() if f.kind == "histogram"}
    assert min(ends.values()) >= 1800.0


@pytest.mark.parametrize("ratio", [1.1, 1.25, 2.0, 10.0])
def test_geometric_buckets_keep_to_their_ratio_after_rounding(ratio: float) -> None:
    """Rounding to four digits does not push neighbours further apart than asked."""
    buckets = geometric_buckets(0.001, 1000.0, ratio=ratio)
    assert (buckets[0], buckets[-1]) == (0.001, 1000.0)
    assert all(low < high <= low * ratio for low, high in pairwise(buckets))
