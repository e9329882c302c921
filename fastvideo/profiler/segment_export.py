"""Exports one segment: from the native trace to the four files that people and tools read."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from . import atomic_file
from .strict_json import dumps
from .summary import Summary, summarise, totals_json
from .summary_table import render
from .trace_checks import TraceChecks, check_trace, warnings_of
from .trace_events import TraceEvents
from .trace_file import TraceFormatError, TraceReader
from .trace_words import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .segment_record import SegmentRecord

OK: Final = "ok"
NO_KERNELS: Final = "no_kernels"
SUMMARY_FAILED: Final = "summary_failed"
FAILED: Final = "failed"

_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclasses.dataclass(slots=True)
class _Trace:
    """What is known once the trace file is written."""

    events: TraceEvents
    reader: TraceReader
    raw_bytes: int
    bytes: int


def export_segment(record: SegmentRecord, *, again: bool = False) -> dict[str, Any]:
    """Writes the files of one segment and its line in the segment index. Never raises.

    A file that cannot be written whole is not there. Nothing hidden stays behind: the native trace
    is removed once the trace is written, or if nothing can be read from it, and else it is kept
    under a name that people see.

    Args:
        record: The segment.
        again: Whether an exporter that has gone away may have exported it already, in part or
            in full.

    Returns:
        The line of the index. Its ``status`` is ``"ok"``; ``"no_kernels"`` for a CUDA segment
        without a kernel; ``"summary_failed"`` if there is a trace but no summary; or ``"failed"``.
        In the last two cases ``error`` says why, in the last ``raw_file`` where the native trace
        is.
    """
    began = time.perf_counter()
    if again:
        _remove_leftovers(record)
        if not record.raw_path.exists() and (known := _line_in_index(record)):
            return known
        _take_up(record)
    line = _blank_line(record)
    try:
        _fill(line, record, replace=again)
    except TraceFormatError as error:
        with contextlib.suppress(OSError):
            record.raw_path.unlink(missing_ok=True)
        _fail(line, record, _reason(error))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one segment is its own
        _fail(line, record, _reason(error))
    line["export_s"] = round(time.perf_counter() - began, 6)
    _write_line(line, record)
    if line["raw_file"] is None:
        with contextlib.suppress(OSError):
            record.raw_path.unlink(missing_ok=True)
    return line


def refuse_segment(record: SegmentRecord, reason: str) -> dict[str, Any]:
    """Writes the line of a segment that is not exported; its native trace is kept. Never raises."""
    line = _blank_line(record)
    _fail(line, record, reason)
    _write_line(line, record)
    return line


def _fail(line: dict[str, Any], record: SegmentRecord, reason: str) -> None:
    line["status"] = FAILED
    line["error"] = reason
    kept = keep_native(record)
    line["raw_file"] = None if kept is None else str(kept)


def keep_native(record: SegmentRecord) -> Path | None:
    """Gives the native trace of a segment that is not exported a name that people see.

    Args:
        record: The segment.

    Returns:
        Where it is now: ``raw_<stem>.json``, or its temporary path where it cannot be renamed. None
        if there is nothing.
    """
    kept = record.raw_path.with_name(f"raw_{record.stem}.json")
    try:
        atomic_file.publish(record.raw_path, kept)
    except OSError:
        return record.raw_path if record.raw_path.exists() else None
    return kept


def _write_line(line: dict[str, Any], record: SegmentRecord) -> None:
    try:
        _with_room(line, record, lambda: atomic_file.append_line(index_path(record), dumps(line)))
    except Exception as error:  # noqa: BLE001 - the files are written, whatever the index says
        line["warnings"].append(f"index: the segment index cannot be written ({_reason(error)})")


def index_path(record: SegmentRecord) -> Path:
    """Returns the file that holds one line per finished segment of the rank."""
    return record.directory / f"segments_rank{record.rank}.jsonl"


def _blank_line(record: SegmentRecord) -> dict[str, Any]:
    return {
        "index": record.index,
        "rank": record.rank,
        "world_size": record.world_size,
        "region": record.region,
        "step": record.step,
        "start_unix_ns": record.start_unix_ns,
        "wall_s": record.wall_ns / 1e9,
        "stall_s": record.stall_ns / 1e9,
        "device": record.device,
        "run_id": record.metadata.get("run_id"),
        "trace_id": record.metadata.get("trace_id"),
        "status": OK,
        "error": None,
        "files": {},
        "raw_file": None,
        "bytes": 0,
        "raw_bytes": 0,
        "event_count": 0,
        "kernel_count": 0,
        "warnings": [],
        "checks": {},
        "export_s": 0.0,
    }


def _fill(line: dict[str, Any], record: SegmentRecord, *, replace: bool) -> None:
    """Writes the files; ``line`` says at every moment what is written."""
    final = record.directory / f"trace_{record.stem}.pt.trace.json.gz"
    trace = _write_trace(record, final, replace=replace)
    line["files"]["trace"] = final.name
    line["bytes"], line["raw_bytes"] = trace.bytes, trace.raw_bytes
    line["event_count"] = trace.events.event_count
    try:
        checks = check_trace(trace.events)
        line["kernel_count"] = checks.kernels
        line["checks"] = dataclasses.asdict(checks)
        line["warnings"] = _warnings(record, trace, checks)
        if record.device == "cuda" and checks.kernels == 0:
            line["status"] = NO_KERNELS
        events = counted(trace.events.event_count, "event")
        about = f"{final.name} ({trace.bytes / 1e6:.2f} MB, {events})"
        summary = summarise(trace.events)
        text = render(record, summary, checks, line["warnings"], about)
        _with_room(
            line, record, lambda: _write_summary(line, record, summary, text, replace=replace)
        )
    except Exception as error:  # noqa: BLE001 - the trace is written, and stays
        line["status"] = SUMMARY_FAILED
        line["error"] = _reason(error)


def _warnings(record: SegmentRecord, trace: _Trace, checks: TraceChecks) -> list[str]:
    reader = trace.reader
    found = warnings_of(
        checks, device=record.device, trace_bytes=trace.raw_bytes, options=record.options
    )
    if reader.dropped_events:
        found.append(
            f"dropped_events: {counted(reader.dropped_events, 'event')} "
            f"{'was' if reader.dropped_events == 1 else 'were'} no JSON and could not be repaired"
        )
    if reader.repaired_events or reader.repaired_header:
        parts = [counted(reader.repaired_events, "event")] if reader.repaired_events else []
        parts += ["the header"] if reader.repaired_header else []
        were = "was" if reader.repaired_events + reader.repaired_header == 1 else "were"
        found.append(
            f"repaired_events: {' and '.join(parts)} {were} no JSON (quotes or control characters "
            f"in names) and {were} repaired"
        )
    return found


def _write_summary(
    line: dict[str, Any], record: SegmentRecord, summary: Summary, text: str, *, replace: bool
) -> None:
    for key, suffix, data in (
        ("summary_txt", "txt", text.encode("utf-8", "replace")),
        ("summary_json", "json", totals_json(summary.totals)),
    ):
        final = record.directory / f"summary_{record.stem}.{suffix}"
        atomic_file.write_whole(final, data, replace=replace)
        line["files"][key] = final.name


def _with_room(line: dict[str, Any], record: SegmentRecord, write: Callable[[], None]) -> None:
    """Writes; on a full disk once more without the native trace, if that is exported by now.

    Raises:
        OSError: It cannot be written either way.
    """
    try:
        write()
    except OSError as error:
        if error.errno not in _NO_ROOM or "trace" not in line["files"]:
            raise
        record.raw_path.unlink(missing_ok=True)
        write()


def _write_trace(record: SegmentRecord, final: Path, *, replace: bool) -> _Trace:
    """Compresses the native trace with our metadata in front of its events."""
    events = TraceEvents(
        with_shapes=bool(record.options.get("record_shapes")),
        with_flops=bool(record.options.get("with_flops")),
    )
    with record.raw_path.open("rb") as raw, atomic_file.temporary(final) as path:
        reader = TraceReader(raw)
        with contextlib.closing(atomic_file.GzipFile(path)) as out:
            out.write(_header(record, reader.header, final.name))
            between = b""
            known = set(reader.header)
            for chunk in reader.chunks():
                events.add(chunk.events)
                out.write(between + chunk.text)
                between = b",\n"
            late = {k: v for k, v in reader.header.items() if k not in known | _OURS}
            out.write(b"\n]" + b"".join(b",\n" + _field(*item) for item in late.items()) + b"}\n")
            out.finish()
        size = path.stat().st_size
        atomic_file.publish(path, final, replace=replace)
    return _Trace(events, reader, out.raw_bytes, size)


_OURS: Final = frozenset({"distributedInfo", "fastvideo", "traceName", "traceEvents"})


def _header(record: SegmentRecord, native: dict[str, Any], name: str) -> bytes:
    """Returns the beginning of the trace up to its first event, one field on each line."""
    distributed = native.get("distributedInfo")
    if not isinstance(distributed, dict):
        distributed = {}
    fields = {
        **{key: value for key, value in native.items() if key not in _OURS},
        "distributedInfo": {
            **distributed,
            "rank": record.rank,
            "world_size": record.world_size,
        },
        "fastvideo": _metadata(record),
        "traceName": name,
    }
    return b"{" + b",\n".join(_field(*item) for item in fields.items()) + b',\n"traceEvents": [\n'


def _field(key: str, value: object) -> bytes:
    return dumps(key) + b": " + dumps(value)


def _metadata(record: SegmentRecord) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        **record.metadata,
        "rank": record.rank,
        "world_size": record.world_size,
        "region": record.region,
        "segment": record.index,
        "step": record.step,
        "start_unix_ns": record.start_unix_ns,
        "wall_ns": record.wall_ns,
        "stall_ns": record.stall_ns,
        "thread": record.thread,
        "device": record.device,
        "options": record.options,
        "attributes": record.attributes,
    }


def _remove_leftovers(record: SegmentRecord) -> None:
    """Removes the temporary files of an exporter that was killed."""
    for path in record.directory.glob(f".*_{record.stem}.*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()


def _take_up(record: SegmentRecord) -> None:
    """Takes back a native trace that an exporter was about to give up when it was killed."""
    kept = record.raw_path.with_name(f"raw_{record.stem}.json")
    if kept.exists() and not record.raw_path.exists():
        with contextlib.suppress(OSError):
            kept.rename(record.raw_path)


def _line_in_index(record: SegmentRecord) -> dict[str, Any] | None:
    """Returns the line of a segment that was exported by someone who could not say so."""
    trace = f"trace_{record.stem}.pt.trace.json.gz"
    kept = str(record.raw_path.with_name(f"raw_{record.stem}.json"))
    with contextlib.suppress(OSError, ValueError):
        for text in reversed(index_path(record).read_text("utf-8").splitlines()):
            line: dict[str, Any] = json.loads(text)
            if line.get("files", {}).get("trace") == trace or line.get("raw_file") == kept:
                return line
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    if isinstance(error, TraceFormatError):
        return str(error)
    return f"{type(error).__name__}: {error}"
