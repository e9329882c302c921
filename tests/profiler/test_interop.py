"""Other people's readers on the traces that are written here."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fastvideo.profiler.segment_export import export_segment

pytestmark = [
    pytest.mark.integration,
    # HolisticTraceAnalysis warns about its own use of pandas.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def cuda_traces(make_step: Any, make_record: Any, tmp_path: Path) -> dict[int, str]:
    """Gives exported CUDA traces of two ranks."""
    found = {}
    for rank in range(2):
        raw = make_step(ranks_apart_us=5.0 * rank).write(tmp_path / f".raw{rank}.json")
        line = export_segment(make_record(raw, rank=rank, device="cuda"))
        found[rank] = str(tmp_path / line["files"]["trace"])
    return found


@pytest.fixture
def cpu_traces(
    sessions: dict[str, dict[str, Any]], make_record: Any, tmp_path: Path
) -> dict[int, str]:
    """Gives exported real CPU traces of two ranks, the second with one operator more."""
    found = {}
    for rank, name in enumerate(("backward", "nested")):
        raw = tmp_path / f".raw{rank}.json"
        raw.write_bytes(Path(sessions[name]["trace"]).read_bytes())
        line = export_segment(make_record(raw, rank=rank))
        found[rank] = str(tmp_path / line["files"]["trace"])
    return found


def analysis_of(traces: dict[int, str]) -> Any:
    """Opens traces in HolisticTraceAnalysis."""
    from hta.common.trace import Trace  # noqa: PLC0415 - an extra
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415

    # Its default forks a pool from this process, whose threads make that a matter of luck.
    alone = functools.partialmethod(Trace.load_traces, use_multiprocessing=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trace, "load_traces", alone)
        return TraceAnalysis(trace_files=traces)


def test_ranks_are_found_by_their_metadata(cuda_traces: dict[int, str], tmp_path: Path) -> None:
    """A folder of traces is sorted by rank, which is read from the first lines of each."""
    from hta.common.trace_file import create_rank_to_trace_dict_from_dir  # noqa: PLC0415

    folder = tmp_path / "traces"
    folder.mkdir()
    for path in cuda_traces.values():
        Path(path).rename(folder / Path(path).name)
    found, by_rank = create_rank_to_trace_dict_from_dir(str(folder))
    assert found
    assert by_rank == {rank: str(folder / Path(path).name) for rank, path in cuda_traces.items()}


def test_cuda_traces_are_broken_down(cuda_traces: dict[int, str]) -> None:
    """Busy time, kinds of kernels and their totals come out as the trace was made."""
    analysis = analysis_of(cuda_traces)
    temporal = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    assert sorted(temporal.index) == [0, 1]
    assert list(temporal["kernel_time(us)"]) == [190, 190]
    assert list(temporal["compute_time(us)"]) == [140, 140]
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    assert set(kinds["kernel_type"]) >= {"COMPUTATION", "COMMUNICATION"}
    times = kernels[kernels["rank"] == 0].set_index("name")["sum (us)"]
    assert times["gemm_bf16"] == 100
    assert times[[name for name in times.index if name.startswith("nccl")]].sum() == 120


def test_cuda_traces_have_overlap_launches_and_regions(cuda_traces: dict[int, str]) -> None:
    """Communication overlaps with compute, launches find their kernels, and regions their time."""
    analysis = analysis_of(cuda_traces)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    assert overlap["comp_comm_overlap_pctg"].tolist() == pytest.approx([58.33, 58.33], abs=0.01)
    launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    assert sorted(launches["gpu_duration"]) == [10, 40, 100, 120]
    regions = analysis.get_gpu_user_annotation_breakdown(visualize=False)
    assert set(regions["name"]) == {"fastvideo.region::training_forward"}
    assert len(analysis.get_queue_length_summary()) == 2


def test_cpu_traces_are_loaded_whole(cpu_traces: dict[int, str]) -> None:
    """Without a GPU every slice of every rank is there, by name, with its duration."""
    analysis = analysis_of(cpu_traces)
    for rank, path in cpu_traces.items():
        frame = analysis.t.get_trace(rank)
        symbols = analysis.t.symbol_table.sym_table
        loaded = sorted(symbols[index] for index in frame["name"])
        events = json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]
        kinds = {"cpu_op", "user_annotation"}
        assert loaded == sorted(e["name"] for e in events if e.get("cat") in kinds)
        spent = sum(int(e["dur"]) for e in events if e.get("cat") in kinds)
        assert frame["dur"].sum() == pytest.approx(spent, rel=0.1, abs=len(loaded) * 2)


def test_cpu_traces_have_no_kernels_and_metadata(cpu_traces: dict[int, str]) -> None:
    """The breakdown of kernels is empty rather than an error; our metadata is in the header."""
    analysis = analysis_of(cpu_traces)
    kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
    assert (len(kinds), len(kernels)) == (0, 0)
    assert analysis.t.meta_data[1]["distributedInfo"] == {"rank": 1, "world_size": 2}
    assert analysis.t.meta_data[1]["fastvideo"]["run_id"] == "run-1"


def test_cpu_traces_have_call_graphs(cpu_traces: dict[int, str]) -> None:
    """Who called whom is found from the slices: convolutions below the region that ran them."""
    from hta.common.call_stack import CallGraph  # noqa: PLC0415 - an extra

    trace = analysis_of(cpu_traces).t
    CallGraph(trace)
    frame = trace.get_trace(0)
    symbols = trace.symbol_table.sym_table
    [convolution] = [i for i, n in frame["name"].items() if symbols[n] == "aten::conv2d"]
    parent = frame["parent"][convolution]
    assert symbols[frame["name"][parent]] == "fastvideo.region::training_forward"
    assert frame["depth"][convolution] == frame["depth"][parent] + 1
