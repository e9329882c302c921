"""Every metric family, declared once: name, kind, labels, buckets, meaning.

The Prometheus endpoint and the OTLP exporter render what stands here, and the table in the
documentation is tested against it. Names carry base units; ``rank`` and ``run`` are on every series
and therefore on none of these lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from fastvideo.profiler.catalogue import BUILT_IN

Kind = Literal["counter", "gauge", "histogram", "summary"]
Labels = tuple[str, ...]

ONE_SERIES: Final[tuple[Labels, ...]] = ((),)
"""What a family without labels has from the start."""

_LONGEST_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family.

    Attributes:
        name: Full name, as it is scraped.
        kind: What its samples are. A summary has a sum and a count, and no quantiles.
        help: What it means, in one line.
        labels: Names of its labels.
        buckets: Upper bounds of a histogram's buckets, in the unit of the name; +Inf is implied.
        initial: Label values of the series that exist, at zero, before anything happens.
    """

    name: str
    kind: Kind
    help: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    initial: tuple[Labels, ...] = ()


def geometric_buckets(first: float, last: float, *, ratio: float) -> tuple[float, ...]:
    """Returns bucket bounds from ``first`` to ``last`` whose neighbours have one ratio.

    Args:
        first: The lowest bound, above 0.
        last: The highest bound, above ``first``.
        ratio: What the ratio of two neighbours does not exceed, above 1.

    Returns:
        The bounds, each of four significant digits at most.
    """
    count = 1
    while True:
        step = (last / first) ** (1 / count)
        bounds = tuple(float(f"{first * step**index:.4g}") for index in range(count + 1))
        if all(high <= low * ratio for low, high in pairwise(bounds)):
            return bounds
        count += 1


def _values(*values: str) -> tuple[Labels, ...]:
    return tuple((value,) for value in values)


_STEP_S: Final = geometric_buckets(0.01, _LONGEST_S, ratio=1.25)
_WAIT_S: Final = geometric_buckets(0.0001, _LONGEST_S, ratio=1.5)
_LONG_S: Final = geometric_buckets(0.1, 2 * _LONGEST_S, ratio=1.6)
_REQUEST_S: Final = geometric_buckets(0.1, _LONGEST_S, ratio=1.4)
_DENOISING_S: Final = geometric_buckets(0.001, _LONGEST_S, ratio=1.6)

_TRAINING: Final = (
    # The kinds are the method's own words, so none exists before the trainer asks for it.
    Family(
        "fastvideo_training_step_duration_seconds",
        "histogram",
        "Duration of one optimizer step",
        ("step_kind",),
        _STEP_S,
    ),
    Family(
        "fastvideo_training_dataloader_time_seconds",
        "histogram",
        "Wait for the next batches of one step, in this process",
        (),
        _WAIT_S,
        ONE_SERIES,
    ),
    Family(
        "fastvideo_region_duration_seconds",
        "summary",
        "Host wall time in a region",
        ("region",),
        (),
        _values(*BUILT_IN),
    ),
    Family(
        "fastvideo_region_device_duration_seconds",
        "summary",
        "Device time between the events at entry and exit of a region; absent without CUDA",
        ("region",),
    ),
    Family(
        "fastvideo_training_unattributed_seconds_total",
        "counter",
        "Step time that no child region covers",
        initial=ONE_SERIES,
    ),
    Family(
        "fastvideo_training_collective_wait_seconds_total",
        "counter",
        "Time this rank spent in collectives; the rank with the least is the late one",
        ("collective",),
        (),
        _values("all_gather", "reduce_scatter", "all_reduce", "grad_norm", "rollout", "rewards"),
    ),
    Family(
        "fastvideo_training_step",
        "gauge",
        "Number of the last finished optimizer step",
        initial=ONE_SERIES,
    ),
    Family(
        "fastvideo_training_steps_total",
        "counter",
        "Optimizer steps finished by this process",
        initial=ONE_SERIES,
    ),
    Family(
        "fastvideo_training_samples_total",
        "counter",
        "Samples this process has trained on",
        initial=ONE_SERIES,
    ),
    # Absent until it is known: zero would look like a hang of half a century.
    Family(
        "fastvideo_training_last_step_timestamp_seconds",
        "gauge",
        "Unix time at the end of the last step, or at the start of training before that",
    ),
    Family("fastvideo_training_loss", "gauge", "Loss terms of the last step", ("loss",)),
    Family(
        "fastvideo_training_metric",
        "gauge",
        "Other scalars of the last step, by their tracker names",
        ("name",),
    ),
    Family(
        "fastvideo_training_nonfinite_loss_total",
        "counter",
        "Steps with a loss of NaN or infinity",
        initial=ONE_SERIES,
    ),
    Family(
        "fastvideo_training_errors_total",
        "counter",
        "Exceptions that left a step, by type",
        ("error_type",),
        (),
        _values("RuntimeError", "OutOfMemoryError", "NonFiniteLossError", "DistBackendError"),
    ),
    Family(
        "fastvideo_training_checkpoint_duration_seconds",
        "histogram",
        "Duration of saving one checkpoint",
        (),
        _LONG_S,
        ONE_SERIES,
    ),
    Family(
        "fastvideo_training_validation_duration_seconds",
        "histogram",
        "Duration of one validation",
        (),
        _LONG_S,
        ONE_SERIES,
    ),
)

# Absent until the pipeline asks for them: a trainer has no use for their series.
_INFERENCE: Final = (
    Family(
        "fastvideo_inference_request_duration_seconds",
        "histogram",
        "Duration of one request for a video that succeeded",
        (),
        _REQUEST_S,
    ),
    Family(
        "fastvideo_inference_denoising_step_duration_seconds",
        "histogram",
        "Duration of one denoising step",
        (),
        _DENOISING_S,
    ),
    Family(
        "fastvideo_inference_errors_total",
        "counter",
        "Requests for a video that failed, by type of exception",
        ("error_type",),
        (),
        _values("ConfigError", "OutOfMemoryError", "VideoWriteError"),
    ),
)

_PROCESS: Final = (
    Family(
        "fastvideo_run_active",
        "gauge",
        "1 while the run goes on, 0 after a clean end",
        initial=ONE_SERIES,
    ),
    Family(
        "fastvideo_run_info",
        "gauge",
        "Always 1; the labels describe the run",
        ("run_name", "method", "model", "world_size"),
    ),
    # A number, because no query can count with the label of fastvideo_run_info.
    Family("fastvideo_run_world_size", "gauge", "Number of ranks that the run started with"),
    Family(
        "fastvideo_rank_info",
        "gauge",
        "Always 1; the labels describe the process",
        ("host", "local_rank", "device"),
    ),
    Family(
        "fastvideo_build_info",
        "gauge",
        "Always 1; the labels are versions",
        ("version", "python", "torch", "cuda"),
    ),
    Family(
        "fastvideo_device_memory_bytes",
        "gauge",
        "Device memory of this process as its allocator sees it, and capacity of its devices",
        ("kind",),
    ),
)

_TELEMETRY: Final = (
    Family(
        "fastvideo_profiler_segments_total",
        "counter",
        "Kernel-trace segments by what became of them",
        ("status",),
        (),
        _values("ok", "no_kernels", "summary_failed", "failed", "skipped"),
    ),
    Family(
        "fastvideo_profiler_export_duration_seconds",
        "summary",
        "Duration of exporting a kernel-trace segment, off the training thread",
        initial=ONE_SERIES,
    ),
    Family(
        "fastvideo_profiler_written_bytes_total",
        "counter",
        "Bytes of kernel traces written",
        initial=ONE_SERIES,
    ),
    Family(
        "fastvideo_telemetry_spans_total",
        "counter",
        "Spans of this process by what became of them",
        ("outcome",),
        (),
        _values("exported", "dropped"),
    ),
    Family(
        "fastvideo_telemetry_spans_dropped_total",
        "counter",
        "Spans that were dropped, by reason",
        ("reason",),
        (),
        _values(
            "queue_full",
            "trace_budget",
            "step_limit",
            "late",
            "unreachable",
            "timeout",
            "unavailable",
            "rejected",
            "no_destination",
            "file",
            "host",
            "host_sampler",
            "host_shutdown",
            "console",
            "error",
            "shutdown",
        ),
    ),
    Family(
        "fastvideo_telemetry_sink_errors_total",
        "counter",
        "Errors inside telemetry itself, by the part that raised",
        ("sink",),
        (),
        _values("metrics", "spans", "device_time", "segments"),
    ),
    Family(
        "fastvideo_telemetry_overhead_seconds_total",
        "counter",
        "Time that telemetry took from the training thread, where it is measured",
        initial=ONE_SERIES,
    ),
)

FAMILIES: Final[dict[str, Family]] = {
    family.name: family for family in (*_TRAINING, *_INFERENCE, *_PROCESS, *_TELEMETRY)
}
"""All families by name, in the order they are served."""
