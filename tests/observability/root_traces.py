"""Telemetry whose traces end in lists, and a host program's own spans beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fastvideo.observability.clock import TelemetryClock
from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.step import RootTraces
from fastvideo.profiler import profiler_region

if TYPE_CHECKING:
    from fastvideo.observability.entries import SampledEntry
    from fastvideo.observability.step import FinishedRoot
    from fastvideo.observability.tracing.records import StepSpans


STEP = "training_train_one_step"


class Telemetry:
    """A clock whose traces end in lists."""

    def __init__(self, ratio: float, *, spans: bool = True, max_entries: int = 1000) -> None:
        self.clock = TelemetryClock()
        self.finished: list[FinishedRoot] = []
        self.spans: list[StepSpans] = []
        self.counted: list[tuple[str, str, int]] = []
        identity = RunIdentity("run", "0-a", "name", 0, 1, 0, "host", "id", ratio, None)
        self.traces = RootTraces(
            self.clock,
            identity,
            finished=self.finished.append,
            submit=self.spans.append if spans else None,
            count=lambda *what: self.counted.append(what),
            max_entries=max_entries,
        )
        self.traces.prepare()
        self.clock.start()

    def parents(self) -> dict[str, str | None]:
        """The parent's name of every entry of the last trace."""
        last = self.spans[-1]
        return {e.region: e.parent.region if e.parent else None for e in last.entries}


def take_step(number: int = 1, **attributes: object) -> None:
    """Takes a step of four regions: the step, its forward pass, and two inside of that."""
    with profiler_region(STEP, step=number, **attributes), profiler_region("training_forward"):
        with profiler_region("dmd2_critic_loss"):
            pass
        with profiler_region("dmd2_student_rollout"):
            pass


class HostSpans:
    """A host program's own OpenTelemetry."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def parent_of(self, name: str) -> tuple[int, int] | None:
        """Trace and span id of the parent of the span called ``name``."""
        (span,) = [s for s in self.exporter.get_finished_spans() if s.name == name]
        return (span.parent.trace_id, span.parent.span_id) if span.parent else None


def entry_of(telemetry: Telemetry, region: str) -> SampledEntry:
    """Returns the one entry of a region in the last trace."""
    (entry,) = [e for e in telemetry.spans[-1].entries if e.region == region]
    return entry  # type: ignore[return-value]
