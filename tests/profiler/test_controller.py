"""The controller of a process: arming, sharing, disarming, with an exporter that only pretends."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.profiler import ProfilerActivity

from fastvideo.profiler import controller as module
from fastvideo.profiler import profiler_region
from fastvideo.profiler.config import TorchProfilerConfig
from fastvideo.profiler.controller import (
    TorchProfilerController,
    get_global_controller,
    get_or_create_profiler,
    set_global_controller,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastvideo.profiler.segment_record import SegmentRecord

FORWARD, STEP = "training_forward", "training_train_one_step"
CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA


class FakeProfiler:
    """Writes an empty trace."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text("{}", encoding="utf-8")


class FakeExporter:
    """Finishes every segment at once."""

    made: list[FakeExporter]

    def __init__(
        self, directory: Path, rank: int, *, on_finished: Callable[[dict[str, Any]], None]
    ) -> None:
        self.directory, self.rank, self.on_finished = directory, rank, on_finished
        self.records: list[SegmentRecord] = []
        self.calls: list[str] = []
        FakeExporter.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def submit(self, record: SegmentRecord) -> None:
        self.records.append(record)
        self.on_finished({"status": "ok"})

    def poll(self) -> list[dict[str, Any]]:
        return []

    def flush(self, timeout_s: float) -> bool:
        self.calls.append("flush")
        return True

    def close(self, timeout_s: float) -> bool:
        self.calls.append("close")
        return True


@pytest.fixture(autouse=True)
def _own_process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "FASTVIDEO_NVTX_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    FakeExporter.made = []
    before = get_global_controller()
    set_global_controller(None)
    yield
    set_global_controller(before)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., TorchProfilerController]]:
    """Gives a function that makes controllers with fakes, which are stopped in the end."""
    made: list[TorchProfilerController] = []

    def build(*regions: str, **arguments: Any) -> TorchProfilerController:
        arguments = {
            "profiler_factory": FakeProfiler,
            "trace_dir": tmp_path,
            "exporter_factory": FakeExporter,
        } | arguments
        options = arguments.pop("options", {})
        config = TorchProfilerConfig(frozenset(regions or {FORWARD}), **options)
        made.append(TorchProfilerController(None, [CPU, CUDA], config, **arguments))
        return made[-1]

    yield build
    for controller in made:
        controller.stop()


def test_nothing_happens_before_start(make: Any, tmp_path: Path) -> None:
    """A controller that was made, and no more, records nothing and starts no process."""
    make()
    with profiler_region(FORWARD):
        pass
    assert FakeExporter.made == []
    assert list(tmp_path.iterdir()) == []


def test_between_start_and_stop_regions_become_segments(make: Any) -> None:
    """Regions of the process reach the exporter; before and after, they do not."""
    controller = make()
    controller.start()
    controller.start()
    with profiler_region(FORWARD):
        assert controller.is_enabled
    assert not controller.is_enabled
    controller.stop()
    with profiler_region(FORWARD):
        pass
    (exporter,) = FakeExporter.made
    assert exporter.calls == ["start", "close"]
    assert [record.region for record in exporter.records] == [FORWARD]
    assert controller.counters == {"recorded": 1, "exported_ok": 1}


def test_region_drives_the_controller_started_or_not(make: Any) -> None:
    """The controller's own context manager works before start() and after it, and counts once."""
    controller = make()
    for start in (False, True):
        if start:
            controller.start()
        with controller.region(FORWARD):
            assert controller.is_enabled
        with controller.region("training_backward"):
            assert not controller.is_enabled
    assert controller.counters["recorded"] == 2


def test_what_a_controller_tells_about_itself(make: Any) -> None:
    """Regions by any spelling, and the activities that exist here."""
    controller = make()
    assert controller.has_profiler
    assert controller.is_region_enabled(FORWARD)
    assert controller.is_region_enabled(f"profiler_region_{FORWARD}")
    assert not controller.is_region_enabled("training_backward")
    expected = (CPU, CUDA) if torch.cuda.is_available() else (CPU,)
    assert controller.activities == expected


@pytest.mark.parametrize(
    "controller",
    [
        TorchProfilerController(None, [], disabled=True),
        TorchProfilerController(None, [CPU]),
        TorchProfilerController(FakeProfiler(), [CPU], disabled=True, trace_dir="somewhere"),
    ],
    ids=["disabled", "without a profiler", "disabled with a directory"],
)
def test_a_controller_without_a_profiler_does_nothing(controller: TorchProfilerController) -> None:
    """It can be started, entered and stopped, without any variable being read."""
    controller.start()
    with controller.region(FORWARD):
        assert not controller.is_enabled
    controller.stop()
    assert not controller.has_profiler
    assert not controller.is_region_enabled(FORWARD)
    assert controller.counters == {}


def test_the_environment_is_the_default_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a configuration the variables count, and an unusable one is an error."""
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILE_REGIONS", "nothing_like_it")
    with pytest.raises(ValueError, match="FASTVIDEO_TORCH_PROFILE_REGIONS"):
        TorchProfilerController(None, [CPU], trace_dir=tmp_path)
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILE_REGIONS", "training_train")
    controller = TorchProfilerController(None, [CPU], trace_dir=tmp_path)
    assert controller.config.regions == {"profiler_region_training_train"}


def test_a_given_profiler_serves_the_first_segment(make: Any) -> None:
    """Later ones get profilers of their own, for a profiler cannot be trusted twice."""
    made: list[FakeProfiler] = []

    class Given(FakeProfiler):
        starts = 0

        def start(self) -> None:
            Given.starts += 1

    def factory() -> FakeProfiler:
        made.append(FakeProfiler())
        return made[-1]

    controller = TorchProfilerController(
        Given(), [CPU], TorchProfilerConfig(frozenset({FORWARD})), profiler_factory=factory
    )
    for _ in range(3):
        with controller.region(FORWARD):
            pass
    assert (Given.starts, len(made)) == (1, 2)


def test_a_relative_directory_is_resolved_once(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later chdir does not move the traces, and ``~`` is the home directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    controller = make(trace_dir="traces")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    controller.start()
    with profiler_region(FORWARD):
        pass
    assert FakeExporter.made[0].records[0].directory == tmp_path / "traces"
    assert make(trace_dir="~/traces").trace_dir == tmp_path / "home" / "traces"
    assert make(trace_dir="~nobody-of-this-name/x").trace_dir is not None


def test_where_traces_go_is_said_even_without_logging(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is information, and a warning only where nobody configured logging."""
    handlers = iter([True, False])
    logger = logging.getLogger("fastvideo.profiler.trace_report")
    monkeypatch.setattr(logger, "hasHandlers", lambda: next(handlers))
    for level in (logging.INFO, logging.WARNING, logging.WARNING):
        with caplog.at_level(level, logger="fastvideo"):
            controller = make()
            controller.start()
            controller.stop()
    lines = [record for record in caplog.records if str(tmp_path) in record.message]
    assert [record.levelno for record in lines] == [logging.INFO, logging.WARNING]
    assert lines[0].message == (
        f"kernel trace: each outermost {FORWARD} becomes a segment in {tmp_path}"
    )


def test_enabled_regions_that_were_never_entered_are_named(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One line at the end; a region that was entered inside another one is not in it."""
    controller = make(FORWARD, STEP, "training_train")
    controller.start()
    with profiler_region(STEP), profiler_region(FORWARD):
        pass
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="fastvideo"):
        controller.stop()
        controller.stop()
    (record,) = caplog.records
    assert "never entered in this process: training_train (" in record.message


def test_a_window_that_never_matched_is_said(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Once, at the end, on a rank that was to trace; a segment or a failure says enough."""
    controller = make(options={"steps": ((10, 12),)})
    controller.start()
    for step in range(1, 7):
        with profiler_region(STEP, step=step), profiler_region(FORWARD):
            pass
    controller.stop()
    controller.stop()
    (warning,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert warning == (
        "kernel trace: no segment was recorded: steps 1-6 were seen, "
        "FASTVIDEO_TORCH_PROFILE_STEPS is 10-12"
    )
    caplog.clear()
    controller.start()
    with profiler_region(STEP, step=10), profiler_region(FORWARD):
        pass
    controller.stop()
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == []


def test_ranks_that_do_not_exist_are_said_once(
    make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start where the number of ranks is known, else at the end; on rank 0 only."""
    for known in (True, False):
        if known:
            monkeypatch.setenv("WORLD_SIZE", "1")
        else:
            monkeypatch.delenv("WORLD_SIZE")
        controller = make(options={"ranks": frozenset({7})})
        controller.start()
        assert caplog.text.count("FASTVIDEO_TORCH_PROFILE_RANKS is 7") == int(known)
        controller.stop()
        assert caplog.text.count("FASTVIDEO_TORCH_PROFILE_RANKS is 7") == 1
        caplog.clear()
    monkeypatch.setenv("RANK", "1")
    controller = make(options={"ranks": frozenset({7})})
    controller.start()
    controller.stop()
    assert caplog.messages == []


def test_after_sigterm_everything_shares_ten_seconds(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What flushing took is missing from what stop() may wait; a program that goes on has all."""
    clock = [100.0]
    waits: list[tuple[str, float]] = []

    class Slow(FakeExporter):
        def flush(self, timeout_s: float) -> bool:
            waits.append(("flush", timeout_s))
            clock[0] += min(7.0, timeout_s)
            return False

        def close(self, timeout_s: float) -> bool:
            waits.append(("close", timeout_s))
            clock[0] += min(7.0, timeout_s)
            return False

    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    controller = make(exporter_factory=Slow)
    controller.start()
    monkeypatch.setenv("RANK", "1")
    with profiler_region(FORWARD):
        pass
    controller.on_sigterm(lambda: None)
    assert waits == [("flush", 10.0), ("flush", 3.0)]
    waits.clear()

    def ends() -> None:
        controller.on_sigterm(lambda: None)
        sys.exit("signalled twice")

    with pytest.raises(SystemExit):
        controller.on_sigterm(ends)
    controller.stop()
    assert waits == [
        *(("flush", 10.0), ("flush", 3.0)),
        *(("flush", 0.0), ("flush", 0.0)),
        *(("close", 1.0), ("close", 1.0)),
    ]
    waits.clear()
    controller.start()
    controller.stop()
    assert waits == [("close", 30.0)]


def test_cuda_is_recorded_and_waited_for_where_it_exists(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a device, both activities are recorded and the device is waited for before the stop."""
    waits: list[str] = []
    monkeypatch.setattr(module.torch_session, "existing_activities", lambda: (CPU, CUDA))
    monkeypatch.setattr("torch.cuda.synchronize", lambda: waits.append("synchronize"))
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    controller = make()
    controller.start()
    with profiler_region(FORWARD):
        assert waits == []
    assert waits == ["synchronize"]
    assert controller.activities == (CPU, CUDA)
    assert FakeExporter.made[0].records[0].device == "cuda"


def test_a_rank_that_is_known_late_gets_its_own_exporter(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments go to the index of the rank they were recorded by; all exporters are closed."""
    controller = make()
    controller.start()
    monkeypatch.setenv("RANK", "3")
    with profiler_region(FORWARD):
        pass
    controller.stop()
    assert [(one.rank, len(one.records)) for one in FakeExporter.made] == [(0, 0), (3, 1)]
    assert [one.calls for one in FakeExporter.made] == [["start", "close"]] * 2


def test_a_rank_that_is_not_selected_starts_and_says_nothing(
    make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a helper process nor a line in the log, until the rank turns out to be selected."""
    monkeypatch.setenv("RANK", "1")
    config = TorchProfilerConfig(frozenset({FORWARD, STEP}), ranks=frozenset({3}), with_stack=True)
    controller = TorchProfilerController(
        None,
        [CPU],
        config,
        profiler_factory=FakeProfiler,
        trace_dir=make().trace_dir,
        exporter_factory=FakeExporter,
    )
    controller.start()
    with profiler_region(FORWARD):
        assert not controller.is_enabled
    controller.stop()
    assert (FakeExporter.made, caplog.records) == ([], [])
    controller.start()
    monkeypatch.setenv("RANK", "3")
    with profiler_region(FORWARD):
        assert controller.is_enabled
    assert [one.rank for one in FakeExporter.made] == [3]
    controller.stop()
    assert "never entered in this process: training_train_one_step" in caplog.text


def test_without_a_directory_tracing_is_off() -> None:
    """Pipelines may ask for a controller always; it does nothing and is not kept."""
    for trace_dir in (None, "", "  "):
        assert not get_or_create_profiler(trace_dir).has_profiler
    assert get_global_controller() is None


def test_pipelines_share_one_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    """The first directory makes the controller; later calls get it, whatever they ask for."""
    monkeypatch.setenv("FASTVIDEO_TORCH_PROFILE_REGIONS", FORWARD)
    present = make()
    set_global_controller(present)
    for trace_dir in (tmp_path / "x", None):
        assert get_or_create_profiler(trace_dir) is present
    with profiler_region(FORWARD):
        pass
    assert present.counters["recorded"] == 1


def test_the_process_ends_with_its_handlers_as_they_were(make: Any) -> None:
    """After stop(), SIGTERM does what it did before start()."""
    import signal  # noqa: PLC0415

    before = signal.getsignal(signal.SIGTERM)
    controller = make()
    controller.start()
    during = signal.getsignal(signal.SIGTERM)
    controller.stop()
    assert during != before
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_of_this_file_leaves_traces_in_the_working_directory() -> None:
    """Controllers that only were made create no directory."""
    assert not os.path.lexists("somewhere")
