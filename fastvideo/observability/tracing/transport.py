"""The seam between the sender, which decides when, and the transports, which know how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

UNREACHABLE = "unreachable"
TIMEOUT = "timeout"
UNAVAILABLE = "unavailable"
REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request.

    Attributes:
        reason: Empty when it was taken; else why not, one of this module's few words.
        retryable: Whether the same request may be taken later.
        retry_after_s: How long the collector asks to be left alone, in seconds, or None.
        detail: For the log: a status or the type of an error; never text of the collector's.
        rejected_spans: How many spans of a taken request were refused all the same.
    """

    reason: str = ""
    retryable: bool = False
    retry_after_s: float | None = None
    detail: str = ""
    rejected_spans: int = 0


class Transport(Protocol):
    """Sends requests, one at a time, from one thread."""

    @property
    def target(self) -> str:
        """Where to, for people; holds no secret."""

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        """Sends one request and waits for the answer.

        Args:
            body: The request.
            timeout_s: Longest time for all of it, in seconds.
        """

    def abort(self) -> None:
        """Makes a ``send`` that waits return soon; called from another thread."""

    def close(self) -> None:
        """Gives back what is open; a later ``send`` opens it again."""

    def leave_parent(self) -> None:
        """Closes this process's copy of what the parent of a forked child has open."""


def rejected_spans(answer: bytes) -> int:
    """Returns how many spans an ``ExportTraceServiceResponse`` says were refused.

    Args:
        answer: The message, as protobuf; what cannot be read counts as nothing refused.
    """
    if not answer:
        return 0
    # Rarely needed.
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
        ExportTraceServiceResponse,
    )

    try:
        parsed = ExportTraceServiceResponse.FromString(answer)
    except DecodeError:
        return 0
    return max(0, int(parsed.partial_success.rejected_spans))
