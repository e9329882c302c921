"""Regions, the sinks that listen to them, and kernel-trace segments."""

from __future__ import annotations

from fastvideo.profiler.config import TorchProfilerConfig
from fastvideo.profiler.controller import (
    TorchProfilerController,
    get_global_controller,
    get_or_create_profiler,
    set_global_controller,
)
from fastvideo.profiler.nvtx import nvtx_range
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
from fastvideo.profiler.trace_metadata import set_trace_metadata

__all__ = [
    "ProfilerRegion",
    "RecordingSink",
    "RegionRegistry",
    "RegionSink",
    "TorchProfilerConfig",
    "TorchProfilerController",
    "attach",
    "detach",
    "get_global_controller",
    "get_or_create_profiler",
    "list_profiler_regions",
    "nvtx_range",
    "profile_region",
    "profiler_region",
    "register_profiler_region",
    "resolve_profiler_region",
    "set_global_controller",
    "set_trace_metadata",
    "sink_error_counts",
]
