"""Reads the native trace of torch's profiler piece by piece and hands out strict JSON only.

The file is read once. Pieces of a few megabytes are parsed and passed on as they are, so a trace of
any size needs little memory; a piece that a strict parser refuses is repaired event by event, and
an event that cannot be repaired is left out and counted.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from .json_repair import repair
from .strict_json import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES: Final = 4 << 20
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN: Final = b"\n  },\n  {\n"
_END: Final = b"\n  ]"
_SALVAGE: Final = re.compile(
    r'"(schemaVersion|baseTimeNanoseconds|displayTimeUnit|host_name|trace_id)"\s*:\s*'
    r'("[^"\\\n]*"|\d+)\s*,'
)


class TraceFormatError(ValueError):
    """A native trace that cannot be used: empty, cut off, or no trace at all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Some of the events of a trace.

    Attributes:
        text: The events as UTF-8 JSON, separated by commas.
        events: The same events, parsed.
    """

    text: bytes
    events: list[dict[str, Any]]


class TraceReader:
    """One pass over a native trace.

    Attributes:
        header: The fields of the document that are not events. Those behind the events are added
            when :meth:`chunks` is through.
        repaired_events: Events that were no strict JSON and now are.
        dropped_events: Events that were no JSON and could not be made so.
        repaired_header: Whether the header was no strict JSON.
    """

    def __init__(self, file: BinaryIO, *, chunk_bytes: int = _CHUNK_BYTES) -> None:
        """Reads the header.

        Args:
            file: The native trace, open for reading at its start.
            chunk_bytes: How much is parsed at once.

        Raises:
            TraceFormatError: There is no list of events.
        """
        self._file = file
        self._chunk_bytes = chunk_bytes
        self.repaired_events = 0
        self.dropped_events = 0
        self.repaired_header = False
        start = file.read(chunk_bytes)
        found = _EVENTS.search(start)
        while found is None and (more := file.read(chunk_bytes)):
            start += more
            found = _EVENTS.search(start)
        if found is None:
            message = f"the native trace holds no list of events ({len(start)} bytes)"
            raise TraceFormatError(message)
        self._rest = start[found.end() :]
        self.header = self._parse_header(start[: found.start()])

    def chunks(self) -> Iterator[Chunk]:
        """Yields the events, some thousands at a time.

        Raises:
            TraceFormatError: The file ends before its events do.
        """
        rest = self._rest
        while data := self._file.read(self._chunk_bytes):
            rest += data
            cut = rest.rfind(_BETWEEN)
            if cut != -1:
                yield self._parse_chunk(rest[: cut + len(b"\n  }")])
                rest = rest[cut + len(b"\n  },") :]
        yield from self._last_chunk(rest)

    def _last_chunk(self, rest: bytes) -> Iterator[Chunk]:
        end = rest.rfind(_END)
        if end == -1:
            yield from self._foreign_layout(rest)
            return
        if rest[:end].strip():
            yield self._parse_chunk(rest[:end])
        self._parse_tail(rest[end + len(_END) :])

    def _foreign_layout(self, rest: bytes) -> Iterator[Chunk]:
        """Reads events that are not laid out as torch lays them out, all at once."""
        text = '{"traceEvents": [' + self._decode(rest)
        try:
            document = _parse_or_repair(text)
        except ValueError as error:
            message = f"the native trace is cut off after its last event ({error})"
            raise TraceFormatError(message) from error
        events = document.pop("traceEvents")
        self.header.update(document)
        if events:
            yield Chunk(b",\n".join(dumps(event) for event in events), events)

    def _parse_chunk(self, data: bytes) -> Chunk:
        try:
            return Chunk(data, loads("[" + data.decode("utf-8") + "]"))
        except ValueError:
            return self._repair_chunk(data)

    def _repair_chunk(self, data: bytes) -> Chunk:
        """Parses event by event, so that one bad event costs no good one."""
        texts: list[bytes] = []
        events: list[dict[str, Any]] = []
        pieces = data.split(_BETWEEN)
        for number, piece in enumerate(pieces):
            opening = b"  {\n" if number else b""
            closing = b"\n  }" if number < len(pieces) - 1 else b""
            whole = opening + piece + closing
            try:
                event = loads(whole.decode("utf-8"))
            except ValueError:
                event = self._repair_event(whole)
                whole = b"" if event is None else dumps(event)
            if event is not None:
                texts.append(whole)
                events.append(event)
        return Chunk(b",\n".join(texts), events)

    def _repair_event(self, data: bytes) -> dict[str, Any] | None:
        try:
            event = loads(repair(self._decode(data)))
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.dropped_events += 1
            return None
        self.repaired_events += 1
        return event

    def _parse_header(self, data: bytes) -> dict[str, Any]:
        text = self._decode(data).rstrip().rstrip(",")
        try:
            header = loads(text + "\n}")
        except ValueError:
            self.repaired_header = True
            header = _repaired_header(text)
        return header if isinstance(header, dict) else {}

    def _parse_tail(self, data: bytes) -> None:
        """Reads the fields behind the events; the file is cut off where its last brace is missing.

        Raises:
            TraceFormatError: It is.
        """
        text = self._decode(data).strip()
        if not text.endswith("}"):
            message = "the native trace is cut off behind its events"
            raise TraceFormatError(message)
        fields = text.lstrip(",").strip()
        try:
            self.header.update(_parse_or_repair("{\n" + fields))
        except ValueError:
            self.repaired_header = True

    @staticmethod
    def _decode(data: bytes) -> str:
        return data.decode("utf-8", "replace")


def _parse_or_repair(text: str) -> dict[str, Any]:
    """Parses one object, repairing it if need be.

    Raises:
        ValueError: It cannot be repaired, or is no object.
    """
    try:
        value = loads(text)
    except ValueError:
        value = loads(repair(text, header=True))
    if not isinstance(value, dict):
        message = f"expected a JSON object, found {type(value).__name__}"
        raise ValueError(message)  # noqa: TRY004 - callers handle what is no JSON object alike
    return value


def _repaired_header(text: str) -> dict[str, Any]:
    """Returns what can be made out of a header that is no JSON."""
    try:
        return _parse_or_repair(text + "\n}")
    except ValueError:
        return {key: loads(value) for key, value in _SALVAGE.findall(text)}
