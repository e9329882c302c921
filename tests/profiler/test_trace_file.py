"""Reading native traces piece by piece."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from fastvideo.profiler.strict_json import loads
from fastvideo.profiler.trace_file import TraceFormatError, TraceReader


def read(data: bytes, chunk_bytes: int = 4 << 20) -> tuple[TraceReader, list[dict[str, Any]]]:
    """Reads a whole trace; checks that text and events of each piece agree."""
    reader = TraceReader(io.BytesIO(data), chunk_bytes=chunk_bytes)
    events: list[dict[str, Any]] = []
    for chunk in reader.chunks():
        assert loads("[" + chunk.text.decode("utf-8") + "]") == chunk.events
        events += chunk.events
    return reader, events


@pytest.mark.parametrize("chunk_bytes", [64, 1000, 4 << 20])
@pytest.mark.parametrize("name", ["backward", "everything", "empty", "steps"])
def test_events_are_those_of_the_file(
    sessions: dict[str, dict[str, Any]], name: str, chunk_bytes: int
) -> None:
    """Read in pieces of any size, real traces have all their events and fields."""
    data = Path(sessions[name]["trace"]).read_bytes()
    expected = json.loads(data)
    reader, events = read(data, chunk_bytes)
    assert events == expected.pop("traceEvents")
    assert reader.header == expected
    assert (reader.repaired_events, reader.dropped_events) == (0, 0)


def test_large_traces_come_in_pieces(builder: Any, tmp_path: Path) -> None:
    """A trace that is larger than a piece is not held as a whole."""
    for i in range(200):
        builder.op("aten::add", i, 0.5)
    data = builder.write(tmp_path / "raw.json").read_bytes()
    reader = TraceReader(io.BytesIO(data), chunk_bytes=2000)
    sizes = [len(chunk.events) for chunk in reader.chunks()]
    assert sum(sizes) == 200
    assert len(sizes) > 5


@pytest.mark.parametrize("chunk_bytes", [64, 4 << 20])
def test_names_that_kineto_leaves_bare(
    sessions: dict[str, dict[str, Any]], chunk_bytes: int
) -> None:
    """A real trace that is no JSON becomes JSON, and only the broken events are touched."""
    data = Path(sessions["quotes"]["trace"]).read_bytes()
    with pytest.raises(ValueError, match=r".+"):
        json.loads(data)
    reader, events = read(data, chunk_bytes)
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert names[:2] == ['say("a", "b")', 'x", "pid": 3']
    assert (reader.repaired_events, reader.dropped_events) == (2, 0)
    assert sum(event["name"] == "aten::relu" for event in events) == 4


def test_bytes_that_are_no_utf8(builder: Any, tmp_path: Path) -> None:
    """Invalid UTF-8, as in thread names that were cut off, becomes replacement characters."""
    builder.op("aten::mul", 0, 1)
    builder.op("caf@", 2, 1)
    data = builder.write(tmp_path / "raw.json").read_bytes().replace(b"caf@", b"caf\xc3")
    reader, events = read(data)
    assert [event["name"] for event in events] == ["aten::mul", "caf\ufffd"]
    assert reader.repaired_events == 1


def test_an_event_beyond_repair_is_left_out(builder: Any, tmp_path: Path) -> None:
    """One hopeless event costs no other event, and is counted."""
    for name in ("aten::mul", "hopeless", "aten::add"):
        builder.op(name, 0, 1)
    data = builder.write(tmp_path / "raw.json").read_bytes()
    broken = data.replace(b'"name": "hopeless"', b'"name": {{{')
    reader, events = read(broken)
    assert [event["name"] for event in events] == ["aten::mul", "aten::add"]
    assert reader.dropped_events == 1


@pytest.mark.parametrize("value", ['a/"b/", /"c', "a\tb", 'x/",    /"pid/": 3', "é\x01", "\\"])
def test_metadata_that_kineto_leaves_bare(builder: Any, tmp_path: Path, value: str) -> None:
    """Metadata with quotes or control characters keeps its value."""
    builder.header["mine"] = "@"
    data = builder.write(tmp_path / "raw.json").read_text("utf-8").replace('"@"', f'"{value}"')
    reader, _ = read(data.encode())
    assert reader.header["mine"] == value
    assert reader.header["baseTimeNanoseconds"] == 1790857026000000000
    assert reader.repaired_header


def test_a_header_beyond_repair_keeps_what_readers_need(builder: Any, tmp_path: Path) -> None:
    """The base of the clock survives a header that makes no sense."""
    builder.header["mine"] = "@"
    data = builder.write(tmp_path / "raw.json").read_bytes().replace(b'"@"', b"{[}")
    reader, _ = read(data)
    assert reader.header["baseTimeNanoseconds"] == 1790857026000000000
    assert "mine" not in reader.header


def test_a_trace_that_is_cut_off_anywhere_is_refused(builder: Any, tmp_path: Path) -> None:
    """However much of the file a full disk has swallowed, it is not taken for a whole one."""
    builder.op("aten::mul", 0, 1)
    builder.op("aten::add", 2, 1)
    data = builder.write(tmp_path / "raw.json").read_bytes()
    for end in range(len(data.rstrip()) - 1):
        with pytest.raises(TraceFormatError):
            read(data[:end])


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"not a trace", b"\x00" * 100])
def test_what_is_no_trace_is_refused(data: bytes) -> None:
    """A file without a list of events is named as such, with its size."""
    with pytest.raises(TraceFormatError, match=rf"no list of events \({len(data)} bytes\)"):
        read(data)


def test_another_layout_is_read_too(cuda_step: Any) -> None:
    """JSON without kineto's line breaks is read all at once, fields behind the events included."""
    document = {"schemaVersion": 1, "traceEvents": cuda_step.events, "late": [1]}
    reader, events = read(json.dumps(document).encode())
    assert events == cuda_step.events
    assert reader.header == {"schemaVersion": 1, "late": [1]}
