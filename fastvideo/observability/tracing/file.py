"""Spans as lines of OTLP-JSON: the embedded default, which a Collector can ingest later."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing import otlp_json
from fastvideo.profiler.atomic_file import append_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fastvideo.observability.tracing.records import AttributeValue, SpanRecord
    from fastvideo.observability.tracing.sinks import Refusal

_LINE_SPANS: Final = 256
"""Spans in one line: the Collector's file receiver reads lines of up to a megabyte."""


class JsonEncoder:
    """Makes requests in OTLP's JSON form for one process.

    Args:
        resource: Attributes of the resource.
        scope: Name and version of what makes the spans.
    """

    def __init__(self, resource: Mapping[str, AttributeValue], scope: tuple[str, str]) -> None:
        self._resource = otlp_json.encode_resource(resource)
        self._scope = otlp_json.encode_scope(*scope)

    def encode(self, records: Sequence[SpanRecord]) -> bytes:
        """Returns one request, without a line break."""
        spans = [otlp_json.encode_span(record) for record in records]
        line = otlp_json.encode_request(self._resource, self._scope, spans)
        return line.encode("utf-8", "replace")


class FileSink:
    """Appends to ``spans_rank<N>.jsonl`` in a directory.

    The file is opened for each batch, so no descriptor is inherited by children, a directory that
    comes back is used again, and a line that a killed writer left unfinished is closed first. A
    full file becomes ``spans_rank<N>.1.jsonl``, in place of the one before it.

    Args:
        directory: Created if missing.
        rank: Of this process.
        max_bytes: Size at which a file is full; two are kept.
        encoder: Makes the lines.
    """

    name = "file"

    def __init__(self, directory: Path, rank: int, max_bytes: int, encoder: JsonEncoder) -> None:
        self._path = directory.absolute() / span_file_name(rank)
        self._max_bytes = max_bytes
        self._encoder = encoder

    @property
    def target(self) -> str:
        """The file."""
        return str(self._path)

    def write(self, records: Sequence[SpanRecord]) -> Sequence[Refusal]:
        """Appends the spans, some hundred to a line.

        Returns:
            Nothing: all are taken.

        Raises:
            OSError: The file cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(records), _LINE_SPANS):
            line = self._encoder.encode(records[start : start + _LINE_SPANS])
            self._rotate(len(line) + 1)
            append_line(self._path, line)
        return ()

    def flush(self, timeout_s: float) -> bool:
        """Has nothing to do: every batch is handed to the kernel."""
        del timeout_s
        return True

    def _rotate(self, more: int) -> None:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size and size + more > self._max_bytes:
            self._path.replace(self._path.with_suffix(".1.jsonl"))


class ConsoleSink:
    """Prints spans to standard output, as lines of OTLP-JSON.

    Args:
        encoder: Makes the lines.
    """

    name = "console"
    target = "standard output"

    def __init__(self, encoder: JsonEncoder) -> None:
        self._encoder = encoder

    def write(self, records: Sequence[SpanRecord]) -> Sequence[Refusal]:
        """Prints the spans as one line."""
        sys.stdout.write(self._encoder.encode(records).decode() + "\n")
        sys.stdout.flush()
        return ()

    def flush(self, timeout_s: float) -> bool:
        """Has nothing to do."""
        del timeout_s
        return True


def span_file_name(rank: int) -> str:
    """Returns the name of the file that a rank's spans are in."""
    return f"spans_rank{rank}.jsonl"
