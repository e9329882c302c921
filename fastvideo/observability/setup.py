"""Starts and ends the telemetry of a process: the only place where it is wired."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed

from fastvideo.logger import init_logger
from fastvideo.observability.clock import TelemetryClock
from fastvideo.observability.config import TelemetryConfig
from fastvideo.observability.current import now
from fastvideo.observability.endpoint import MetricsEndpoint
from fastvideo.observability.identity import agree, parse_traceparent
from fastvideo.observability.logs import LogFields
from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.device_time import DeviceTimer
from fastvideo.observability.step import RootTraces
from fastvideo.observability.telemetry import StepMetrics, connect_sources, describe_process
from fastvideo.observability.tracing.attributes import error_type
from fastvideo.observability.tracing.host_provider import find_host_provider
from fastvideo.observability.tracing.run_spans import (
    run_end_record,
    run_start_record,
)
from fastvideo.observability.tracing.worker import SpanPipeline
from fastvideo.profiler import set_trace_metadata
from fastvideo.profiler.lifecycle import LifecycleHooks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from fastvideo.observability.identity import RunIdentity
    from fastvideo.observability.step import FinishedRoot
    from fastvideo.observability.tracing.records import SpanRecord, StepSpans
    from fastvideo.profiler.lifecycle import Chain

logger = init_logger(__name__)

_SPANS_S: Final = 1.0
"""Longest wait for spans at the end; torch's own teardown takes most of the two seconds allowed."""


class Telemetry:
    """The telemetry of this process, from :func:`start` to :meth:`shutdown`.

    Args:
        config: What it does.
        identity: What the ranks agreed on.
        method: What is trained, for people.
        model: The model, for people.

    Attributes:
        config: What it does.
        identity: What the ranks agreed on.
        instruments: All numbers; add your own sources to them.
    """

    def __init__(
        self, config: TelemetryConfig, identity: RunIdentity, *, method: str, model: str
    ) -> None:
        self.config = config
        self.identity = identity
        self.instruments = Instruments()
        self._device = DeviceTimer() if torch.cuda.is_available() else None
        self._clock = TelemetryClock(self._device)
        self._metrics = StepMetrics(self.instruments, self._device)
        spans = config.traces.enabled or find_host_provider() is not None
        self._pipeline = self._make_pipeline() if spans else None
        self._traces = RootTraces(
            self._clock,
            identity,
            finished=self._finished,
            submit=self._submit if spans else None,
            count=self._count_spans,
        )
        self._endpoint = MetricsEndpoint(config, identity, self.instruments)
        self._logs = LogFields(identity.rank)
        self._hooks = LifecycleHooks(self)
        self._started_ns = time.perf_counter_ns()
        self._started_unix_ns = time.time_ns()
        self._error: str | None = None
        self._is_over = False
        self._is_waiting = False
        self._lock = threading.RLock()
        self._describe(method, model)

    @property
    def metrics_url(self) -> str | None:
        """Where this process's metrics can be scraped, or None."""
        return self._endpoint.url

    def describe(self, *, method: str = "", model: str = "") -> None:
        """Sets what is trained, once it is known and training is about to begin.

        From here on a run without steps looks like one that hangs.

        Args:
            method: What is trained, for people.
            model: The model, for people.
        """
        self._describe(method, model)
        started = self.instruments.gauge("fastvideo_training_last_step_timestamp_seconds")
        started.set(time.time())

    def record_step(
        self, scalars: Mapping[str, float], *, losses: Collection[str] = (), samples: int = 0
    ) -> None:
        """Takes the scalars of a step; never raises.

        Args:
            scalars: Numbers in host memory, by the names that trackers have for them;
                ``dataloader_time_sec`` is the wait for data.
            losses: Those of them that are loss terms.
            samples: How many samples the step trained on, in this process.
        """
        try:
            self._metrics.record(scalars, losses=losses, samples=samples)
        except Exception as error:  # noqa: BLE001 - telemetry never ends a run
            self._report("the scalars of a step", error)

    def expect_requests(self) -> None:
        """Lets the numbers of requests exist, at zero; never raises.

        A series that begins with its first request has no increase that shows it.
        """
        try:
            self.instruments.histogram("fastvideo_inference_request_duration_seconds")
            self.instruments.histogram("fastvideo_inference_denoising_step_duration_seconds")
        except Exception as error:  # noqa: BLE001 - telemetry never ends a run
            self._report("requests to come", error)

    def record_denoising_steps(
        self, durations_s: Iterable[float], *, trace_id: str | None = None
    ) -> None:
        """Counts the denoising steps of a request; never raises.

        Args:
            durations_s: How long each took, in seconds.
            trace_id: The request's trace, if that is sampled, in hexadecimal digits.
        """
        try:
            histogram = self.instruments.histogram(
                "fastvideo_inference_denoising_step_duration_seconds"
            )
            for duration_s in durations_s:
                histogram.observe(duration_s, trace_id)
        except Exception as error:  # noqa: BLE001 - telemetry never ends a run
            self._report("denoising steps", error)

    def add_collective_wait(self, collective: str, seconds: float) -> None:
        """Adds time that this rank spent in a collective."""
        self.instruments.counter(
            "fastvideo_training_collective_wait_seconds_total", collective
        ).add(seconds)

    def flush(self, timeout_s: float = _SPANS_S) -> bool:
        """Sends the spans that are queued; returns whether all were taken in time."""
        return self._pipeline is None or self._pipeline.flush(timeout_s)

    def shutdown(
        self,
        *,
        error: BaseException | None = None,
        stopped: bool = False,
        linger: bool = False,
        limit_s: float = math.inf,
    ) -> None:
        """Ends telemetry, in about two seconds besides lingering; again, it changes nothing.

        Args:
            error: What ended the run, if it did not come to its own end.
            stopped: Whether that is only that somebody stopped it. Any other error leaves
                ``fastvideo_run_active`` at 1, which tells that the process is missing.
            linger: Whether to go on serving metrics after an end that is good, or wanted, until
                that has been scraped: twice at the run's own end, once where it was stopped. Only
                scrapers that come regularly are waited for, each scrape as long as the setting
                ``metrics_final_scrape_seconds`` says.
            limit_s: Longest lingering in seconds, whatever the settings say.
        """
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._error = error_type(type(error)) if error is not None else None
        self._hooks.remove()
        self._clock.stop()
        self._logs.remove()
        self._traces.collect_late()
        if self._pipeline is not None:
            if self.identity.rank == 0:
                self._pipeline.submit(self._run_end())
            self._pipeline.shutdown(_SPANS_S)
        ends_well = stopped or error is None
        if ends_well:
            self.instruments.gauge("fastvideo_run_active").set(0)
        scrapes = (1 if error is not None else 2) if linger and ends_well else 0
        self._is_waiting = bool(scrapes)
        try:
            self._endpoint.stop(
                scrapes=scrapes, limit_s=limit_s, is_over=lambda: not self._is_waiting
            )
        finally:
            self._is_waiting = False
            now.step, now.root, now.trace_id = None, None, 0
            set_trace_metadata(run_id=None, trace_id_of_step=None)
            _forget(self)

    def stop_lingering(self) -> bool:
        """Ends the lingering of :meth:`shutdown` at once; for signal handlers and other threads.

        Returns:
            Whether there was any.
        """
        was_waiting, self._is_waiting = self._is_waiting, False
        return was_waiting

    def at_exit(self) -> None:
        """Ends telemetry at the normal end of the process."""
        self.shutdown()

    def on_sigterm(self, chain: Chain) -> None:
        """Lets SIGTERM do what it does: the spans flush themselves, and exit handlers follow."""
        chain()

    def in_child(self) -> None:
        """Becomes inert: a forked child has neither the threads nor the sockets."""
        self._is_over = True
        self._traces.disable()
        self._logs.remove()
        _forget(self)

    def begin(self) -> None:
        """Starts everything; what cannot be started is one warning, and the rest works."""
        self._connect()
        self._traces.prepare()
        if self._pipeline is not None:
            self._pipeline.start()
        self._endpoint.start()
        self._clock.start()
        self._logs.install()
        self._hooks.install()
        set_trace_metadata(
            run_id=self.identity.run_id, trace_id_of_step=self._traces.sampled_trace_id
        )
        if self._pipeline is not None and self.identity.rank == 0:
            self._pipeline.submit(self._run_start())

    def _connect(self) -> None:
        connect_sources(self.instruments, self._clock, self._device)
        self.instruments.counter_source(
            "fastvideo_telemetry_overhead_seconds_total",
            lambda: [((), self._traces.overhead_ns / 1e9)],
        )

    def _describe(self, method: str, model: str) -> None:
        device = torch.cuda.get_device_name() if self._device is not None else "cpu"
        describe_process(self.instruments, self.identity, method=method, model=model, device=device)

    def _make_pipeline(self) -> SpanPipeline:
        return SpanPipeline(self.config.traces, self.identity, count=self._count_spans)

    def _count_spans(self, outcome: str, detail: str, number: int) -> None:
        self.instruments.counter("fastvideo_telemetry_spans_total", outcome).add(number)
        if outcome == "dropped":
            self.instruments.counter("fastvideo_telemetry_spans_dropped_total", detail).add(number)

    def _finished(self, root: FinishedRoot) -> None:
        if self._pipeline is None and find_host_provider() is not None:
            self._begin_spans()
        try:
            self._metrics.finished(root)
        except Exception as error:  # noqa: BLE001 - telemetry never ends a run
            self._report("a step", error)

    def _begin_spans(self) -> None:
        """Begins to make spans, for a TracerProvider that the program has set after the start."""
        if self.config.traces.disabled:
            return
        self._pipeline = self._make_pipeline()
        self._pipeline.start()
        self._traces.begin_spans(self._submit)
        if self.identity.rank == 0:
            self._pipeline.submit(self._run_start())

    def _run_start(self) -> SpanRecord:
        return run_start_record(
            self.identity,
            start_unix_ns=self._started_unix_ns,
            end_unix_ns=time.time_ns(),
            attributes={"fastvideo.world_size": self.identity.world_size},
        )

    def _submit(self, spans: StepSpans) -> None:
        if self._pipeline is None:
            return
        if self._device is not None:
            self._device.drain()
        self._pipeline.submit_step(spans)

    def _run_end(self) -> SpanRecord:
        return run_end_record(
            self.identity,
            run_seconds=(time.perf_counter_ns() - self._started_ns) / 1e9,
            end_unix_ns=time.time_ns(),
            last_step=now.step,
            error=self._error,
        )

    def _report(self, what: str, error: Exception) -> None:
        counter = self.instruments.counter("fastvideo_telemetry_sink_errors_total", "metrics")
        counter.add(1)
        logger.debug("telemetry could not count %s", what, exc_info=error)


_active: Telemetry | None = None
_starting = threading.Lock()
_watches_forks: list[bool] = []


def start(
    config: TelemetryConfig | None = None,
    *,
    run_name: str = "",
    method: str = "",
    model: str = "",
    broadcast: Callable[[object], object] | None = None,
) -> Telemetry:
    """Starts the telemetry of this process; once it runs, returns what runs.

    In a run of several processes every one of them calls this, after the process group exists:
    the run's identity is agreed upon in one broadcast, the only communication there ever is.

    Args:
        config: What it does; None: as the environment says.
        run_name: The run's name, for people, where the settings give none.
        method: What is trained, for people.
        model: The model, for people.
        broadcast: Returns rank 0's argument on every rank; None: over the default process group
            if there is one.

    Returns:
        The handle; end with its ``shutdown()``, which also happens at exit.
    """
    global _active  # noqa: PLW0603 - there is one telemetry in a process
    _watch_forks()
    with _starting:
        if _active is not None:
            if config is not None and config != _active.config:
                logger.info("telemetry runs already; the settings given now change nothing")
            return _active
        if config is None:
            config = TelemetryConfig.from_sources(os.environ)
        identity = agree(
            run_name=config.run_name or run_name,
            ratio=config.traces.sampler.ratio(parent_sampled=_parent_sampled(os.environ)),
            environ=os.environ,
            broadcast=broadcast or _process_group_broadcast(),
        )
        _active = Telemetry(config, identity, method=method, model=model)
        _active.begin()
        return _active


def _watch_forks() -> None:
    """Makes sure that a child never waits for a thread of its parent that was starting."""
    if not _watches_forks:
        _watches_forks.append(True)
        os.register_at_fork(after_in_child=_renew_lock)


def _renew_lock() -> None:
    global _starting  # noqa: PLW0603 - the lock may be held by a thread that does not exist here
    _starting = threading.Lock()


def shutdown() -> None:
    """Ends the telemetry of this process, if it runs."""
    telemetry = _active
    if telemetry is not None:
        telemetry.shutdown()


def active() -> Telemetry | None:
    """Returns the telemetry that runs in this process, or None."""
    return _active


def _forget(telemetry: Telemetry) -> None:
    global _active  # noqa: PLW0603 - see start
    if _active is telemetry:
        _active = None


def _parent_sampled(environ: Mapping[str, str]) -> bool | None:
    """Tells whether what started the run is sampled; None where nothing says so."""
    parent = parse_traceparent(environ.get("TRACEPARENT", ""))
    return None if parent is None else parent[2]


def _process_group_broadcast() -> Callable[[object], object] | None:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    if torch.distributed.get_world_size() == 1:
        return None

    def broadcast(value: object) -> object:
        values = [value]
        torch.distributed.broadcast_object_list(values, src=0)
        return values[0]

    return broadcast
