"""Does the device pace the run, or the host; and is there memory left."""

from __future__ import annotations

from typing import Final

from fastvideo.dashboards import queries
from fastvideo.dashboards.frame import ANNOTATIONS, TITLES, VARIABLES, link_to
from fastvideo.dashboards.model import Dashboard, Panel, Row, Target
from fastvideo.dashboards.panels import OVER_5_MIN, PLAIN, SMOOTH, bars, lines, stat, table

_UID: Final = "fastvideo-device"
_NO_DEVICE: Final = "no CUDA device"
_MEMORY: Final = "fastvideo_device_memory_bytes"
_OF_PARTS: Final = f"{queries.RANKS},{queries.PARTS}"
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
            Row("Who sets the pace?", _pace()),
            Row("Device memory", _memory()),
            Row("Machines", (_devices(),)),
        ),
        variables=VARIABLES,
        annotations=ANNOTATIONS,
    )


def _ratio(by: str, where: str) -> str:
    device = queries.mean(queries.DEVICE_REGION, by=by, where=where)
    host = queries.mean(queries.REGION, by=by, where=where)
    return f"({device}) / on ({by}) ({host})"


def _pace() -> tuple[Panel, ...]:
    passes = f'{queries.RANKS},region=~"training_(forward|backward)"'
    return (
        bars(
            "Device time over host time now, by region",
            "Is a region bound by launches or by the device? Mean "
            "fastvideo_region_device_duration_seconds over mean "
            "fastvideo_region_duration_seconds. Well above 1: the host ran ahead and the device "
            "has the work: bound by the device, which is good. About 1: the device waits for "
            "each launch: bound by the host; compile, or larger batches. Below 1: the host waits "
            "in this region for work from before, or does work of its own.",
            Target(
                _ratio("run, region", _OF_PARTS),
                "{{run}} {{region}}",
                min_interval=OVER_5_MIN,
                may_be_empty=_NO_DEVICE,
            ),
            no_value=_NO_DEVICE,
            decimals=2,
            thresholds=((None, "blue"), (0.8, "orange"), (1.2, "green")),
            width=8,
        ),
        lines(
            "Device time over host time of forward and backward",
            "Since when is the run bound by the host? The same ratio of "
            "fastvideo_region_device_duration_seconds and fastvideo_region_duration_seconds over "
            "time. A fall to about 1: the host has become too slow, such as by another program on "
            "its cores.",
            Target(
                _ratio("run, region", passes),
                "{{run}} {{region}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_DEVICE,
            ),
            no_value=_NO_DEVICE,
            minimum=0,
            width=8,
        ),
        lines(
            "Forward and backward on the device, by rank",
            "Is one device slower than the others? Mean of "
            "fastvideo_region_device_duration_seconds of both passes for each chosen rank. All do "
            "the same work: a line above the others is a hot or throttled device.",
            Target(
                queries.mean(queries.DEVICE_REGION, by="run, rank", where=passes),
                "{{run}} rank {{rank}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_DEVICE,
            ),
            no_value=_NO_DEVICE,
            unit="s",
            minimum=0,
            width=8,
            links=(_TO_RANK,),
        ),
        lines(
            "Device time per entry, by region",
            "How long does the device take? Mean of fastvideo_region_device_duration_seconds. A "
            "rise at the same work: a slower kernel, a throttled device, or other work in the "
            "same stream.",
            Target(
                queries.mean(queries.DEVICE_REGION, by="run, region", where=queries.RANKS),
                "{{run}} {{region}}",
                min_interval=SMOOTH,
                may_be_empty=_NO_DEVICE,
            ),
            no_value=_NO_DEVICE,
            unit="s",
            minimum=0,
        ),
        lines(
            "Host time per entry, by region",
            "How long does the host take? Mean of fastvideo_region_duration_seconds of the "
            "regions that a step consists of. Read beside the device time on the left. A rise "
            "where the device has none: the host.",
            Target(
                queries.mean(queries.REGION, by="run, region", where=_OF_PARTS),
                "{{run}} {{region}}",
                min_interval=SMOOTH,
            ),
            unit="s",
            minimum=0,
        ),
    )


def _memory() -> tuple[Panel, ...]:
    reserved = f'{_MEMORY}{{{queries.RANKS},kind="reserved"}}'
    allocated = f'{_MEMORY}{{{queries.RANKS},kind="allocated"}}'
    return (
        stat(
            "Highest peak of any rank",
            "How near to its memory's end is the fullest rank? fastvideo_device_memory_bytes of "
            "kind peak: the most that was allocated at once. Compare it with the device's size; "
            "within a few GiB of it, the next longer sample ends the run.",
            Target(
                f'max by (run) ({_MEMORY}{{{queries.RANKS},kind="peak"}})',
                "{{run}}",
                may_be_empty=_NO_DEVICE,
            ),
            unit="bytes",
            no_value=_NO_DEVICE,
            thresholds=PLAIN,
            width=6,
            height=8,
        ),
        lines(
            "Memory of the fullest rank, by kind",
            "Does memory grow? fastvideo_device_memory_bytes of the rank with the most, as its "
            "allocator sees it. Allocated memory that grows from step to step is a leak.",
            Target(
                f"max by (run, kind) ({_MEMORY}{{{queries.RANKS}}})",
                "{{run}} {{kind}}",
                may_be_empty=_NO_DEVICE,
            ),
            unit="bytes",
            minimum=0,
            no_value=_NO_DEVICE,
            width=9,
        ),
        lines(
            "Reserved and not allocated, by rank",
            "How much is lost to fragmentation? fastvideo_device_memory_bytes of kind reserved "
            "less allocated. Large and near the device's size: out of memory with memory free; "
            "expandable segments help.",
            Target(
                f"sum by (run, rank) ({reserved}) - sum by (run, rank) ({allocated})",
                "{{run}} rank {{rank}}",
                may_be_empty=_NO_DEVICE,
            ),
            unit="bytes",
            minimum=0,
            no_value=_NO_DEVICE,
            width=9,
            links=(_TO_RANK,),
        ),
    )


def _devices() -> Panel:
    return table(
        "Ranks by machine and device",
        "What does the run run on? fastvideo_rank_info: the number of ranks for each host and "
        "kind of device. Different devices within a run: the slowest sets the pace.",
        Target(f"count by (run, host, device) (fastvideo_rank_info{{{queries.RANKS}}})"),
        columns={"Value": "ranks"},
        width=24,
        height=6,
    )
