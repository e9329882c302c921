"""Handing segments to the helper process, and what happens without it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastvideo.profiler import export, export_thread
from fastvideo.profiler.export import SegmentExporter, SegmentRecord
from fastvideo.profiler.export_process import HelperProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 60.0


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[SegmentExporter]:
    """Gives an exporter with a helper process."""
    made = SegmentExporter(tmp_path, 0)
    made.start()
    yield made
    assert made.close(TIMEOUT_S)


@pytest.fixture
def segment(make_step: Any, make_record: Any, tmp_path: Path) -> Any:
    """Gives a function that writes the native trace of a segment and returns its record."""

    def make(index: int, **fields: Any) -> SegmentRecord:
        raw = make_step().write(tmp_path / f".raw_{index}.json")
        record: SegmentRecord = make_record(raw, index=index, device="cuda", **fields)
        return record

    return make


def wait_for_end(pid: int) -> None:
    """Waits until a process that is no child of this one has gone."""
    deadline = time.monotonic() + TIMEOUT_S
    while Path(f"/proc/{pid}").exists():
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        if state == "Z":
            return
        assert time.monotonic() < deadline, f"process {pid} does not end"
        time.sleep(0.02)


def kept(record: SegmentRecord) -> Path:
    """Returns where the native trace of a segment is that is not exported."""
    return record.directory / f"raw_{record.stem}.json"


def helper_of(exporter: SegmentExporter) -> HelperProcess:
    """Returns the helper of an exporter that has one."""
    assert exporter._helper is not None
    return exporter._helper


def test_segments_are_exported_by_the_helper(exporter: SegmentExporter, segment: Any) -> None:
    """Every segment comes back once, in order, as the line of the index."""
    for index in range(3):
        exporter.submit(segment(index))
    assert exporter.flush(TIMEOUT_S)
    lines = exporter.poll()
    assert [(line["index"], line["status"]) for line in lines] == [(0, "ok"), (1, "ok"), (2, "ok")]
    index = (exporter.directory / "segments_rank0.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in index] == lines
    assert exporter.poll() == []
    assert list(exporter.directory.glob(".*")) == []


def test_the_helper_is_small_and_steps_back(exporter: SegmentExporter, segment: Any) -> None:
    """It maps no torch, runs at low priority, and is the first to go when memory runs out."""
    exporter.submit(segment(0))
    assert exporter.flush(TIMEOUT_S)
    process = Path(f"/proc/{helper_of(exporter).pid}")
    assert "torch" not in (process / "maps").read_text("utf-8")
    assert os.getpriority(os.PRIO_PROCESS, helper_of(exporter).pid) >= 10
    assert (process / "oom_score_adj").read_text("ascii").strip() == "500"
    assert os.getpgid(helper_of(exporter).pid) != os.getpgid(0)


def test_submitting_never_waits(
    exporter: SegmentExporter, make_record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a helper that stands still the pipe fills up, and submitting goes on all the same."""
    monkeypatch.setattr(export, "MAX_WAITING", 5000)
    exporter.submit(make_record(tmp_path / "gone", index=0))
    assert exporter.flush(TIMEOUT_S)
    os.kill(helper_of(exporter).pid, signal.SIGSTOP)
    padding = {"padding": "x" * 2000}
    for index in range(1, 1200):
        exporter.submit(make_record(tmp_path / "gone", index=index, metadata=padding))
    assert not exporter.flush(0.05)
    assert helper_of(exporter)._outbox
    os.kill(helper_of(exporter).pid, signal.SIGCONT)
    assert exporter.flush(TIMEOUT_S)
    assert [line["index"] for line in exporter.poll()] == list(range(1200))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_to_the_group_do_not_end_the_helper(
    exporter: SegmentExporter, segment: Any, number: int
) -> None:
    """Sent to the helper itself right after it was started, they change nothing."""
    os.kill(helper_of(exporter).pid, number)
    exporter.submit(segment(0))
    os.killpg(helper_of(exporter).pid, number)
    assert exporter.flush(TIMEOUT_S)
    assert [line["status"] for line in exporter.poll()] == ["ok"]
    assert exporter._thread is None


def test_when_the_helper_dies_a_thread_goes_on(
    exporter: SegmentExporter, segment: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One error is logged, and no segment is lost or exported twice."""
    exporter.submit(segment(0))
    assert exporter.flush(TIMEOUT_S)
    os.kill(helper_of(exporter).pid, signal.SIGSTOP)
    exporter.submit(segment(1))
    exporter.submit(segment(2))
    os.kill(helper_of(exporter).pid, signal.SIGKILL)
    assert exporter.flush(TIMEOUT_S)
    exporter.submit(segment(3))
    assert exporter.flush(TIMEOUT_S)
    assert [line["index"] for line in exporter.poll()] == [0, 1, 2, 3]
    index = (exporter.directory / "segments_rank0.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["index"] for line in index] == [0, 1, 2, 3]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert errors[0].startswith("the export helper for kernel traces ended early: exit code -9; ")


def test_what_an_ailing_helper_says_is_in_the_log(
    tmp_path: Path, segment: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A helper that cannot run explains itself, and a thread takes its place."""
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no room to work')", encoding="utf-8")
    exporter = SegmentExporter(tmp_path, 0)
    exporter._helper = HelperProcess(worker=broken)
    exporter.submit(segment(0))
    assert exporter.close(TIMEOUT_S)
    assert [line["status"] for line in exporter.poll()] == ["ok"]
    assert "ended early: exit code 1: no room to work; segments are" in caplog.text


@pytest.mark.parametrize("executable", ["", "/nowhere/python", None])
def test_without_a_python_a_thread_does_the_work(
    tmp_path: Path,
    segment: Any,
    executable: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where no helper can be started, that is one error, and segments are exported."""
    monkeypatch.setattr(sys, "executable", executable)
    exporter = SegmentExporter(tmp_path, 0)
    exporter.start()
    exporter.start()
    for index in range(2):
        exporter.submit(segment(index))
    assert exporter.close(TIMEOUT_S)
    assert [line["status"] for line in exporter.poll()] == ["ok", "ok"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "cannot start" in caplog.text


def test_a_huge_trace_is_not_read_by_the_trainer(
    tmp_path: Path, segment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a helper, a trace that could take the trainer's memory stays as it is."""
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(export_thread, "MAX_RAW_BYTES", 1000)
    exporter = SegmentExporter(tmp_path, 0)
    record = segment(0)
    exporter.submit(record)
    assert exporter.close(TIMEOUT_S)
    [line] = exporter.poll()
    assert (line["status"], line["raw_file"]) == ("failed", str(kept(record)))
    assert kept(record).exists()


def test_faults_are_said_once_for_each_kind(
    exporter: SegmentExporter,
    segment: Any,
    builder: Any,
    make_record: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names the first segment of each fault and where the native trace is."""
    for index in range(2):
        record = segment(index)
        os.truncate(record.raw_path, 1500)
        exporter.submit(record)
    for index in range(2, 4):
        raw = builder.write(tmp_path / f".raw_{index}.json")
        exporter.submit(make_record(raw, index=index, device="cuda"))
    assert exporter.flush(TIMEOUT_S)
    errors = [record.getMessage() for record in caplog.records]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert len(errors) == 2
    assert errors[0].startswith(
        "kernel-trace segment 0 of region training_forward cannot be exported: the native trace "
        "is cut off"
    )
    assert "; nothing of it is left. Training goes on" in errors[0]
    assert "segment 2 of region training_forward: no_kernels: " in errors[1]


def test_listeners_hear_of_every_segment(
    tmp_path: Path, segment: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that raises is said once and harms nothing."""
    heard = []

    def listen(line: dict[str, Any]) -> None:
        heard.append(line["index"])
        raise RuntimeError(line["region"])

    exporter = SegmentExporter(tmp_path, 0, on_finished=listen)
    for index in range(2):
        exporter.submit(segment(index))
    assert exporter.close(TIMEOUT_S)
    assert heard == [0, 1]
    assert len(exporter.poll()) == 2
    assert caplog.text.count("a listener of finished segments failed") == 1


def test_more_than_may_wait_is_refused(
    exporter: SegmentExporter,
    segment: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The queue is bounded; what is refused keeps its native trace."""
    exporter.submit(segment(0))
    assert exporter.flush(TIMEOUT_S)
    os.kill(helper_of(exporter).pid, signal.SIGSTOP)
    monkeypatch.setattr(export, "MAX_WAITING", 1)
    exporter.submit(segment(1))
    refused = segment(2)
    exporter.submit(refused)
    os.kill(helper_of(exporter).pid, signal.SIGCONT)
    assert exporter.flush(TIMEOUT_S)
    assert [line["index"] for line in exporter.poll()] == [0, 1]
    assert kept(refused).exists()
    assert "segment 2 of region training_forward is not exported (1 others are" in caplog.text


def test_after_closing_nothing_is_taken(
    tmp_path: Path, segment: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing twice is harmless; a later segment is refused and its native trace is kept."""
    exporter = SegmentExporter(tmp_path, 0)
    exporter.submit(segment(0))
    assert exporter.close(TIMEOUT_S)
    assert exporter.close(TIMEOUT_S)
    late = segment(1)
    exporter.submit(late)
    assert kept(late).exists()
    assert list(tmp_path.glob(".*")) == []
    assert "is not exported (the exporter is closed)" in caplog.text
    assert exporter.flush(0)


def test_an_exporter_that_was_never_used_closes(tmp_path: Path) -> None:
    """There is nothing to wait for, and no helper was started."""
    exporter = SegmentExporter(tmp_path, 0)
    assert exporter.flush(0)
    assert exporter.close(0)
    assert exporter._helper is None


def test_closing_does_not_wait_longer_than_told(
    exporter: SegmentExporter, segment: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A helper that is not done is left at work, and the log says so."""
    helper = helper_of(exporter)
    exporter.submit(segment(0))
    assert exporter.flush(TIMEOUT_S)
    os.kill(helper.pid, signal.SIGSTOP)
    exporter.submit(segment(1))
    assert not exporter.close(0.05)
    assert "1 kernel-trace segment was still being exported after 0.1 s" in caplog.text
    os.kill(helper.pid, signal.SIGCONT)
    assert helper.wait(TIMEOUT_S)
    assert len(list(exporter.directory.glob("trace_*.gz"))) == 2


def test_a_record_survives_the_way_to_the_helper(make_record: Any) -> None:
    """What the helper reads is what was sent."""
    record = make_record(Path("/raw ü.json"), step=None, attributes={"a": 1.5, "b": None})
    assert SegmentRecord.from_json(record.to_json()) == record


PROGRAM = """
import os, signal, sys
from pathlib import Path
from fastvideo.profiler.export import SegmentExporter, SegmentRecord
folder, how = Path(sys.argv[1]), sys.argv[2]
records = [SegmentRecord.from_json(p.read_bytes()) for p in sorted(folder.glob("job*.json"))]
exporter = SegmentExporter(folder, 0)
exporter.start()
print(exporter._helper.pid, flush=True)
if how == "fork":
    child = os.fork()
    if child == 0:
        assert exporter.poll() == [] and exporter.flush(1) and exporter.close(1)
        exporter.submit(records[0])
        exporter.start()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
if how == "held":
    holder = os.fork()
    if holder == 0:
        os.close(1)
        os.close(2)
        signal.pause()
    print(holder, flush=True)
for record in records:
    exporter.submit(record)
if how in ("kill", "held"):
    os.kill(os.getpid(), signal.SIGKILL)
if how == "group":
    os.killpg(0, signal.SIGKILL)
if how != "leave":
    assert exporter.close(60)
"""


@pytest.mark.parametrize("how", ["close", "leave", "kill", "group", "held", "fork"])
def test_what_was_handed_over_is_exported_however_the_trainer_ends(
    segment: Any, tmp_path: Path, how: str
) -> None:
    """Closed, left open, killed alone or with its group, or with a forked child that lives on."""
    for index in range(5):
        (tmp_path / f"job{index}.json").write_bytes(segment(index).to_json())
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    out, err = program.communicate(timeout=TIMEOUT_S)
    killed = how in ("kill", "group", "held")
    assert program.returncode == (-signal.SIGKILL if killed else 0), err
    assert err == b""
    helper, *holders = map(int, out.split())
    try:
        wait_for_end(helper)
    finally:
        for pid in holders:
            os.kill(pid, signal.SIGKILL)
    index = (tmp_path / "segments_rank0.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["index"] for line in index] == [0, 1, 2, 3, 4]
    assert list(tmp_path.glob(".*")) == []
