"""The summary of a segment for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastvideo.profiler.summary import summarise
from fastvideo.profiler.summary_table import render
from fastvideo.profiler.trace_checks import check_trace
from fastvideo.profiler.trace_events import TraceEvents


def text_of(builder: Any, record: Any, warnings: tuple[str, ...] = ()) -> str:
    """Renders the summary of a synthetic trace."""
    events = TraceEvents(
        with_shapes=record.options.get("record_shapes", False),
        with_flops=record.options.get("with_flops", False),
    )
    events.add(builder.events)
    return render(record, summarise(events), check_trace(events), warnings, "trace.gz (1 MB)")


def test_the_heading_says_what_was_recorded(cuda_step: Any, make_record: Any) -> None:
    """Segment, rank, region, step, thread, start and options stand above the table."""
    record = make_record(Path("/raw"), device="cuda", options={"with_stack": True, "z": False})
    lines = text_of(cuda_step, record, ("kernels_lost: all of them",)).splitlines()
    assert lines[:12] == [
        "Segment 0 of rank 0 (of 2): region training_forward, step 12",
        "",
        "trace       trace.gz (1 MB)",
        "started     2026-10-01 12:17:06.000000 UTC (unix 1790857026000000123 ns)",
        "wall time   400.000 us, and 50.000 ms for profiling itself",
        (
            "recorded    thread MainThread (4242) and the autograd threads that work for it "
            "(1 thread ran operators);"
        ),
        "            operators of other threads are not in the segment",
        "options     with_stack",
        "device      3 kernels, 3 launches; busy for 190.000 us (48 % of the wall time)",
        "WARNING     kernels_lost: all of them",
        "",
        "Operators",
    ]


def test_the_table_is_aligned_and_sorted(cuda_step: Any, make_record: Any) -> None:
    """Operators come first, sorted by self device time; kernels have a table of their own."""
    text = text_of(cuda_step, make_record(Path("/raw"), device="cuda"))
    operators, _, kernels = text.partition("On the device\n")
    rows = [line for line in operators.splitlines() if "aten::" in line or "c10d::" in line]
    assert [row.split()[0] for row in rows] == [
        "c10d::allreduce_",
        "aten::addmm",
        "aten::gelu",
        "aten::linear",
    ]
    assert len({len(row) for row in rows}) == 1
    assert rows[1].split()[1:7] == ["100.000", "us", "37.0", "100.000", "us", "38.000"]
    assert [line.split()[0] for line in kernels.splitlines()[3:8]] == [
        "fastvideo.region::training_forward",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArg...",
        "gemm_bf16",
        "vectorized_elementwise_kernel",
        "Memcpy",
    ]


def test_shares_of_kernels_leave_regions_out(cuda_step: Any, make_record: Any) -> None:
    """A region drawn on a stream is no kernel: it is marked, and shares add up without it."""
    text = text_of(cuda_step, make_record(Path("/raw"), device="cuda"))
    rows = text.partition("On the device\n")[2].splitlines()[3:8]
    shares = [row.split("us")[1].split()[0] for row in rows]
    assert shares[0] == "region"
    assert sum(float(share) for share in shares[1:]) == pytest.approx(100, abs=0.2)


def test_without_a_device_there_are_no_device_columns(builder: Any, make_record: Any) -> None:
    """A CPU segment shows CPU times only."""
    builder.op("aten::add", 0, 5)
    text = text_of(builder, make_record(Path("/raw")))
    assert "device" not in text
    assert "aten::add  5.000 us" in text


def test_an_empty_segment_says_so(builder: Any, make_record: Any) -> None:
    """Where nothing ran, the table says that nothing ran."""
    assert text_of(builder, make_record(Path("/raw"), step=None)).endswith("nothing ran\n")


def test_shapes_and_flops_have_columns_when_recorded(builder: Any, make_record: Any) -> None:
    """Shapes are shown if they were recorded; FLOPs come with the share of time they cover."""
    builder.op("aten::mm", 0, 25, **{"Input Dims": [[100, 200], [200, 50]]})
    builder.op("aten::scaled_dot_product_attention", 30, 75)
    options = {"record_shapes": True, "with_flops": True}
    text = text_of(builder, make_record(Path("/raw"), options=options))
    assert "0.002 G counted; torch has formulas for operators that take 25 %" in text
    assert "not counted, longest first: aten::scaled_dot_product_attention 75.000 us" in text
    [row] = [line for line in text.splitlines() if line.startswith("aten::mm ")]
    assert row.endswith("1   2.000  [[100, 200], [200, 50]]")


def test_no_line_of_the_heading_is_long(cuda_step: Any, make_record: Any) -> None:
    """Warnings and all the rest are wrapped, and nothing of them is lost."""
    warning = "trace_too_big: " + "the trace is too big " * 12
    options = {"with_flops": True, "with_stack": True, "record_shapes": True}
    record = make_record(Path("/raw"), device="cuda", options=options)
    heading = text_of(cuda_step, record, (warning,)).partition("Operators\n")[0].splitlines()
    assert max(map(len, heading)) <= 110
    start = next(i for i, line in enumerate(heading) if line.startswith("WARNING"))
    assert " ".join(" ".join(heading[start:]).split()) == f"WARNING {warning.strip()}"


def test_rows_of_torch_itself_are_explained(builder: Any, make_record: Any) -> None:
    """One line under the table says what they are, where there are any."""
    builder.op("PythonSubclass", 0, 50)
    builder.op("aten::mm", 10, 20)
    line = text_of(builder, make_record(Path("/raw"))).splitlines()[-1]
    assert line.startswith("PythonSubclass: operators handed to Python code")
    builder.op("PythonDispatchMode", 60, 50)
    line = text_of(builder, make_record(Path("/raw"))).splitlines()[-1]
    assert line.startswith("PythonDispatchMode, PythonSubclass: operators")
    assert len(line) <= 110


def test_numbers_agree_with_their_nouns(builder: Any, make_record: Any) -> None:
    """One kernel is no kernels."""
    builder.launch(0, start=10, dur=5)
    text = text_of(builder, make_record(Path("/raw"), device="cuda"))
    assert "device      1 kernel, 1 launch; busy" in text


def test_long_tables_end_with_a_pointer_to_the_rest(builder: Any, make_record: Any) -> None:
    """The text shows the first operators, and says how many there are in the JSON."""
    for i in range(250):
        builder.op(f"op{i}", i * 10, 5)
    text = text_of(builder, make_record(Path("/raw")))
    assert text.endswith("and 50 more; the .json beside this file holds all\n")
    assert sum(line.startswith("op") for line in text.splitlines()) == 201 - 1 + text.count(
        "options"
    )
