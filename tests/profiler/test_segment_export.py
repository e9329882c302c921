"""Exporting one segment."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastvideo.profiler import atomic_file
from fastvideo.profiler.segment_export import export_segment, index_path, refuse_segment
from fastvideo.profiler.strict_json import loads

STEM = "rank0_segment0000_training_forward"
TRACE = f"trace_{STEM}.pt.trace.json.gz"
TXT = f"summary_{STEM}.txt"
JSON = f"summary_{STEM}.json"
INDEX = "segments_rank0.jsonl"
RAW = f"raw_{STEM}.json"


def names(folder: Path) -> list[str]:
    """Returns the names of all files in a folder, hidden ones too."""
    return sorted(path.name for path in folder.iterdir())


def trace_in(folder: Path) -> dict[str, Any]:
    """Parses the exported trace strictly."""
    text = gzip.decompress((folder / TRACE).read_bytes()).decode("utf-8")
    document: dict[str, Any] = loads(text)
    return document


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """Parses the segment index strictly."""
    return [loads(line) for line in (folder / INDEX).read_text("utf-8").splitlines()]


def test_a_segment_becomes_four_files(cuda_step: Any, make_record: Any, tmp_path: Path) -> None:
    """Trace, both summaries and the index line are there; the native trace is gone."""
    raw = cuda_step.write(tmp_path / ".raw.json")
    line = export_segment(make_record(raw, device="cuda"))
    assert names(tmp_path) == [INDEX, JSON, TXT, TRACE]
    assert (tmp_path / TXT).read_text("utf-8").startswith("Segment 0 of rank 0 (of 2)")
    rows = loads((tmp_path / JSON).read_text("utf-8"))
    assert list(rows[0]) == [
        "name",
        "shapes",
        "self_cpu_us",
        "cpu_us",
        "self_device_us",
        "device_us",
        "count",
    ]
    assert lines_in(tmp_path) == [line]


def test_the_index_line(cuda_step: Any, make_record: Any, tmp_path: Path) -> None:
    """The line has everything that tools need to find and judge the segment."""
    raw = cuda_step.write(tmp_path / ".raw.json")
    line = export_segment(make_record(raw, device="cuda"))
    assert line.pop("export_s") > 0
    assert line.pop("raw_bytes") > line["bytes"]
    assert line == {
        "index": 0,
        "rank": 0,
        "world_size": 2,
        "region": "training_forward",
        "step": 12,
        "start_unix_ns": 1_790_857_026_000_000_123,
        "wall_s": 0.0004,
        "stall_s": 0.05,
        "device": "cuda",
        "run_id": "run-1",
        "trace_id": "ab" * 16,
        "status": "ok",
        "error": None,
        "files": {"trace": TRACE, "summary_txt": TXT, "summary_json": JSON},
        "raw_file": None,
        "bytes": (tmp_path / TRACE).stat().st_size,
        "event_count": len(cuda_step.events),
        "kernel_count": 3,
        "warnings": [],
        "checks": {
            "kernels": 3,
            "launches": 3,
            "launches_without_kernel": 0,
            "kernels_without_launch": 0,
            "kernels_before_launch": 0,
            "overlapping_slices": 0,
        },
    }


def test_the_trace_is_the_native_one_with_our_metadata(
    cuda_step: Any, make_record: Any, tmp_path: Path
) -> None:
    """Events and native fields are kept; who, when and where come on top."""
    raw = cuda_step.write(tmp_path / ".raw.json")
    export_segment(make_record(raw, device="cuda", metadata={"run_id": "run-1", "host": "node7"}))
    document = trace_in(tmp_path)
    assert document.pop("traceEvents") == cuda_step.events
    assert document.pop("fastvideo") == {
        "host": "node7",
        "run_id": "run-1",
        "rank": 0,
        "world_size": 2,
        "region": "training_forward",
        "segment": 0,
        "step": 12,
        "start_unix_ns": 1_790_857_026_000_000_123,
        "wall_ns": 400_000,
        "stall_ns": 50_000_000,
        "thread": "MainThread (4242)",
        "device": "cuda",
        "options": {},
        "attributes": {"step_kind": "generator"},
    }
    assert document.pop("distributedInfo") == {"rank": 0, "world_size": 2}
    assert document.pop("traceName") == TRACE
    assert document == cuda_step.header


def test_what_kineto_says_about_the_process_group_is_kept(
    builder: Any, make_record: Any, tmp_path: Path
) -> None:
    """Rank and world size are added to the process groups, not written over them."""
    builder.header["distributedInfo"] = {
        "backend": "nccl",
        "rank": 5,
        "pg_config": [{"ranks": [5, 6]}],
    }
    raw = builder.write(tmp_path / ".raw.json")
    export_segment(make_record(raw, rank=5, world_size=8, stem=STEM))
    assert trace_in(tmp_path)["distributedInfo"] == {
        "backend": "nccl",
        "rank": 5,
        "world_size": 8,
        "pg_config": [{"ranks": [5, 6]}],
    }


@pytest.mark.parametrize("name", ["backward", "everything", "empty", "quotes", "steps"])
def test_real_sessions_become_strict_json(
    sessions: dict[str, dict[str, Any]], make_record: Any, tmp_path: Path, name: str
) -> None:
    """Whatever was recorded, also where nothing ran, all files are whole and strict."""
    raw = tmp_path / ".raw.json"
    raw.write_bytes(Path(sessions[name]["trace"]).read_bytes())
    line = export_segment(make_record(raw, options=sessions[name]["options"]))
    assert line["status"] == "ok"
    assert line["event_count"] == len(trace_in(tmp_path)["traceEvents"])
    kinds = {warning.partition(":")[0] for warning in line["warnings"]}
    assert kinds - {"overlapping_slices"} == ({"repaired_events"} if name == "quotes" else set())
    loads((tmp_path / JSON).read_text("utf-8"))
    assert lines_in(tmp_path) == [line]


def test_metadata_of_any_kind_is_strict(builder: Any, make_record: Any, tmp_path: Path) -> None:
    """Values that JSON has no word for do not break the trace or the index."""
    raw = builder.write(tmp_path / ".raw.json")
    odd = {"lr": float("nan"), "note": 'a"b\n\\', "run_id": "ü"}
    export_segment(make_record(raw, metadata=odd, attributes={"loss": float("inf")}))
    metadata = trace_in(tmp_path)["fastvideo"]
    assert (metadata["lr"], metadata["note"], metadata["run_id"]) == ("nan", 'a"b\n\\', "ü")
    assert metadata["attributes"] == {"loss": "inf"}
    assert lines_in(tmp_path)[0]["run_id"] == "ü"


def test_a_cuda_segment_without_kernels(builder: Any, make_record: Any, tmp_path: Path) -> None:
    """It has all its files, and a status that says what nobody would see."""
    builder.runtime(0, correlation=3)
    raw = builder.write(tmp_path / ".raw.json")
    line = export_segment(make_record(raw, device="cuda"))
    assert (line["status"], line["kernel_count"]) == ("no_kernels", 0)
    assert line["warnings"][0].startswith("kernels_lost: none of 1 launched kernel was")
    assert "WARNING     kernels_lost" in (tmp_path / TXT).read_text("utf-8")


def test_a_native_trace_that_is_cut_off(cuda_step: Any, make_record: Any, tmp_path: Path) -> None:
    """It never gets a final name, and goes, for nothing can read it; the index says why."""
    raw = cuda_step.write(tmp_path / ".raw.json")
    os.truncate(raw, 2000)
    line = export_segment(make_record(raw))
    assert (line["status"], line["raw_file"], line["files"]) == ("failed", None, {})
    assert line["error"].startswith("the native trace is cut off")
    assert names(tmp_path) == [INDEX]
    assert lines_in(tmp_path) == [line]


def test_a_native_trace_that_is_gone(make_record: Any, tmp_path: Path) -> None:
    """A missing file is an error like any other."""
    line = export_segment(make_record(tmp_path / ".raw.json"))
    assert (line["status"], line["raw_file"]) == ("failed", None)
    assert line["error"] == f"No such file or directory ({tmp_path / '.raw.json'})"


def test_a_directory_that_is_gone(cuda_step: Any, make_record: Any, tmp_path: Path) -> None:
    """Nothing can be written then, not even the index; the result says so all the same."""
    raw = cuda_step.write(tmp_path / ".raw.json")
    line = export_segment(make_record(raw, directory=tmp_path / "gone"))
    assert (line["status"], line["raw_file"]) == ("failed", str(tmp_path / RAW))
    assert line["warnings"][0].startswith("index: the segment index cannot be written (No such")


def test_earlier_files_are_not_overwritten(
    cuda_step: Any, make_record: Any, tmp_path: Path
) -> None:
    """A segment whose name is taken fails, and neither trace is lost."""
    first = cuda_step.write(tmp_path / ".raw1.json")
    export_segment(make_record(first))
    before = (tmp_path / TRACE).read_bytes()
    second = cuda_step.write(tmp_path / ".raw2.json")
    native = second.read_bytes()
    line = export_segment(make_record(second))
    assert (line["status"], line["raw_file"]) == ("failed", str(tmp_path / RAW))
    assert line["error"].startswith("File exists")
    assert (tmp_path / TRACE).read_bytes() == before
    assert (tmp_path / RAW).read_bytes() == native


def test_a_native_trace_whose_visible_name_is_taken_stays_where_it_is(
    cuda_step: Any, make_record: Any, tmp_path: Path
) -> None:
    """Nothing is overwritten to make it visible."""
    raw = cuda_step.write(tmp_path / ".raw.json")
    (tmp_path / RAW).write_text("earlier", encoding="utf-8")
    line = refuse_segment(make_record(raw), "too big")
    assert line["raw_file"] == str(raw)
    assert (tmp_path / RAW).read_text("utf-8") == "earlier"


def test_an_export_that_was_interrupted_is_repeated(
    cuda_step: Any, make_record: Any, tmp_path: Path
) -> None:
    """What a killed exporter left is replaced or removed, and the segment counts once."""
    raw = cuda_step.write(tmp_path / ".raw.json")
    (tmp_path / TRACE).write_bytes(b"of the killed exporter")
    (tmp_path / f".{TXT}.99.tmp").write_bytes(b"half")
    line = export_segment(make_record(raw), again=True)
    assert line["status"] == "ok"
    assert len(trace_in(tmp_path)["traceEvents"]) == len(cuda_step.events)
    assert names(tmp_path) == [INDEX, JSON, TXT, TRACE]
    assert export_segment(make_record(raw), again=True) == line
    assert lines_in(tmp_path) == [line]


def test_a_failed_export_that_was_interrupted_is_repeated(
    cuda_step: Any, make_record: Any, tmp_path: Path
) -> None:
    """A native trace that was being kept is exported after all; one that is told of is not."""
    cuda_step.write(tmp_path / RAW)
    gone = make_record(tmp_path / ".raw.json")
    line = export_segment(gone, again=True)
    assert line["status"] == "ok"
    assert names(tmp_path) == [INDEX, JSON, TXT, TRACE]
    raw = cuda_step.write(tmp_path / ".raw2.json")
    other = make_record(raw, index=1)
    refused = refuse_segment(other, "too big")
    assert export_segment(other, again=True) == refused
    assert lines_in(tmp_path) == [line, refused]


def test_a_summary_that_cannot_be_written(cuda_step: Any, make_record: Any, tmp_path: Path) -> None:
    """The trace is kept and the native one removed; the index names the reason."""
    (tmp_path / TXT).mkdir()
    raw = cuda_step.write(tmp_path / ".raw.json")
    line = export_segment(make_record(raw))
    assert (line["status"], line["files"], line["raw_file"]) == (
        "summary_failed",
        {"trace": TRACE},
        None,
    )
    assert line["error"].startswith("File exists")
    assert names(tmp_path) == [INDEX, TXT, TRACE]


def test_on_a_full_disk_the_native_trace_makes_room(
    cuda_step: Any, make_record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the trace is whole, the native one is given up for what is still to be written."""
    raw = cuda_step.write(tmp_path / ".raw.json")
    write_whole = atomic_file.write_whole

    def while_full(final: Path, data: bytes, *, replace: bool = False) -> None:
        if raw.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_whole(final, data, replace=replace)

    monkeypatch.setattr(atomic_file, "write_whole", while_full)
    assert export_segment(make_record(raw))["status"] == "ok"
    assert names(tmp_path) == [INDEX, JSON, TXT, TRACE]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from fastvideo.profiler.segment_export import export_segment
from fastvideo.profiler.segment_record import SegmentRecord
record = SegmentRecord.from_json(Path(sys.argv[1]).read_bytes())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
line = export_segment(record)
print(line["status"], "|", line["error"], "|", line["raw_file"])
"""


@pytest.mark.parametrize("limit", [0, 40, 400])
def test_a_trace_that_the_system_does_not_let_be_written(
    sessions: dict[str, dict[str, Any]], make_record: Any, tmp_path: Path, limit: int
) -> None:
    """When writing fails half-way for real, no half file is left, and the native trace is kept."""
    raw = tmp_path / ".raw.json"
    raw.write_bytes(Path(sessions["backward"]["trace"]).read_bytes())
    folder = tmp_path / "traces"
    folder.mkdir()
    job = tmp_path / "job.json"
    job.write_bytes(make_record(raw, directory=folder).to_json())
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(job), str(limit)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == f"failed | File too large | {tmp_path / RAW}"
    assert done.stderr == ""
    assert names(folder) in ([INDEX], [])
    assert (folder / INDEX).read_bytes() == b"" if (folder / INDEX).exists() else True
    assert json.loads((tmp_path / RAW).read_bytes())["traceEvents"]
    assert list(tmp_path.glob(".*")) == []


def test_a_segment_can_be_refused(cuda_step: Any, make_record: Any, tmp_path: Path) -> None:
    """A refused segment has a line in the index, and its native trace is kept."""
    raw = cuda_step.write(tmp_path / ".raw.json")
    line = refuse_segment(make_record(raw), "too big")
    assert (line["status"], line["error"]) == ("failed", "too big")
    assert line["raw_file"] == str(tmp_path / RAW)
    assert lines_in(tmp_path) == [line]
    assert names(tmp_path) == [RAW, INDEX]


def test_the_index_is_named_after_the_rank(make_record: Any, tmp_path: Path) -> None:
    """Each rank has an index of its own."""
    assert index_path(make_record(tmp_path / "raw", rank=3)) == tmp_path / "segments_rank3.jsonl"
