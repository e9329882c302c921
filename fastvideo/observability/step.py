"""Roots of traces: one training step, or one event between steps, from its entry to its exit.

Whether a step is in the sample follows from its number and from what the ranks agreed on at start,
so all of them decide alike and nothing is exchanged.
"""

from __future__ import annotations

import operator
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from fastvideo.logger import init_logger
from fastvideo.observability import entries as entries_module
from fastvideo.observability.current import now
from fastvideo.observability.entries import RegionTimer, SampledEntry
from fastvideo.observability.tracing.ids import (
    event_trace_id,
    is_sampled,
    step_root_span_id,
    step_trace_id,
)
from fastvideo.observability.tracing.records import LATE, ROOT_SPAN_NAME, StepSpans

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from fastvideo.observability.clock import TelemetryClock
    from fastvideo.observability.identity import RunIdentity, TraceParent
    from fastvideo.observability.tracing.records import RegionEntry
    from fastvideo.profiler.region import Site
    from fastvideo.profiler.sinks import Attributes, ClockTimer

logger = init_logger(__name__)

_STEPS: Final = 1 << 63
"""What OTLP can carry as a whole number."""

MAX_ENTRIES: Final = 10_000
"""How many entries of one step leave spans behind: some megabytes, and a trace one can look at."""

DROPPED: Final = "dropped"
STEP_LIMIT: Final = "step_limit"

STEP_REGION: Final = "training_train_one_step"
REQUEST_REGION: Final = "inference_request"
EVENT_REGIONS: Final = ("training_validation", "training_save_checkpoint", REQUEST_REGION)
CHILD_REGIONS: Final = (
    "training_dataloader",
    "training_forward",
    "training_backward",
    "training_optimizer",
    "training_callbacks",
    "nft_prompts",
    "nft_rollout",
    "nft_reward",
    "nft_advantages",
    "nft_update",
    "nft_old_policy",
)
"""The regions that a step is made of; what they leave is the unattributed rest.

Those from ``nft_prompts`` on are what DiffusionNFT, which manages its step itself, has in the place
of the four before ``training_callbacks``.
"""


@dataclass(frozen=True, slots=True)
class FinishedRoot:
    """What is known of a step or an event when it ends.

    Attributes:
        region: Short name of its region.
        step: Number of the step, or None.
        step_kind: What kind of step it was, or None.
        duration_ns: Its duration.
        children_ns: The part that child regions cover; 0 for events.
        sampled_trace_id: Its trace as hexadecimal text, or None when it is not in the sample.
        error: Type of the exception that left it, or None.
    """

    region: str
    step: int | None
    step_kind: str | None
    duration_ns: int
    children_ns: int
    sampled_trace_id: str | None
    error: type[BaseException] | None


class RootEntry:
    """One entry of a region that begins a trace."""

    __slots__ = ("_opened", "_segment", "_traces", "attributes", "site")

    site: Site
    attributes: Attributes

    def __init__(self, traces: RootTraces) -> None:
        self._traces = traces
        self._segment: str | None = None
        self._opened: _Open | ClockTimer | None = None

    def note_segment(self, file_name: str) -> None:
        """Remembers which kernel trace this entry records."""
        self._segment = file_name

    def __enter__(self) -> None:
        self._opened = self._traces.begin(self.site, self.attributes, self._segment)

    def __exit__(
        self,
        error: type[BaseException] | None,
        raised: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened, self._opened = self._opened, None
        if isinstance(opened, _Open):
            self._traces.end(opened, error)
        elif opened is not None:
            opened.__exit__(error, raised, traceback)


class _Open:
    """The step or event that is open."""

    __slots__ = (
        "anchor_perf_ns",
        "anchor_unix_ns",
        "children_before_ns",
        "entries",
        "kind",
        "parent",
        "region",
        "step",
        "timer",
        "token",
        "trace_id",
    )

    timer: RegionTimer | SampledEntry
    entries: list[SampledEntry] | None

    def __init__(self, region: str, step: int | None, kind: str | None, trace_id: int) -> None:
        self.region = region
        self.step = step
        self.kind = kind
        self.trace_id = trace_id
        self.entries = None
        self.parent: TraceParent | None = None
        self.token: object = None
        self.children_before_ns = 0
        self.anchor_unix_ns = time.time_ns()
        self.anchor_perf_ns = time.perf_counter_ns()


class RootTraces:
    """Begins and ends the traces of this process; one is open at a time.

    A root region that is entered while another one is open, on whatever thread, is a region like
    any other.

    Args:
        clock: The clock of all regions.
        identity: What the ranks agreed on.
        finished: Is told about every step and event that ends.
        submit: Takes the spans of a sampled trace; None: there are no spans.
        count: Is told of entries that have no span, as ``("dropped", reason, number)``: ``"late"``
            those that were left after their trace had ended, ``"step_limit"`` those for which
            there was no room.
        max_entries: How many entries of one step or event leave spans behind. The others are
            timed, so that a loop in the wrong place takes no memory.

    Attributes:
        overhead_ns: What beginning and ending traces cost the threads that step.
    """

    def __init__(
        self,
        clock: TelemetryClock,
        identity: RunIdentity,
        *,
        finished: Callable[[FinishedRoot], None],
        submit: Callable[[StepSpans], None] | None,
        count: Callable[[str, str, int], None] = lambda *_: None,
        max_entries: int = MAX_ENTRIES,
    ) -> None:
        self.overhead_ns = 0
        self._count = count
        self._max_entries = max_entries
        self._ended: tuple[list[SampledEntry], int] = ([], 0)
        self._clock = clock
        self._identity = identity
        self._finished = finished
        self._submit = submit
        self._open: _Open | None = None
        self._events: Counter[str] = Counter()
        self._contexts: Any = None
        self._otel_current: Callable[[], object] | None = None
        for region in (STEP_REGION, *EVENT_REGIONS):
            clock.set_root(region, self.new_entry)

    def new_entry(self) -> RootEntry:
        """Returns the context manager of one entry."""
        return RootEntry(self)

    def prepare(self) -> None:
        """Imports what the first step would otherwise wait for."""
        if self._submit is not None and self._contexts is None:
            from fastvideo.observability.otel_context import (  # noqa: PLC0415 - only with spans
                OtelContexts,
                current_reader,
            )

            self._contexts = OtelContexts()
            self._otel_current = current_reader()

    def begin_spans(self, submit: Callable[[StepSpans], None]) -> None:
        """Begins to leave spans behind, from the next step on."""
        self._submit = submit
        self.prepare()

    def collect_late(self) -> None:
        """Counts entries that were left after the trace they began in had ended."""
        entries, counted = self._ended
        late = entries[counted:]
        if late:
            self._ended = (entries, counted + len(late))
            self._clock.add_sampled(late)
            self._count(DROPPED, LATE, len(late))

    def disable(self) -> None:
        """Ends all spans of this process: what a forked child does."""
        self._submit = None
        self._open = None
        self._finished = _ignore
        now.root = None

    def sampled_trace_id(self, step: int | None) -> str | None:
        """Returns the trace of a step as hexadecimal text, or None when it is not sampled."""
        if step is None or self._submit is None:
            return None
        trace_id = step_trace_id(self._identity.run_id, self._identity.attempt, step)
        return f"{trace_id:032x}" if self._is_sampled(trace_id) else None

    def begin(self, site: Site, attributes: Attributes, segment: str | None) -> _Open | ClockTimer:
        """Begins a step or an event; returns what its exit takes."""
        before = time.perf_counter_ns()
        if self._open is not None:
            timer = self._clock.take(site)
            timer.site = site
            timer.attributes = attributes
            timer.__enter__()
            return timer
        opened = self._open = self._new_root(site.short_name, attributes)
        self.collect_late()
        sampled = self._submit is not None and (
            self._is_sampled(opened.trace_id) if opened.parent is None else opened.parent[2]
        )
        if self._contexts is not None:
            opened.token = self._contexts.begin(
                opened.trace_id, sampled=sampled, span_id=step_root_span_id(opened.trace_id)
            )
        if opened.region == STEP_REGION:
            opened.children_before_ns = self._clock.total_ns(CHILD_REGIONS)
        if sampled:
            opened.timer = self._begin_sampled(opened, site, attributes, segment)
        else:
            opened.timer = self._clock.take_timer(site)
        self.overhead_ns += time.perf_counter_ns() - before
        opened.timer.__enter__()
        return opened

    def end(self, opened: _Open, error: type[BaseException] | None) -> None:
        """Ends a step or an event, and hands over what it left behind."""
        timer = opened.timer
        total_before = timer.total_ns if isinstance(timer, RegionTimer) else 0
        timer.__exit__(error, None, None)
        before = time.perf_counter_ns()
        if self._open is not opened:  # a forked child leaves what its parent entered
            return
        self._open = None
        if isinstance(timer, SampledEntry):
            duration_ns = timer.end_ns - timer.start_ns
            self._end_sampled(opened, timer, error)
        else:
            duration_ns = timer.total_ns - total_before
        if self._contexts is not None:
            self._contexts.end(opened.token)
        self._finished(self._describe(opened, duration_ns, error))
        self.overhead_ns += time.perf_counter_ns() - before

    def _describe(
        self, opened: _Open, duration_ns: int, error: type[BaseException] | None
    ) -> FinishedRoot:
        children_ns = 0
        if opened.region == STEP_REGION:
            children_ns = self._clock.total_ns(CHILD_REGIONS) - opened.children_before_ns
        sampled = opened.entries is not None
        return FinishedRoot(
            region=opened.region,
            step=opened.step,
            step_kind=opened.kind,
            duration_ns=duration_ns,
            children_ns=children_ns,
            sampled_trace_id=f"{opened.trace_id:032x}" if sampled else None,
            error=error,
        )

    def _is_sampled(self, trace_id: int) -> bool:
        return is_sampled(trace_id, self._identity.sampler_ratio)

    def _new_root(self, region: str, attributes: Attributes) -> _Open:
        run_id, attempt = self._identity.run_id, self._identity.attempt
        number = _whole(attributes.get("step"))
        kind = attributes.get("step_kind")
        if region == STEP_REGION:
            if number is None:
                number = (now.step or 0) + 1
            now.step = number
            trace_id = step_trace_id(run_id, attempt, number)
        else:
            number = now.step if number is None else number
            self._events[region] += 1  # the same on all ranks, as the steps are
            trace_id = event_trace_id(run_id, attempt, region, self._events[region])
        parent = self._caller() if region == REQUEST_REGION else None
        if parent is not None:
            trace_id = parent[0]
        now.trace_id = trace_id
        opened = _Open(region, number, kind if isinstance(kind, str) else None, trace_id)
        opened.parent = parent
        return opened

    def _caller(self) -> TraceParent | None:
        """Returns what asks for a request: the program's own span, else what started the run."""
        if self._contexts is not None:
            span: TraceParent | None = self._contexts.current_span()
            if span is not None:
                return span
        return self._identity.traceparent

    def _begin_sampled(
        self, opened: _Open, site: Site, attributes: Attributes, segment: str | None
    ) -> SampledEntry:
        opened.entries = []
        assert self._otel_current is not None  # noqa: S101 - prepare() ran before spans are on
        entries_module.begin_trace(
            opened.entries.append,
            context=now.context,
            contexts=self._contexts,
            otel_current=self._otel_current,
        )
        entry = self._clock.new_entry()
        entry.site = site
        entry.attributes = attributes
        if segment is not None:
            entry.note_segment(segment)
        now.root = entry
        self._clock.begin_sampling(self._max_entries)
        return entry

    def _end_sampled(
        self, opened: _Open, root: SampledEntry, error: type[BaseException] | None
    ) -> None:
        left_out = self._clock.end_sampling()
        now.root = None
        if left_out:
            self._count(DROPPED, STEP_LIMIT, left_out)
        self.collect_late()
        kept = opened.entries or []
        entries: list[RegionEntry] = list(kept)
        self._clock.add_sampled(kept[: len(entries)])
        self._ended = (kept, len(entries))
        if self._submit is not None:
            self._submit(
                StepSpans(
                    step=opened.step or 0,
                    step_kind=opened.kind,
                    trace_id=opened.trace_id,
                    anchor_unix_ns=opened.anchor_unix_ns,
                    anchor_perf_ns=opened.anchor_perf_ns,
                    root=root,
                    entries=entries,
                    error=error,
                    root_name=ROOT_SPAN_NAME if opened.region == STEP_REGION else opened.region,
                    omitted=left_out,
                    request_parent=_request_parent(opened),
                )
            )


def _request_parent(opened: _Open) -> int | None:
    """Returns the parent of a request's span, 0 for none; None for what is no request."""
    if opened.region != REQUEST_REGION:
        return None
    return 0 if opened.parent is None else opened.parent[1]


def _whole(value: object) -> int | None:
    """Returns a step's number, or None for what is none; never reads a tensor."""
    if isinstance(value, bool | torch.Tensor):
        return None
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return number if 0 <= number < _STEPS else None


def _ignore(finished: FinishedRoot) -> None:
    del finished
