"""Does the device pace the run, or the host; and is there memory left."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Override, Panel, Row, Target
from fastvideo.dashboards.panels import (
    DASHED,
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

_UID: Final = "fastvideo-device"
_NO_DEVICE: Final = "no CUDA device"
_MEMORY: Final = "fastvideo_device_memory_bytes"
_OF_PARTS: Final = f"{queries.RANKS},{queries.PARTS}"
_AROUND: Final = "inference_.*|model_loading|training_(train.*|validation|save_checkpoint)"
_INSIDE_STEP: Final = f'{queries.RANKS},region!~"{_AROUND}"'
_TO_RANK: Final = link_to("fastvideo-ranks", choose=("run", "rank"))


def dashboard() -> Dashboard:
    """Returns the dashboard."""
    return Dashboard(
        uid=_UID,
        title=TITLES[_UID],
        question="Does the device set the pace, or does the host launch too slowly? Device time "
        "is measured between CUDA events at entry and exit of a region, host time between the "
        "same lines of code.",
        rows=(
            Row("Who sets the pace?", (*_pace(), *_times_per_entry())),
            Row("Device memory", (*_fullest_rank(), *_memory())),
            Row("Machines", (_devices(),)),
        ),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
    )


def _ratio(by: str, where: str) -> str:
    device = queries.mean(queries.DEVICE_REGION, by=by, where=where)
    host = queries.mean(queries.REGION, by=by, where=where)
    return f"round(({device}) / on ({by}) ({host}), 0.01)"


def _pace() -> tuple[Panel, ...]:
    passes = f'{queries.RANKS},region=~"training_(forward|backward)"'
    on_device = queries.rate(f"{queries.DEVICE_REGION}_sum", by="run, rank", where=passes)
    return (
        bars(
            "Device / host time by region: 1.2+ device-bound, 1 launch-bound",
            "Is a region bound by launches or by the device? Mean "
            "fastvideo_region_device_duration_seconds over mean "
            "fastvideo_region_duration_seconds. Well above 1: the host ran ahead and the device "
            "has the work: bound by the device, which is good. About 1: the device waits for "
            "each launch: bound by the host; compile, or larger batches. Below 1: the host waits "
            "in this region for work from before, or does work of its own. Colours: green from "
            "1.2, orange from 0.8, blue below; over 5 minutes.",
            Target(
                _ratio("run, region", _OF_PARTS),
                "{{region}} · {{run}}",
                min_interval=OVER_5_MIN,
                may_be_empty=_NO_DEVICE,
            ),
            no_value=_NO_DEVICE,
            decimals=2,
            thresholds=((None, "blue"), (0.8, "orange"), (1.2, "green")),
            width=8,
        ),
        lines(
            "Device / host time of forward and backward, since when",
            "Since when is the run bound by the host? The same ratio of "
            "fastvideo_region_device_duration_seconds and fastvideo_region_duration_seconds over "
            "time. A fall to about 1: the host has become too slow, such as by another program on "
            "its cores.",
            Target(
                _ratio("run, region", passes),
                "{{region}} · {{run}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_DEVICE,
            ),
            no_value=_NO_DEVICE,
            minimum=0,
            width=8,
        ),
        lines(
            "Forward + backward on the device per step, by rank",
            "Is one device slower than the others? fastvideo_region_device_duration_seconds of "
            "both passes together, per step of each chosen rank. All do the same work: a line "
            "above the others is a hot or throttled device.",
            Target(
                f"{on_device} / {queries.steps(by='run, rank', where=queries.RANKS)}",
                "rank {{rank}} · {{run}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_DEVICE,
            ),
            no_value=_NO_DEVICE,
            unit="s",
            minimum=0,
            width=8,
            links=(_TO_RANK,),
        ),
    )


def _times_per_entry() -> tuple[Panel, ...]:
    return (
        lines(
            "Device time per entry, by region of a step",
            "How long does the device take? Mean of fastvideo_region_device_duration_seconds of "
            "the regions inside a step, those of the method too. A rise at the same work: a "
            "slower kernel, a throttled device, or other work in the same stream.",
            Target(
                queries.mean(queries.DEVICE_REGION, by="run, region", where=_INSIDE_STEP),
                "{{region}} · {{run}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_DEVICE,
            ),
            no_value=_NO_DEVICE,
            unit="s",
            minimum=0,
        ),
        lines(
            "Host time per entry, by region of a step",
            "How long does the host take? Mean of fastvideo_region_duration_seconds of the same "
            "regions as on the left. A rise where the device has none: the host.",
            Target(
                queries.mean(queries.REGION, by="run, region", where=_INSIDE_STEP),
                "{{region}} · {{run}}",
                min_interval=SMOOTH,
            ),
            unit="s",
            minimum=0,
        ),
    )


def _fullest_rank() -> tuple[Panel, ...]:
    peak = f'{_MEMORY}{{{queries.RANKS},kind="peak"}}'
    size = f'{_MEMORY}{{{queries.RANKS},kind="capacity"}}'
    return (
        stat(
            "Fullest rank: share used",
            "How near to its memory's end is the fullest rank? fastvideo_device_memory_bytes of "
            "kind peak, the most that was allocated at once, over that of kind capacity. Above "
            "90 % the next longer sample may end the run.",
            Target(
                f"max by (run) (max by (run, rank) ({peak}) / (max by (run, rank) ({size}) > 0))",
                "{{run}}",
                may_be_empty=_NO_DEVICE,
            ),
            unit="percentunit",
            decimals=0,
            no_value=_NO_DEVICE,
            thresholds=limits(0.9, 0.97),
            width=4,
            height=8,
        ),
        stat(
            "Fullest rank: peak memory",
            "How much memory does the fullest rank need? fastvideo_device_memory_bytes of kind "
            "peak, since its process began or last made a video. Near the capacity beside: as "
            "on the left.",
            Target(f"max by (run) ({peak})", "{{run}}", may_be_empty=_NO_DEVICE),
            unit="bytes",
            no_value=_NO_DEVICE,
            thresholds=PLAIN,
            width=4,
            height=8,
        ),
    )


def _memory() -> tuple[Panel, ...]:
    reserved = f'{_MEMORY}{{{queries.RANKS},kind="reserved"}}'
    allocated = f'{_MEMORY}{{{queries.RANKS},kind="allocated"}}'
    return (
        lines(
            "Memory of the fullest rank, by kind",
            "Does memory grow? fastvideo_device_memory_bytes of the rank with the most, as its "
            "allocator sees it; dashed is what the device has. Allocated memory that grows from "
            "step to step is a leak.",
            Target(
                f"max by (run, kind) ({_MEMORY}{{{queries.RANKS}}})",
                "{{kind}} · {{run}}",
                may_be_empty=_NO_DEVICE,
            ),
            unit="bytes",
            minimum=0,
            no_value=_NO_DEVICE,
            width=8,
            overrides=(Override("/^capacity/", DASHED, is_pattern=True),),
        ),
        lines(
            "Reserved and not allocated, by rank",
            "How much is lost to fragmentation? fastvideo_device_memory_bytes of kind reserved "
            "less allocated. Large and near the device's size: out of memory with memory free; "
            "expandable segments help.",
            Target(
                f"sum by (run, rank) ({reserved}) - sum by (run, rank) ({allocated})",
                "rank {{rank}} · {{run}}",
                may_be_empty=_NO_DEVICE,
            ),
            unit="bytes",
            minimum=0,
            no_value=_NO_DEVICE,
            width=8,
            links=(_TO_RANK,),
        ),
    )


def _devices() -> Panel:
    def memory(kind: str) -> str:
        return f'max by (run, rank) ({_MEMORY}{{{queries.RANKS},kind="{kind}"}})'

    return table(
        "Where each rank runs",
        "What does the run run on? fastvideo_rank_info, and fastvideo_device_memory_bytes of each "
        "rank. Different devices within a run: the slowest sets the pace.",
        Target(
            f"max by (run, rank, host, local_rank, device) (fastvideo_rank_info{{{queries.RANKS}}})"
        ),
        Target(memory("peak"), may_be_empty=_NO_DEVICE),
        Target(memory("capacity"), may_be_empty=_NO_DEVICE),
        hide=("Value #A",),
        columns={
            "Value #B": "peak memory",
            "Value #C": "memory of the device",
            "local_rank": "local rank",
        },
        first=("run", "rank", "host", "local_rank", "device"),
        overrides=(column("peak memory", "bytes"), column("memory of the device", "bytes")),
        width=24,
        height=6,
    )
