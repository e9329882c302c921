"""Metrics of a run that the machine of the tests cannot do: GPUs, checkpoints, validation, videos.

Two ranks, as Prometheus would scrape them: real families, series and text, written by the package
itself; only the numbers are made up. Every scrape finds some more steps done.
"""

from __future__ import annotations

import hashlib
import random
import time
from typing import TYPE_CHECKING

from live_stack import Recorded

from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.text_format import TextRenderer

if TYPE_CHECKING:
    from live_stack import LivePrometheus

NAME = "wan-14b"
_GIB = 2**30
_CHILDREN = {
    "training_dataloader": 0.004,
    "training_forward": 0.2,
    "training_backward": 0.16,
    "training_optimizer": 0.03,
    "training_callbacks": 0.005,
}
_ON_DEVICE = {
    "training_dataloader": 0.1,
    "training_forward": 1.04,
    "training_backward": 1.45,
    "training_optimizer": 1.3,
    "training_callbacks": 0.4,
}
"""Device time over host time: the host runs ahead in some regions, and works alone in others."""

_INSIDE = {"dmd2_student_rollout": 0.07, "dmd2_generator_loss": 0.08, "dmd2_critic_loss": 0.05}
_VIDEO = {"inference_text_encoding": 0.06, "inference_denoising": 0.7, "inference_decoding": 0.12}
_UNATTRIBUTED = 0.008
_CHECKPOINT_EVERY, _VALIDATION_EVERY, _CHECKPOINT_S, _VALIDATION_S = 12, 30, 0.9, 2.2


class _Rank:
    """One rank. Its device works longer than its host in passes, and less where it waits."""

    def __init__(self, rank: int, rarely: int) -> None:
        self._checkpoint_every = rarely * _CHECKPOINT_EVERY
        self._validation_every = rarely * _VALIDATION_EVERY
        self._random = random.Random(rank)
        self._step = 0
        self._done_until = time.time()
        self._numbers = Instruments()
        self._renderer = TextRenderer(self._numbers, {"rank": str(rank), "run": NAME})
        numbers = self._numbers
        numbers.info("fastvideo_run_info", NAME, "DMD2Method", "Wan2.1-T2V-14B", "2")
        numbers.info("fastvideo_rank_info", f"node{rank}", "0", "NVIDIA H200")
        numbers.info("fastvideo_build_info", "0.1.0", "3.11.9", "2.13.0", "12.9")
        numbers.gauge("fastvideo_run_active").set(1)
        numbers.gauge("fastvideo_run_world_size").set(2)
        numbers.gauge("fastvideo_device_memory_bytes", "reserved").set(118 * _GIB)
        numbers.gauge("fastvideo_device_memory_bytes", "peak").set(112 * _GIB)
        numbers.gauge("fastvideo_device_memory_bytes", "capacity").set(140 * _GIB)
        numbers.histogram("fastvideo_inference_request_duration_seconds")
        numbers.histogram("fastvideo_inference_denoising_step_duration_seconds")

    def scrape(self) -> str:
        """Does the steps of the time since the last scrape; returns what the rank then serves."""
        while self._done_until < time.time():
            self._done_until += self._do_step()
            if self._step % self._checkpoint_every == 0:
                self._done_until += self._save()
            if self._step % self._validation_every == 0:
                self._done_until += self._validate()
        return self._renderer.render(openmetrics=False).decode()

    def _region(self, name: str, seconds: float, *, device: float) -> None:
        self._numbers.summary("fastvideo_region_duration_seconds", name).observe(seconds)
        on_device = self._numbers.summary("fastvideo_region_device_duration_seconds", name)
        on_device.observe(seconds * device)

    def _do_step(self) -> float:
        """Does one step; returns its seconds."""
        self._step += 1
        numbers = self._numbers
        is_generator = self._step % 5 == 0
        slower = (1.8 if is_generator else 1.0) * self._random.uniform(0.97, 1.03)
        for region, seconds in {**_CHILDREN, **_INSIDE}.items():
            self._region(region, seconds * slower, device=_ON_DEVICE.get(region, 1.1))
        step = slower * sum(_CHILDREN.values()) + _UNATTRIBUTED
        self._region("training_train_one_step", step, device=0.9)
        trace = hashlib.blake2b(f"{NAME}/{self._step}".encode(), digest_size=16).hexdigest()
        kind = "generator" if is_generator else "critic"
        numbers.histogram("fastvideo_training_step_duration_seconds", kind).observe(step, trace)
        waited = _CHILDREN["training_dataloader"] * slower
        numbers.histogram("fastvideo_training_dataloader_time_seconds").observe(waited)
        numbers.counter("fastvideo_training_unattributed_seconds_total").add(_UNATTRIBUTED)
        for collective, seconds in (
            ("all_gather", 0.05),
            ("reduce_scatter", 0.04),
            ("all_reduce", 0.02),
        ):
            name = "fastvideo_training_collective_wait_seconds_total"
            numbers.counter(name, collective).add(seconds * slower)
        self._tell_progress()
        numbers.counter("fastvideo_telemetry_spans_total", "exported").add(12)
        numbers.counter("fastvideo_telemetry_overhead_seconds_total").add(0.0004)
        return step

    def _tell_progress(self) -> None:
        numbers = self._numbers
        numbers.counter("fastvideo_training_steps_total").add(1)
        numbers.counter("fastvideo_training_samples_total").add(1)
        numbers.gauge("fastvideo_training_step").set(self._step)
        numbers.gauge("fastvideo_training_last_step_timestamp_seconds").set(self._done_until)
        for loss in ("total_loss", "generator_loss", "fake_score_loss"):
            value = 0.4 + 1 / (1 + 0.01 * self._step) + self._random.uniform(-0.05, 0.05)
            numbers.gauge("fastvideo_training_loss", loss).set(value)
        for name, value in (("grad_norm/student", 0.8), ("lr/student", 1e-5)):
            numbers.gauge("fastvideo_training_metric", name).set(value)

    def _save(self) -> float:
        """Saves a checkpoint and loses a span over it; records a kernel trace now and then."""
        numbers = self._numbers
        seconds = _CHECKPOINT_S * self._random.uniform(0.9, 1.2)
        self._region("training_save_checkpoint", seconds, device=0.1)
        numbers.histogram("fastvideo_training_checkpoint_duration_seconds").observe(seconds)
        allocated = 95 * _GIB * self._random.uniform(0.97, 1.03)
        numbers.gauge("fastvideo_device_memory_bytes", "allocated").set(allocated)
        numbers.counter("fastvideo_telemetry_spans_total", "dropped").add(1)
        numbers.counter("fastvideo_telemetry_spans_dropped_total", "unreachable").add(1)
        if self._step % (4 * self._checkpoint_every) == self._checkpoint_every:
            self._record_segment(0.3 * seconds)
        return seconds

    def _record_segment(self, seconds: float) -> None:
        numbers = self._numbers
        numbers.counter("fastvideo_profiler_segments_total", "ok").add(1)
        numbers.summary("fastvideo_profiler_export_duration_seconds").observe(seconds)
        numbers.counter("fastvideo_profiler_written_bytes_total").add(42_000_000)

    def _validate(self) -> float:
        """Makes two videos of four denoising steps."""
        numbers = self._numbers
        seconds = _VALIDATION_S * self._random.uniform(0.9, 1.2)
        self._region("training_validation", seconds, device=0.9)
        numbers.histogram("fastvideo_training_validation_duration_seconds").observe(seconds)
        for _ in range(2):
            for region, part in _VIDEO.items():
                self._region(region, part * seconds / _VALIDATION_S, device=0.95)
            request = sum(_VIDEO.values()) * seconds / _VALIDATION_S
            numbers.histogram("fastvideo_inference_request_duration_seconds").observe(request)
            for _ in range(4):
                name = "fastvideo_inference_denoising_step_duration_seconds"
                numbers.histogram(name).observe(request * self._random.uniform(0.17, 0.2))
        return seconds


class RecordedRun:
    """Serves the run to a Prometheus.

    Args:
        prometheus: Who is to scrape it.
        rarely: How many times as rare checkpoints and validations are as in a hurry.
    """

    def __init__(self, prometheus: LivePrometheus, *, rarely: int = 1) -> None:
        self._servers = []
        for rank in range(2):
            server = Recorded(_Rank(rank, rarely).scrape)
            self._servers.append(server)
            prometheus.add_target(server.address, f"fastvideo_{NAME}_rank{rank}")

    def close(self) -> None:
        """Ends it."""
        for server in self._servers:
            server.close()
