"""Regions, the sinks that listen to them, and kernel-trace segments."""

from __future__ import annotations

from fastvideo.profiler.region import (
    attach,
    detach,
    list_profiler_regions,
    profile_region,
    profiler_region,
    register_profiler_region,
    resolve_profiler_region,
    sink_error_counts,
)
from fastvideo.profiler.registry import ProfilerRegion, RegionRegistry
from fastvideo.profiler.sinks import RecordingSink, RegionSink

__all__ = [
    "ProfilerRegion",
    "RecordingSink",
    "RegionRegistry",
    "RegionSink",
    "attach",
    "detach",
    "list_profiler_regions",
    "profile_region",
    "profiler_region",
    "register_profiler_region",
    "resolve_profiler_region",
    "sink_error_counts",
]
