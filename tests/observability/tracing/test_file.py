"""Spans in files and on standard output."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from fastvideo.observability.tracing.file import ConsoleSink, FileSink, JsonEncoder, span_file_name
from fastvideo.observability.tracing.records import SpanRecord

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

ENCODER = JsonEncoder({"service.name": "fastvideo"}, ("scope", "1"))
LARGE = 1 << 30


def _records(count: int, first: int = 1) -> list[SpanRecord]:
    return [SpanRecord("training_forward", 1, first + i, 0, 1, 2) for i in range(count)]


def _span_ids(path: Path, otlp_receiver: ModuleType) -> list[int]:
    return [
        int.from_bytes(span.span_id)
        for line in path.read_bytes().splitlines()
        for resource in otlp_receiver.read_json(line).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_every_line_is_a_request(tmp_path: Path, otlp_receiver: ModuleType) -> None:
    """Each line is an OTLP request of its own, and long batches are several lines."""
    sink = FileSink(tmp_path / "made" / "on demand", 3, LARGE, ENCODER)
    sink.write(_records(2))
    sink.write(_records(600, first=3))
    path = tmp_path / "made" / "on demand" / "spans_rank3.jsonl"
    assert sink.target == str(path)
    assert len(path.read_bytes().splitlines()) == 4
    assert _span_ids(path, otlp_receiver) == list(range(1, 603))


def test_a_line_that_a_killed_writer_left_is_closed(
    tmp_path: Path, otlp_receiver: ModuleType
) -> None:
    """A restarted run appends behind an unfinished line, and loses nothing of its own."""
    path = tmp_path / span_file_name(0)
    path.write_bytes(b'{"resourceSpans":[{"res')
    FileSink(tmp_path, 0, LARGE, ENCODER).write(_records(1))
    broken, whole = path.read_bytes().splitlines()
    assert broken == b'{"resourceSpans":[{"res'
    assert len(otlp_receiver.read_json(whole).resource_spans) == 1


def test_a_full_file_is_rotated_once(tmp_path: Path, otlp_receiver: ModuleType) -> None:
    """Disk use is bounded: the full file takes the place of the one before it."""
    sink = FileSink(tmp_path, 0, 4000, ENCODER)
    for number in range(100):
        sink.write(_records(1, first=number + 1))
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["spans_rank0.1.jsonl", "spans_rank0.jsonl"]
    assert all(0 < file.stat().st_size <= 4000 for file in files)
    kept = [*_span_ids(files[0], otlp_receiver), *_span_ids(files[1], otlp_receiver)]
    assert kept == list(range(101 - len(kept), 101))


def test_a_directory_that_vanished_is_made_again(tmp_path: Path) -> None:
    """A cleaned-up directory does not end the writing."""
    sink = FileSink(tmp_path / "spans", 0, LARGE, ENCODER)
    sink.write(_records(1))
    (tmp_path / "spans" / "spans_rank0.jsonl").unlink()
    (tmp_path / "spans").rmdir()
    sink.write(_records(1))
    assert (tmp_path / "spans" / "spans_rank0.jsonl").exists()


def test_a_full_disk_raises_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that does not fit is taken back, and the caller learns of it."""
    sink = FileSink(tmp_path, 0, LARGE, ENCODER)
    sink.write(_records(1))
    path = tmp_path / "spans_rank0.jsonl"
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    with pytest.raises(OSError, match="No space left") as caught:
        sink.write(_records(1))
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == before


def test_console(capsys: pytest.CaptureFixture[str], otlp_receiver: ModuleType) -> None:
    """The console gets one line of OTLP-JSON per batch."""
    sink = ConsoleSink(ENCODER)
    sink.write(_records(2))
    assert sink.flush(0)
    (line,) = capsys.readouterr().out.splitlines()
    request = otlp_receiver.read_json(line.encode())
    assert len(request.resource_spans[0].scope_spans[0].spans) == 2
