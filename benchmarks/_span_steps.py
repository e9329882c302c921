"""Steps of 30 regions as the hot path hands them over, for the benchmarks of spans."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from fastvideo.observability.identity import RunIdentity
from fastvideo.observability.tracing.ids import step_trace_id
from fastvideo.observability.tracing.records import StepSpans

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

REGIONS = (
    "training_dataloader",
    "training_forward",
    "training_backward",
    "training_optimizer",
    "training_callbacks",
    "distillation_teacher_forward",
    "dmd2_student_rollout",
    "dmd2_generator_loss",
    "dmd2_critic_loss",
)


@dataclasses.dataclass(eq=False, slots=True)
class Entry:
    """One entry of a region."""

    region: str
    start_ns: int
    end_ns: int
    parent: Entry | None = None
    error: type[BaseException] | None = None
    attributes: dict[str, object] | None = None
    span_id: int = 0
    segment: str | None = None
    device_ms: float | None = None
    foreign_parent: SpanContext | None = None

    @property
    def drawn_id(self) -> int:
        """Id that was drawn before the span is built, or 0."""
        return self.span_id


def make_identity(rank: int = 0, world_size: int = 1) -> RunIdentity:
    """Returns the identity of a rank on a node of eight."""
    return RunIdentity(
        run_id="wan2.1-t2v-14b-finetune",
        attempt="0-1f2e3d4c",
        run_name="wan2.1-t2v-14b-finetune",
        rank=rank,
        world_size=world_size,
        local_rank=rank % 8,
        host_name=f"gpu-node-{rank // 8:04d}.cluster.internal",
        host_id=f"{rank // 8:032x}",
        sampler_ratio=1.0,
        traceparent=None,
    )


def make_step(step: int, identity: RunIdentity, *, regions: int = 30) -> StepSpans:
    """Returns a step of ``regions`` entries, its own included; each has a device duration."""
    start_ns = time.perf_counter_ns()
    length_ns = 1_000_000
    root = Entry(
        "training_train_one_step",
        start_ns,
        start_ns + regions * length_ns,
        attributes={"step": step, "step_kind": "generator"},
        device_ms=float(regions),
    )
    entries = [
        Entry(
            REGIONS[i % len(REGIONS)],
            start_ns + i * length_ns,
            start_ns + i * length_ns + 900_000 + i,
            parent=root,
            device_ms=0.9,
        )
        for i in range(regions - 1)
    ]
    return StepSpans(
        step=step,
        step_kind="generator",
        trace_id=step_trace_id(identity.run_id, identity.attempt, step),
        anchor_unix_ns=time.time_ns(),
        anchor_perf_ns=start_ns,
        root=root,
        entries=[*entries, root],
        error=None,
    )
