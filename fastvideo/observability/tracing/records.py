"""What travels from the training thread to the span worker, and what the worker makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

AttributeValue = str | bool | int | float | tuple[str, ...] | tuple[bool | int | float, ...]
"""What an attribute of a span can be once it is coerced."""

ROOT_SPAN_NAME = "training_step"
"""Name of a step's root span; the ranks' ``training_train_one_step`` spans are its children."""

STEP_ATTRIBUTE = "fastvideo.step"
STEP_KIND_ATTRIBUTE = "fastvideo.step_kind"
DEVICE_DURATION_ATTRIBUTE = "fastvideo.device_duration_ms"
SEGMENT_ATTRIBUTE = "fastvideo.trace_segment"
OMITTED_ATTRIBUTE = "fastvideo.spans_omitted"


class SharedAttributes(dict[str, AttributeValue]):
    """Attributes that many spans have in common: never changed, so encoded once.

    Attributes:
        protobuf: Their encoding, once there is one, or None.
        json: Likewise.
    """

    __slots__ = ("json", "protobuf")

    def __init__(self, attributes: dict[str, AttributeValue]) -> None:
        super().__init__(attributes)
        self.protobuf: bytes | None = None
        self.json: str | None = None


class RegionEntry(Protocol):
    """One entry of a region, as the hot path leaves it behind: plain values, nothing built."""

    @property
    def region(self) -> str:
        """Short name of the region."""

    @property
    def start_ns(self) -> int:
        """Entry, by ``time.perf_counter_ns``."""

    @property
    def end_ns(self) -> int:
        """Exit, by the same clock; 0 while the entry is open."""

    @property
    def parent(self) -> RegionEntry | None:
        """The entry around this one in the same flow of control, or None."""

    @property
    def error(self) -> type[BaseException] | None:
        """Type of the exception that left the region, or None."""

    @property
    def attributes(self) -> dict[str, object] | None:
        """What the call site said about this entry, as it said it."""

    @property
    def drawn_id(self) -> int:
        """Id of the span if somebody needed it before it is built, or 0."""

    span_id: int
    """Id of the span; set when it is built, unless it was drawn before."""

    @property
    def segment(self) -> str | None:
        """File name of the kernel-trace segment that this entry recorded, or None."""

    @property
    def device_ms(self) -> float | None:
        """Time on the device, in milliseconds, once it is known."""

    @property
    def foreign_parent(self) -> SpanContext | None:
        """Context of the user's own span that is nearer than ``parent`` at entry, or None."""


LATE = "late"
"""Why there is no span of a region that was left after its trace had ended."""


@dataclass(slots=True)
class StepSpans:
    """Everything one rank recorded of one sampled training step.

    Attributes:
        step: Number of the optimizer step.
        step_kind: What kind of step it was, such as ``"generator"``, or None.
        trace_id: From :func:`~fastvideo.observability.tracing.ids.step_trace_id`.
        anchor_unix_ns: Wall-clock time at the moment ``anchor_perf_ns``, in Unix nanoseconds.
        anchor_perf_ns: ``time.perf_counter_ns`` of that moment.
        root: The entry of ``training_train_one_step``.
        entries: The finished entries of the step, with or without ``root``, in any order.
        error: Type of the exception that ended the step, or None.
        root_name: Name of the root span, which rank 0 sends.
        omitted: How many entries of the step are not among these, for want of room.
        request_parent: For a request, which one process answers alone: the span that asked for
            it, or 0 for none. None for what all ranks do, whose spans hang on rank 0's root.
    """

    step: int
    step_kind: str | None
    trace_id: int
    anchor_unix_ns: int
    anchor_perf_ns: int
    root: RegionEntry
    entries: list[RegionEntry]
    error: type[BaseException] | None = None
    root_name: str = ROOT_SPAN_NAME
    omitted: int = 0
    request_parent: int | None = None

    def leave_out_late(self) -> int:
        """Takes out entries that began in an earlier trace; returns how many those were.

        An entry that is left while another trace is open is finished there.
        """
        begun = self.anchor_perf_ns
        entries = [entry for entry in self.entries if entry.start_ns >= begun]
        late, self.entries = len(self.entries) - len(entries), entries
        return late


@dataclass(slots=True)
class SpanRecord:
    """One finished span, ready to be encoded.

    Attributes:
        name: Short region name, or the name of an event of the run.
        trace_id: 128 bits, never 0.
        span_id: 64 bits, never 0.
        parent_span_id: 0 for a root span.
        start_unix_ns: Start, in Unix nanoseconds.
        end_unix_ns: End, in Unix nanoseconds; not before the start.
        attributes: Coerced values by name.
        error_type: Name of an exception's type; makes the status ERROR. Never its message.
        links: ``(trace id, span id)`` of spans of other traces.
        dropped_attributes: How many attributes a limit left out.
        remote_parent: Whether the parent is a span of another process.
    """

    name: str
    trace_id: int
    span_id: int
    parent_span_id: int
    start_unix_ns: int
    end_unix_ns: int
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    error_type: str | None = None
    links: tuple[tuple[int, int], ...] = ()
    dropped_attributes: int = 0
    remote_parent: bool = False


def span_count(item: StepSpans | SpanRecord) -> int:
    """Returns how many spans a step, or a span that belongs to none, stands for."""
    return 1 if isinstance(item, SpanRecord) else len(item.entries) + 1
