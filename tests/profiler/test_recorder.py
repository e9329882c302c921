"""Which entry opens a segment and which exit closes it, with profilers that only pretend."""

from __future__ import annotations

import logging
import threading
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy  # noqa: ICN001 - named once
import pytest
import torch

from fastvideo.profiler import ProfilerRegion, resolve_profiler_region
from fastvideo.profiler.config import TorchProfilerConfig
from fastvideo.profiler.recorder import SegmentRecorder

if TYPE_CHECKING:
    from fastvideo.profiler.segment_record import SegmentRecord

STEP, FORWARD, BACKWARD = "training_train_one_step", "training_forward", "training_backward"

Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - what shutil.disk_usage returns


class FakeProfiler:
    """Does nothing, and notes what it was told."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        self.calls.append("export")
        Path(path).write_text("{}", encoding="utf-8")


class Bench:
    """A recorder with fakes around it."""

    def __init__(self, directory: Path | None, *regions: str, **options: Any) -> None:
        self.calls: list[str] = []
        self.records: list[SegmentRecord] = []
        device = options.pop("device", "cpu")
        self.recorder = SegmentRecorder(
            TorchProfilerConfig(frozenset(regions), **options),
            new_profiler=lambda: FakeProfiler(self.calls),
            submit=self.records.append,
            directory=directory,
            device=device,
            synchronize=(lambda: self.calls.append("synchronize")) if device == "cuda" else None,
        )

    def enter(self, name: str, **attributes: object) -> Any:
        """Enters a region."""
        return self.recorder.enter(region(name), f"fastvideo.region::{name}", attributes)

    def exit(self, token: object, error: type[BaseException] | None = None) -> None:
        """Leaves a region."""
        self.recorder.exit(token, error)

    def run(self, name: str, **attributes: object) -> None:
        """Enters and leaves a region."""
        self.exit(self.enter(name, **attributes))


def region(name: str) -> ProfilerRegion:
    """Returns a registered region."""
    found = resolve_profiler_region(name)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _only_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_the_training_thread_stops_and_writes_and_nothing_else(tmp_path: Path) -> None:
    """A segment is start, stop and the native export, in that order, by a fresh profiler."""
    bench = Bench(tmp_path, FORWARD)
    bench.run(FORWARD)
    bench.run(FORWARD)
    assert bench.calls == ["start", "stop", "export"] * 2


def test_an_entry_names_the_trace_it_opened(tmp_path: Path) -> None:
    """Who listens to the same entry can link to the file; nested entries open none."""
    bench = Bench(tmp_path, STEP, FORWARD)
    step, forward = bench.enter(STEP), bench.enter(FORWARD)
    expected = "trace_rank0_segment0000_training_train_one_step.pt.trace.json.gz"
    assert (step.segment_file, forward.segment_file) == (expected, None)


def test_on_cuda_the_device_is_waited_for_before_the_stop(tmp_path: Path) -> None:
    """Work that the region launched is inside the segment; nested regions do not wait."""
    bench = Bench(tmp_path, STEP, FORWARD, device="cuda")
    step = bench.enter(STEP)
    bench.run(FORWARD)
    bench.exit(step)
    assert bench.calls == ["start", "synchronize", "stop", "export"]
    assert bench.records[0].device == "cuda"


def test_no_segment_begins_while_a_cuda_graph_is_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for the device would break the capture."""
    capturing = iter([True, False])
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: next(capturing))
    bench = Bench(tmp_path, FORWARD, device="cuda")
    bench.run(FORWARD)
    bench.run(FORWARD)
    assert len(bench.records) == 1


def test_the_record_says_what_was_recorded(tmp_path: Path) -> None:
    """Names, numbers, times, thread, options and attributes go to the exporter."""
    bench = Bench(tmp_path, STEP, record_shapes=True)
    bench.exit(bench.enter(STEP, step=12, step_kind="critic"), ValueError)
    (record,) = bench.records
    assert record.stem == "rank0_segment0000_training_train_one_step"
    assert record.directory == tmp_path
    assert record.raw_path.parent == tmp_path
    assert (record.rank, record.world_size, record.index) == (0, 1, 0)
    assert (record.region, record.step) == (STEP, 12)
    assert record.attributes == {"step": 12, "step_kind": "critic"}
    assert record.options["record_shapes"] is True
    assert record.metadata["error"] == "ValueError"
    assert record.thread.startswith(threading.current_thread().name)
    assert record.start_unix_ns > 1_700_000_000 * 10**9
    assert min(record.wall_ns, record.stall_ns) > 0


def test_the_step_of_an_enclosing_region_counts(tmp_path: Path) -> None:
    """A segment inside a step belongs to it, though the step's region is not selected."""
    bench = Bench(tmp_path, FORWARD)
    bench.run(FORWARD)
    step = bench.enter(STEP, step=5)
    bench.run(FORWARD)
    bench.exit(step)
    bench.run(FORWARD)
    assert [record.step for record in bench.records] == [None, 5, None]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (numpy.int64(3), 3),
        (torch.tensor(3), 3),
        (torch.tensor([3]), None),
        (torch.tensor(3, device="meta"), None),
        (torch.tensor(3.0), None),
        ("3", None),
        (2**70, None),
    ],
)
def test_a_step_is_any_whole_number_that_can_be_read_for_free(
    given: object, expected: int | None, tmp_path: Path
) -> None:
    """Numbers of other libraries and tensors on the CPU count; nothing on a device is read."""
    bench = Bench(tmp_path, STEP)
    bench.run(STEP, step=given)
    assert [record.step for record in bench.records] == [expected]


def test_a_step_window_selects_by_the_enclosing_step(tmp_path: Path) -> None:
    """Only steps in the window are recorded, by their own region or by one inside."""
    bench = Bench(tmp_path, STEP, FORWARD, steps=((2, 3),))
    bench.run(FORWARD)
    for step in range(1, 5):
        outer = bench.enter(STEP, step=step)
        bench.run(FORWARD)
        bench.exit(outer)
    assert [(record.region, record.step) for record in bench.records] == [(STEP, 2), (STEP, 3)]
    inner = Bench(tmp_path, FORWARD, steps=((2, 2),))
    for step in (1, 2, 3):
        outer = inner.enter(STEP, step=step)
        inner.run(FORWARD)
        inner.exit(outer)
    assert [(record.region, record.step) for record in inner.records] == [(FORWARD, 2)]


def test_the_steps_that_ran_are_known(tmp_path: Path) -> None:
    """First and last, in whatever order, inside of the window or not."""
    bench = Bench(tmp_path, FORWARD, steps=((2, 2),))
    bench.run(FORWARD)
    assert bench.recorder.steps_seen is None
    for step in (7, 3, 5):
        bench.run(STEP, step=step)
    assert bench.recorder.steps_seen == (3, 7)
    assert bench.recorder.counters == {}


def test_overlapping_steps_leave_no_step_behind(tmp_path: Path) -> None:
    """Steps that are left out of order are over when all of them are left."""
    bench = Bench(tmp_path, FORWARD)
    first = bench.enter(STEP, step=1)
    second = bench.enter(STEP, step=2)
    bench.exit(first)
    bench.run(FORWARD)
    bench.exit(second)
    bench.run(FORWARD)
    assert [record.step for record in bench.records] == [2, None]


def test_it_wants_selected_regions_and_the_step() -> None:
    """Other regions stay free, unless a window makes them possible carriers of the step."""
    wanted = {name: Bench(None, FORWARD).recorder.wants(region(name)) for name in (STEP, BACKWARD)}
    assert wanted == {STEP: True, BACKWARD: False}
    assert Bench(None, FORWARD, steps=((1, 1),)).recorder.wants(region(BACKWARD))


@pytest.mark.parametrize(("rank", "segments"), [("0", 1), ("1", 0), ("3", 1)])
def test_the_rank_filter(
    rank: str, segments: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that are not selected do nothing, and wait for nobody."""
    monkeypatch.setenv("RANK", rank)
    bench = Bench(tmp_path, FORWARD, ranks=frozenset({0, 3}))
    bench.run(FORWARD)
    assert len(bench.records) == segments
    assert len(bench.calls) == 3 * segments


def test_the_cap_ends_recording_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After the last segment, entries cost nothing and say nothing more."""
    bench = Bench(tmp_path, FORWARD, max_segments=2)
    with caplog.at_level(logging.WARNING, logger="fastvideo"):
        for _ in range(5):
            bench.run(FORWARD)
    assert len(bench.records) == 2
    assert len(caplog.records) == 1
    assert "2 segments were recorded" in caplog.text
    assert "FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS" in caplog.text


def test_a_disk_that_is_nearly_full_ends_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Below 2 GiB of free space, one warning that names the directory, and no more segments."""
    free = iter([3 * 1024**3, 2 * 1024**3 - 1, 3 * 1024**3])
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, next(free)))
    bench = Bench(tmp_path, FORWARD)
    with caplog.at_level(logging.WARNING, logger="fastvideo"):
        for _ in range(3):
            bench.run(FORWARD)
    assert len(bench.records) == 1
    assert len(caplog.records) == 1
    assert str(tmp_path) in caplog.text


def test_without_a_directory_profilers_write_for_themselves() -> None:
    """Segments are started and stopped, and nothing is exported."""
    bench = Bench(None, FORWARD)
    bench.run(FORWARD)
    assert bench.calls == ["start", "stop"]
    assert bench.recorder.counters == {"recorded": 1}


def test_recursion_is_one_segment(tmp_path: Path) -> None:
    """The outermost entry owns the segment, of a region in itself too."""
    bench = Bench(tmp_path, FORWARD)
    outer, inner = bench.enter(FORWARD), bench.enter(FORWARD)
    bench.exit(inner)
    assert bench.recorder.is_recording
    bench.exit(outer)
    assert not bench.recorder.is_recording
    assert bench.calls == ["start", "stop", "export"]


def test_leaving_twice_changes_nothing(tmp_path: Path) -> None:
    """A token is good for one exit."""
    bench = Bench(tmp_path, FORWARD)
    token = bench.enter(FORWARD)
    bench.exit(token)
    other = bench.enter(FORWARD)
    bench.exit(token)
    assert bench.recorder.is_recording
    bench.exit(other)
    assert len(bench.records) == 2


def test_the_opener_left_on_another_thread_is_closed_by_its_own(tmp_path: Path) -> None:
    """Torch cannot stop on another thread, so the owner does at its next entry."""
    bench = Bench(tmp_path, FORWARD, BACKWARD)
    token = bench.enter(FORWARD)
    run_in_thread(lambda: bench.exit(token))
    assert bench.calls == ["start"]
    bench.run(BACKWARD)
    assert [record.region for record in bench.records] == [FORWARD, BACKWARD]


def test_closing_from_another_thread_asks_the_owner(tmp_path: Path) -> None:
    """It waits no longer than it was told to, and the owner closes at its next exit."""
    bench = Bench(tmp_path, STEP, FORWARD)
    outer, inner = bench.enter(STEP), bench.enter(FORWARD)
    closed: list[bool] = []
    run_in_thread(lambda: closed.append(bench.recorder.close_open(0.01)))
    assert closed == [False]
    bench.exit(inner)
    assert bench.calls == ["start", "stop", "export"]
    bench.exit(outer)
    assert len(bench.records) == 1
    assert bench.recorder.close_open(0)


def test_an_action_waits_until_the_profiler_has_settled(tmp_path: Path) -> None:
    """What a signal wants to do in the middle of a start happens right after it."""
    bench = Bench(tmp_path, FORWARD)
    order: list[str] = []

    class Interrupted(FakeProfiler):
        def start(self) -> None:
            bench.recorder.when_settled(lambda: order.append("action"))
            order.append("started")

    bench.recorder._new_profiler = lambda: Interrupted(bench.calls)
    bench.run(FORWARD)
    assert order == ["started", "action"]
    bench.recorder.when_settled(lambda: order.append("at once"))
    assert order[-1] == "at once"


def test_a_keyboard_interrupt_in_the_stop_leaves_no_segment_open(tmp_path: Path) -> None:
    """It reaches the program, the raw file is gone, and the next segment works."""
    bench = Bench(tmp_path, FORWARD)

    class Interrupted(FakeProfiler):
        def stop(self) -> None:
            raise KeyboardInterrupt

    fresh = bench.recorder._new_profiler
    bench.recorder._new_profiler = lambda: Interrupted(bench.calls)
    token = bench.enter(FORWARD)
    with pytest.raises(KeyboardInterrupt):
        bench.exit(token)
    assert list(tmp_path.iterdir()) == []
    bench.recorder._new_profiler = fresh
    bench.run(FORWARD)
    assert len(bench.records) == 1


def test_a_failing_seam_costs_its_segment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback for metadata that raises is reported once and counted."""
    bench = Bench(tmp_path, FORWARD)

    def broken(_: object) -> None:
        message = "no trace id"
        raise LookupError(message)

    monkeypatch.setattr("fastvideo.profiler.segment.trace_metadata", broken)
    with caplog.at_level(logging.ERROR, logger="fastvideo"):
        bench.run(FORWARD)
        bench.run(FORWARD)
    assert bench.recorder.counters == {"failed": 2}
    assert len(caplog.records) == 1
    assert "LookupError: no trace id" in caplog.text
    assert list(tmp_path.iterdir()) == []


def run_in_thread(action: Any) -> None:
    """Runs an action on another thread, to its end."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()
