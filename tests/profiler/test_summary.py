"""Operator totals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastvideo.profiler.summary import OperatorTotal, Summary, summarise, totals_json
from fastvideo.profiler.trace_events import TraceEvents
from fastvideo.profiler.trace_file import TraceReader

FIELDS = ("self_cpu_us", "cpu_us", "self_device_us", "device_us")
SESSIONS = (
    "backward",
    "nested",
    "shapes",
    "memory",
    "stack",
    "flops",
    "everything",
    "empty",
    "quotes",
    "steps",
)


def add_up(events: list[dict[str, Any]], **options: bool) -> Summary:
    """Summarises events."""
    collected = TraceEvents(**options)
    collected.add(events)
    return summarise(collected)


def summarise_session(session: dict[str, Any]) -> Summary:
    """Summarises a recorded session with the options it was recorded with."""
    options = session["options"]
    collected = TraceEvents(
        with_shapes=options.get("record_shapes", False),
        with_flops=options.get("with_flops", False),
    )
    with Path(session["trace"]).open("rb") as file:
        for chunk in TraceReader(file).chunks():
            collected.add(chunk.events)
    return summarise(collected)


def by_name(summary: Summary) -> dict[str, OperatorTotal]:
    """Returns the totals by name; of regions those on the CPU."""
    return {total.name: total for total in reversed(summary.totals)}


@pytest.mark.parametrize("name", SESSIONS)
def test_totals_are_those_of_key_averages(sessions: dict[str, dict[str, Any]], name: str) -> None:
    """Every operator of a real session has the times and the count that torch computes."""
    rows = json.loads(totals_json(summarise_session(sessions[name]).totals))
    ours = {(row["name"], str(row["shapes"])): row for row in rows}
    torchs = {(_written(row["name"]), str(row["shapes"])): row for row in sessions[name]["rows"]}
    assert len(ours) == len(rows)
    assert ours.keys() == torchs.keys()
    for key, row in ours.items():
        assert row["count"] == torchs[key]["count"], key
        expected = [torchs[key][field] for field in FIELDS]
        assert [row[field] for field in FIELDS] == pytest.approx(expected, abs=2e-3), key


def test_sessions_differ(sessions: dict[str, dict[str, Any]]) -> None:
    """The sessions hold what they are meant to cover, so that comparing them means something."""
    names = {key: {row["name"] for row in s["rows"]} for key, s in sessions.items()}
    assert "autograd::engine::evaluate_function: ConvolutionBackward0" in names["backward"]
    assert "[memory]" in names["memory"]
    assert "ProfilerStep*" in names["steps"]
    assert any(".py(" in name for name in names["stack"])
    assert names["empty"] == set()
    counts = {row["name"]: row["count"] for row in sessions["nested"]["rows"]}
    assert (counts["same"], counts["outer"]) == (1, 2)
    shapes = [row["shapes"] for row in sessions["shapes"]["rows"] if row["name"] == "aten::empty"]
    assert len(shapes) > 0


def test_kernels_belong_to_the_operator_that_launched_them(cuda_step: Any) -> None:
    """Self device time is what an operator launched itself, device time includes what it called."""
    totals = by_name(add_up(cuda_step.events))
    times = {
        name: (totals[name].self_device_ns / 1000, totals[name].device_ns / 1000)
        for name in ("aten::linear", "aten::addmm", "c10d::allreduce_", "aten::gelu")
    }
    assert times == {
        "aten::linear": (10, 110),
        "aten::addmm": (100, 100),
        "c10d::allreduce_": (120, 120),
        "aten::gelu": (40, 40),
    }


def test_launches_are_children_of_their_operator(cuda_step: Any) -> None:
    """The time of a launch is not the operator's own; a call of no operator stands alone."""
    totals = by_name(add_up(cuda_step.events))
    assert totals["aten::addmm"].self_cpu_ns == 38_000
    assert totals["aten::linear"].self_cpu_ns == 18_000
    assert totals["cudaLaunchKernel"].count == 3
    region = [t for t in add_up(cuda_step.events).totals if t.name.startswith("fastvideo")]
    on_cpu = next(t for t in region if t.cpu_ns)
    assert on_cpu.self_cpu_ns == (400 - 60 - 20 - 20) * 1000
    assert on_cpu.device_ns == 270_000
    on_device = next(t for t in region if not t.cpu_ns)
    assert (on_device.self_device_ns, on_device.count) == (190_000, 1)


def test_launches_on_another_thread_count_where_the_operator_runs(builder: Any) -> None:
    """A launch that carries the id of an operator is its child, whatever thread it is drawn on."""
    op = builder.op("aten::mm", 0, 100)
    event = builder.slice("cuda_runtime", "cudaLaunchKernel", 10, 5, tid=99)
    event["args"] = {"External id": op, "correlation": 3}
    assert by_name(add_up(builder.events))["aten::mm"].self_cpu_ns == 95_000


def test_simultaneous_kernels_count_once_in_the_busy_time(builder: Any) -> None:
    """The device is busy for the union of what runs on its streams."""
    builder.kernel("a", 0, 100, tid=7)
    builder.kernel("b", 50, 100, tid=8)
    builder.kernel("c", 60, 10, tid=9)
    builder.kernel("d", 150, 10, tid=7)
    builder.kernel("e", 300, 10, tid=7)
    summary = add_up(builder.events)
    assert summary.device_busy_ns == 170_000
    assert sum(total.self_device_ns for total in summary.totals) == 230_000


def test_the_longest_comes_first(cuda_step: Any, sessions: dict[str, dict[str, Any]]) -> None:
    """Totals are sorted by self device time, without a device by self CPU time."""
    device = [total.self_device_ns for total in add_up(cuda_step.events).totals]
    assert device == sorted(device, reverse=True)
    cpu = [total.self_cpu_ns for total in summarise_session(sessions["backward"]).totals]
    assert cpu == sorted(cpu, reverse=True)
    assert len(cpu) > 20


def test_shapes_separate_totals_only_when_asked_for(builder: Any) -> None:
    """Shapes that happen to be in the trace do not split totals unless they were wanted."""
    builder.op("aten::mm", 0, 1, **{"Input Dims": [[2, 3], [3, 4]]})
    builder.op("aten::mm", 2, 1, **{"Input Dims": [[2, 3], [3, 5]]})
    builder.op("aten::cat", 4, 1, **{"Input Dims": [[[2, 3], [2, 3]], []]})
    plain = {(t.name, str(t.shapes), t.count) for t in add_up(builder.events).totals}
    assert plain == {("aten::mm", "[]", 2), ("aten::cat", "[]", 1)}
    shaped = add_up(builder.events, with_shapes=True).totals
    assert {(t.name, str(t.shapes), t.count) for t in shaped} == {
        ("aten::mm", "[[2, 3], [3, 4]]", 1),
        ("aten::mm", "[[2, 3], [3, 5]]", 1),
        ("aten::cat", "[[], []]", 1),
    }


def test_times_are_exact_to_the_nanosecond(builder: Any) -> None:
    """A child that ends with its parent is nested in it although the clock counts large numbers."""
    for start in range(1000):
        builder.op("parent", start * 3 + 0.123, 2.111)
        builder.op("child", start * 3 + 0.234, 2.0)
    totals = by_name(add_up(builder.events))
    assert totals["parent"].self_cpu_ns == 1000 * 111
    assert totals["child"].cpu_ns == 1000 * 2000


@pytest.mark.parametrize(
    "events",
    [
        [],
        [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}],
        [{"ph": "X"}, {"name": "no phase"}, {"ph": "X", "cat": "cpu_op", "ts": None, "dur": 1}],
        [{"ph": "i", "name": "Record Window End", "ts": 1.0}],
        [{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 1e999}],
    ],
)
def test_traces_without_slices(events: list[dict[str, Any]]) -> None:
    """Empty, metadata-only and malformed traces have an empty summary."""
    collected = TraceEvents()
    collected.add(events)
    summary = summarise(collected)
    assert summary.totals == []
    assert collected.event_count == len(events)
    assert json.loads(totals_json(summary.totals)) == []


def test_the_share_of_time_in_counted_operators(builder: Any) -> None:
    """What a counted operator calls is counted with it; the rest is listed by its self time."""
    dims = {"Input Dims": [[4, 8], [8, 2]]}
    builder.op("aten::matmul", 0, 100)
    builder.op("aten::mm", 10, 60, **dims)
    builder.op("aten::resolve_conj", 20, 10)
    builder.op("aten::scaled_dot_product_attention", 200, 300)
    summary = add_up(builder.events, with_flops=True)
    assert (summary.counted_ns, summary.operator_ns) == (60_000, 400_000)
    assert summary.uncounted == [
        ("aten::scaled_dot_product_attention", 300_000),
        ("aten::matmul", 40_000),
    ]
    assert by_name(summary)["aten::mm"].flops == 2 * 4 * 8 * 2


def test_with_a_device_the_share_is_of_device_time(builder: Any) -> None:
    """Coverage is weighed by kernels where there are any."""
    counted = builder.op("aten::mm", 0, 10, **{"Input Dims": [[4, 8], [8, 2]]})
    other = builder.op("aten::conv3d", 20, 10)
    builder.launch(2, op=counted, start=10, dur=30)
    builder.launch(22, op=other, start=50, dur=10)
    summary = add_up(builder.events, with_flops=True)
    assert (summary.counted_ns, summary.operator_ns) == (30_000, 40_000)


def _written(name: str) -> str:
    """Returns a name as kineto writes it: backslashes and what is no ASCII are replaced."""
    return name.replace("\\", "/") if name.isascii() else "unknown"
