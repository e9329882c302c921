"""The registry of region names."""

from __future__ import annotations

import pytest

from fastvideo.profiler import ProfilerRegion, RegionRegistry
from fastvideo.profiler.catalogue import BUILT_IN, built_in_registry


def test_registered_names_have_the_long_form() -> None:
    """Short and long spelling give the same region, whose name is the long form."""
    registry = RegionRegistry()
    region = registry.register("my_region", "What it covers")
    assert region == ProfilerRegion("profiler_region_my_region", "What it covers")
    assert region.short_name == "my_region"
    assert registry.resolve("my_region") is region
    assert registry.resolve("profiler_region_my_region") is region
    assert registry.resolve("other") is None


def test_registering_the_same_again_is_allowed() -> None:
    """A module that is imported twice does no harm."""
    registry = RegionRegistry()
    first = registry.register("my_region", "What it covers")
    assert registry.register("profiler_region_my_region", "What it covers") is first
    assert registry.list() == [first]


def test_another_description_is_an_error() -> None:
    """Two meanings of one name are refused, and the first is named."""
    registry = RegionRegistry()
    registry.register("my_region", "What it covers")
    with pytest.raises(ValueError, match="already registered as 'What it covers'"):
        registry.register("my_region", "Something else")


@pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "profiler_region_", "é", None, "_x"])
def test_unusable_names_are_errors(name: str) -> None:
    """A name that could not be a metric label or part of a file name is refused."""
    with pytest.raises(ValueError, match="cannot be used"):
        RegionRegistry().register(name, "x")


def test_the_built_in_catalogue_is_complete() -> None:
    """All regions of the catalogue are registered, in order, each with a description."""
    regions = built_in_registry().list()
    assert [region.short_name for region in regions] == list(BUILT_IN)
    assert all(region.description for region in regions)
    assert len(regions) == 29
