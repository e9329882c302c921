"""Real segments, from the entry of a region to the files: what a user finds in the directory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fastvideo.profiler.segment import Segment
from fastvideo.profiler.stems import claim_stem

REGION = "fastvideo.region::"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one scenario of ``record_segments.py`` left behind."""

    folder: Path
    notes: dict[str, Any]
    log: list[str]
    counters: dict[str, int]

    def index(self, rank: int = 0) -> list[dict[str, Any]]:
        """Returns the lines of the segment index."""
        text = (self.folder / f"segments_rank{rank}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def traces(self) -> list[dict[str, Any]]:
        """Returns all traces, in the order of their names."""
        paths = sorted(self.folder.glob("trace_*.pt.trace.json.gz"))
        return [json.loads(gzip.decompress(path.read_bytes())) for path in paths]

    def logged(self, text: str) -> int:
        """Returns how many log lines hold ``text``."""
        return sum(text in line for line in self.log)


def names(trace: dict[str, Any], category: str) -> list[str]:
    """Returns the names of the slices of a category, in order of their start."""
    found = [event for event in trace["traceEvents"] if event.get("cat") == category]
    return [event["name"] for event in sorted(found, key=lambda event: event["ts"])]


def slice_of(trace: dict[str, Any], name: str) -> tuple[float, float]:
    """Returns start and end of the only slice called ``name``, in microseconds."""
    (event,) = [event for event in trace["traceEvents"] if event.get("name") == name]
    return event["ts"], event["ts"] + event["dur"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Gives the folder, the notes and the standard error of one process with all scenarios."""
    folder = tmp_path_factory.mktemp("segments")
    script = Path(__file__).with_name("record_segments.py")
    unset = {"KINETO_LOG_LEVEL", "RANK", "WORLD_SIZE"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(folder)],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "scenarios.json").read_text(encoding="utf-8"))
    return folder, results, done.stderr


@pytest.fixture
def outcome(request: pytest.FixtureRequest, recorded: tuple[Path, dict[str, Any], str]) -> Outcome:
    """Gives the outcome of the scenario that the test is marked with."""
    folder, results, _ = recorded
    return Outcome(folder / request.param, **results[request.param])


def scenario(name: str) -> pytest.MarkDecorator:
    """Marks a test with its scenario."""
    return pytest.mark.parametrize("outcome", [name], indirect=True)


@scenario("first")
def test_the_first_segment_imports_nothing(outcome: Outcome) -> None:
    """What the first session of a process imports is imported when the controller is armed."""
    assert outcome.notes["imported when armed"] > 0
    assert outcome.notes["imported by the first segment"] == []
    assert len(outcome.traces()) == 1


@scenario("first")
def test_one_line_says_where_the_traces_are(outcome: Outcome) -> None:
    """The absolute directory is logged at the start, and at the end how many segments it has."""
    assert outcome.log == [
        f"INFO kernel trace: each outermost training_forward becomes a segment in {outcome.folder}",
        f"INFO kernel trace: 1 segment in {outcome.folder}",
    ]
    assert outcome.folder.is_absolute()


def test_nothing_is_written_to_standard_error(
    recorded: tuple[Path, dict[str, Any], str],
) -> None:
    """Neither kineto's lines nor warnings appear, with warnings as errors and CUDA asked for."""
    _, results, errors = recorded
    assert errors.partition("here torch itself begins to complain")[0] == ""
    assert "USDT" not in errors
    assert results["first"]["notes"]["KINETO_LOG_LEVEL"] is None


@scenario("windows")
def test_every_entry_is_one_trace_of_the_work_inside(outcome: Outcome) -> None:
    """Five entries give five traces, each with its marker and without the work between them."""
    traces = outcome.traces()
    assert len(traces) == 5
    for trace in traces:
        assert names(trace, "user_annotation") == [f"{REGION}training_forward"]
        operators = names(trace, "cpu_op")
        assert "aten::cos" in operators
        assert "aten::sin" not in operators
        start, end = slice_of(trace, f"{REGION}training_forward")
        cosine = slice_of(trace, "aten::cos")
        assert start <= cosine[0] <= cosine[1] <= end
    assert [line["step"] for line in outcome.index()] == [0, 1, 2, 3, 4]
    assert [line["index"] for line in outcome.index()] == [0, 1, 2, 3, 4]


@scenario("windows")
def test_files_share_a_stem_and_nothing_temporary_stays(outcome: Outcome) -> None:
    """A segment is a trace, two summaries and a line in the index."""
    stems = [f"rank0_segment{index:04d}_training_forward" for index in range(5)]
    expected = {f"trace_{stem}.pt.trace.json.gz" for stem in stems}
    expected |= {f"summary_{stem}.{kind}" for stem in stems for kind in ("txt", "json")}
    assert {path.name for path in outcome.folder.iterdir()} == expected | {"segments_rank0.jsonl"}
    assert outcome.counters == {"recorded": 5, "exported_ok": 5}


@scenario("nested")
def test_selected_regions_nest_as_written_and_others_are_left_out(outcome: Outcome) -> None:
    """A nested selected region is annotated in its call site's spelling; others are not."""
    (trace,) = outcome.traces()
    outer, inner = f"{REGION}training_train_one_step", f"{REGION}profiler_region_training_forward"
    assert names(trace, "user_annotation") == [outer, inner]
    outside, inside = slice_of(trace, outer), slice_of(trace, inner)
    assert outside[0] <= inside[0] <= inside[1] <= outside[1]
    assert names(trace, "cpu_op").count("aten::cos") == 2


@scenario("nested")
def test_attributes_are_plain_values(outcome: Outcome) -> None:
    """Attributes are in the trace; of a tensor, only the type, for reading one synchronises."""
    (trace,) = outcome.traces()
    expected = {"step": 7, "step_kind": "critic", "batch": "<Tensor>"}
    assert trace["fastvideo"]["attributes"] == expected
    assert outcome.index()[0]["step"] == 7


@scenario("empty")
def test_an_empty_region_gives_valid_files(outcome: Outcome) -> None:
    """A region in which nothing ran is a trace with its marker and nothing else."""
    (trace,) = outcome.traces()
    assert names(trace, "user_annotation") == [f"{REGION}training_forward"]
    assert names(trace, "cpu_op") == []
    assert outcome.counters == {"recorded": 1, "exported_ok": 1}


@scenario("out_of_order")
def test_exits_out_of_order_leave_whole_segments(outcome: Outcome) -> None:
    """The opener's exit closes its segment; what is open in it ends with it, and only there."""
    step, forward = f"{REGION}training_train_one_step", f"{REGION}training_forward"
    traces = [names(trace, "user_annotation") for trace in outcome.traces()]
    assert traces == [[step, forward], [step, forward], [step]]
    end_of_step = slice_of(outcome.traces()[0], step)[1]
    assert slice_of(outcome.traces()[0], forward)[1] <= end_of_step


@scenario("threads")
def test_other_threads_neither_start_nor_close_a_segment(outcome: Outcome) -> None:
    """Regions of another thread leave the open segment alone, and record when there is none."""
    index = outcome.index()
    assert [line["region"] for line in index] == ["training_train_one_step"] + [
        "training_forward"
    ] * 3
    threads = [trace["fastvideo"]["thread"].split(" ")[0] for trace in outcome.traces()]
    assert threads == ["MainThread", "alone", "alone", "alone"]
    assert "aten::cos" in names(outcome.traces()[0], "cpu_op")


@scenario("raising")
def test_an_exception_passes_and_closes_the_segment(outcome: Outcome) -> None:
    """The caller sees the body's exception; the trace names its type, never its text."""
    first, second = outcome.traces()
    assert outcome.notes["same exception"]
    assert first["fastvideo"]["error"] == "KeyError"
    assert "error" not in second["fastvideo"]
    assert "secret text" not in json.dumps(first)


@scenario("stacks")
def test_stacks_give_back_the_profile_hook(outcome: Outcome) -> None:
    """WITH_STACK warns once, and the program's sys.setprofile hook works afterwards."""
    assert outcome.notes == {"hook is back": True, "hook was called": True}
    assert outcome.logged("FASTVIDEO_TORCH_PROFILER_WITH_STACK") == 1
    functions = names(outcome.traces()[0], "python_function")
    assert any("record_segments.py" in name for name in functions)


@scenario("shapes")
def test_tensors_and_profilers_are_released(outcome: Outcome) -> None:
    """After the region, neither its tensors nor its profiler live, without a collection."""
    assert outcome.notes == {"tensor is gone": True, "profiler is gone": True}


@scenario("failing")
def test_failures_are_said_once_and_the_next_segment_works(outcome: Outcome) -> None:
    """A profiler that cannot start, stop or write costs its segment only, and nothing nested."""
    assert outcome.counters == {"recorded": 3, "failed": 4, "exported_ok": 3}
    for phase in ("begin", "stop", "write"):
        assert outcome.logged(f"cannot {phase} the segment") == 1
    for trace in outcome.traces():
        annotations = [f"{REGION}training_forward", f"{REGION}training_backward"]
        assert names(trace, "user_annotation") == annotations
    assert not list(outcome.folder.glob(".*"))


@scenario("compiled")
def test_compiled_functions_have_no_graph_breaks(outcome: Outcome) -> None:
    """fullgraph=True passes over regions and decorated functions, off and on."""
    assert outcome.notes["equal"] == [True, True, True, True]
    assert names(outcome.traces()[0], "user_annotation")[0] == f"{REGION}training_train_one_step"


@scenario("compiled")
def test_regions_never_entered_are_named_at_the_end(outcome: Outcome) -> None:
    """One line names enabled regions that were never entered, and why that may be."""
    assert outcome.logged("never entered in this process: training_backward, training_forward") == 1


@scenario("unwritable")
def test_an_unusable_directory_is_one_error(outcome: Outcome) -> None:
    """The directory cannot be made: an error that names it, three failed segments, no exception."""
    assert outcome.counters == {"failed": 3}
    errors = [line for line in outcome.log if line.startswith("ERROR")]
    assert len(errors) == 1
    assert str(outcome.folder / "file" / "traces") in errors[0]


@scenario("full_disk")
def test_a_full_disk_costs_its_segment_only(outcome: Outcome) -> None:
    """A trace that was cut off gets no final name; the next segment is whole."""
    assert [line["status"] for line in outcome.index()] == ["failed", "ok"]
    assert not list(outcome.folder.glob(".*"))
    assert outcome.logged(f"INFO kernel trace: 1 segment in {outcome.folder}, 1 failed") == 1
    (trace,) = outcome.traces()
    assert names(trace, "user_annotation") == [f"{REGION}training_forward"]
    assert sum(line.startswith("ERROR") for line in outcome.log) == 1


@scenario("late_rank")
def test_the_rank_is_the_one_of_the_moment(outcome: Outcome) -> None:
    """RANK alone, a process group that comes later, and neither of them are all right."""
    ranks = {rank: outcome.index(rank)[0]["world_size"] for rank in (0, 3, 5)}
    assert ranks == {5: 6, 3: 8, 0: 1}
    assert len(list(outcome.folder.glob("trace_rank3_segment0000_*"))) == 1


@scenario("second_run")
def test_a_second_run_continues_the_numbers(outcome: Outcome) -> None:
    """Files of an earlier run in the same directory stay."""
    assert [line["index"] for line in outcome.index()] == [0, 1, 2, 3]
    assert len(outcome.traces()) == 4


@scenario("many")
def test_three_hundred_segments_use_no_more_memory_than_fifty(outcome: Outcome) -> None:
    """Nothing of a segment stays in memory; the cap ends recording with one warning."""
    after_50, after_300 = outcome.notes["rss"]
    assert after_300 - after_50 < 8 * 1024**2
    assert outcome.counters == {"recorded": 300, "skipped": 1, "exported_ok": 300}
    assert outcome.logged("FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS") == 1


@scenario("foreign")
def test_a_foreign_profiler_is_annotated_and_left_alone(outcome: Outcome) -> None:
    """The user's profiler around regions gets annotations; segments resume after it."""
    assert outcome.notes == {"annotated": 2, "own profiler inside": 1}
    assert outcome.logged("another torch profiler runs in this process") == 1
    assert outcome.counters == {"recorded": 3, "skipped": 2, "exported_ok": 3}


@scenario("foreign")
def test_a_profiler_started_inside_a_region_ends_its_segment(outcome: Outcome) -> None:
    """The segment is whole up to there, the user's profiler works, and so does the next segment."""
    assert outcome.logged("another torch profiler begins inside a region") == 1
    operators = [names(trace, "cpu_op").count("aten::cos") for trace in outcome.traces()]
    assert operators == [1, 0, 1]


@scenario("scheduled")
def test_a_profiler_with_a_schedule_is_made_way_for(outcome: Outcome) -> None:
    """From its warm-up on, the user's profiler is alone; before and after it, there are segments.

    Torch crashes when a session runs between another one's warm-up and its end.
    """
    assert outcome.notes == {"outside": [1], "inside": [1], "watched": True, "restored": True}
    assert outcome.counters == {"recorded": 4, "skipped": 4, "exported_ok": 4}


@scenario("other_thread")
def test_a_profiler_of_another_thread_does_not_crash_the_process(outcome: Outcome) -> None:
    """It costs the segment it displaces; the user's profiler and the next segment are whole."""
    assert outcome.counters == {"failed": 1, "recorded": 1, "exported_ok": 1}
    assert outcome.notes == {"own profiler": 1, "own profiler later": 1}
    assert outcome.logged("another torch profiler begins inside a region") == 1
    assert not list(outcome.folder.glob(".*"))


def test_a_segment_that_never_started_ends_quietly(tmp_path: Path) -> None:
    """Stopping and writing without a profiler do nothing."""
    from fastvideo.profiler import resolve_profiler_region  # noqa: PLC0415

    region = resolve_profiler_region("training_forward")
    assert region is not None
    segment = Segment(region, step=None, attributes={})
    segment.stop()
    segment.export(tmp_path / "x.json")
    assert segment.annotate("x") is None
    assert list(tmp_path.iterdir()) == []


def test_kineto_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    """An export that leaves the reserved file empty, as on a full disk, is not handed over."""
    from fastvideo.profiler import resolve_profiler_region  # noqa: PLC0415
    from fastvideo.profiler.segment import SegmentError  # noqa: PLC0415

    class Mute:
        def start(self) -> None: ...

        def stop(self) -> None: ...

        def export_chrome_trace(self, path: str) -> None: ...

    region = resolve_profiler_region("training_forward")
    assert region is not None
    stem = claim_stem(tmp_path, 0, "training_forward")
    segment = Segment(region, step=None, attributes={})
    segment.start(Mute())
    segment.stop()
    with pytest.raises(SegmentError, match="is the disk full"):
        segment.export(stem.raw_path)
