"""Programs that make spans and end in various ways; each runs in a process of its own.

``python span_program.py <scenario>``: settings come from the environment, results go to standard
output as one line of JSON.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import steps

from fastvideo.observability.tracing.settings import TraceSettings
from fastvideo.observability.tracing.worker import SpanPipeline

counts = steps.Counts()


def pipeline(**identity: Any) -> SpanPipeline:
    """Starts a pipeline by the environment."""
    settings = TraceSettings.from_env(os.environ)
    made = SpanPipeline(settings, steps.make_identity(**identity), count=counts)
    made.start()
    return made


def tell(**values: Any) -> None:
    """Prints results."""
    print(json.dumps(values), flush=True)  # noqa: T201


def exit_with_spans_queued() -> None:
    """Queues 1500 spans, and ends without a word about telemetry."""
    spans = pipeline()
    for step in range(50):
        spans.submit_step(steps.make_step(step, children=28))
    tell(ended=time.time())


def sigterm() -> None:
    """Is ended by SIGTERM, with a handler of its own."""
    order: list[str] = []

    def own(number: int, frame: object) -> None:
        order.append("own")
        tell(order=order, exported=counts.total("exported"))
        sys.exit(7)

    if os.environ.get("OWN_HANDLER"):
        signal.signal(signal.SIGTERM, own)
    spans = pipeline()
    for step in range(3):
        spans.submit_step(steps.make_step(step))
    tell(ready=True)
    while True:
        time.sleep(0.01)


def sigterm_while_submitting() -> None:
    """Is interrupted by SIGTERM again and again while it submits, and goes on."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    spans = pipeline()
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.002)

    thread = threading.Thread(target=interrupt)
    thread.start()
    submitted = 0
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        spans.submit_step(steps.make_step(submitted, children=3))
        submitted += 1
    stop.set()
    thread.join()
    spans.shutdown()
    done = counts.total("exported") + counts.total("dropped")
    tell(submitted=submitted * 5, accounted=done)


def forks() -> None:
    """Forks 50 times while spans are on their way."""
    plain = time.monotonic()
    for _ in range(50):
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)
    plain = time.monotonic() - plain
    spans = pipeline()
    spans.submit_step(steps.make_step(0))
    spans.flush(2.0)
    begin = time.monotonic()
    failed = 0
    for number in range(50):
        spans.submit_step(steps.make_step(number + 1))
        child = os.fork()
        if child == 0:
            fine = False
            try:
                spans.submit_step(steps.make_step(999))
                alone = threads_of_the_system() == 1
                fine = alone and spans.flush(0.1) and not counts.total("dropped")
                spans.shutdown()
                if number % 2:
                    os.closerange(3, 256)
                    os.close(2)
                if number % 10 == 1:
                    gc.collect()  # takes a tenth of a second
            finally:
                os._exit(0 if fine else 1)
        _, status = os.waitpid(child, 0)
        failed += status != 0
    seconds = time.monotonic() - begin
    spans.shutdown()
    tell(seconds=seconds, plain=plain, failed=failed, exported=counts.total("exported"))


def threads_of_the_system() -> int:
    """Returns how many threads this process has, Python's and others."""
    return len(list(Path("/proc/self/task").iterdir()))


def fork_and_leave() -> None:
    """A forked child ends the ordinary way, running its exit handlers."""
    spans = pipeline()
    spans.submit_step(steps.make_step(0))
    spans.flush(2.0)
    child = os.fork()
    if child == 0:
        spans.submit_step(steps.make_step(1))
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    spans.submit_step(steps.make_step(2))
    tell(status=status, delivered=spans.flush(2.0), exported=counts.total("exported"))


def memory() -> None:
    """Does 20 000 steps, and reports how memory grew over the second half."""
    import psutil  # noqa: PLC0415

    spans = pipeline()
    process = psutil.Process()
    step = steps.make_step(0, children=28)
    sizes = []
    for number in range(20_000):
        step.step = number
        spans.submit_step(step)
        if number % 5000 == 4999:
            time.sleep(0.2)  # lets the threads take their part
            gc.collect()
            sizes.append(process.memory_info().rss)
    threads = process.num_threads()
    spans.shutdown()
    done = counts.total("exported") + counts.total("dropped")
    tell(sizes=sizes, threads=threads, accounted=done, submitted=20_000 * 30)


def cycles() -> None:
    """Starts and stops 200 times."""
    import psutil  # noqa: PLC0415

    process = psutil.Process()
    sizes, descriptors = [], []
    for number in range(200):
        spans = pipeline()
        spans.start()
        spans.submit_step(steps.make_step(number))
        spans.shutdown()
        spans.shutdown()
        if number % 50 == 49:
            gc.collect()
            sizes.append(process.memory_info().rss)
            descriptors.append(process.num_fds())
    tell(
        sizes=sizes,
        descriptors=descriptors,
        threads=len(threading.enumerate()),
        exported=counts.total("exported"),
    )


def late_spans() -> None:
    """Uses spans after shutdown, also in an exit handler."""
    import atexit  # noqa: PLC0415

    logging.basicConfig(level=logging.DEBUG)
    spans = pipeline()
    atexit.register(lambda: spans.submit_step(steps.make_step(2)))
    spans.shutdown()
    spans.submit_step(steps.make_step(1))
    tell(dropped=counts.total("dropped"))


def start_time() -> None:
    """Measures how long the start takes."""
    begin = time.monotonic()
    spans = pipeline()
    seconds = time.monotonic() - begin
    spans.shutdown()
    tell(seconds=seconds)


def close_then_fork() -> None:
    """Starts, closes, collects and forks."""
    spans = pipeline()
    spans.start()
    spans.shutdown()
    del spans
    gc.collect()
    child = os.fork()
    if child == 0:
        os._exit(0)
    _, status = os.waitpid(child, 0)
    tell(status=status)


def host_provider() -> None:
    """Sends through the provider of the program, set before or after the start."""
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: PLC0415
        InMemorySpanExporter,
    )
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased  # noqa: PLC0415

    exporter = InMemorySpanExporter()
    provider = TracerProvider(
        resource=Resource({"service.name": "theirs", "theirs": "yes"}),
        sampler=TraceIdRatioBased(float(os.environ.get("RATIO", "1"))),
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    if os.environ["ORDER"] == "before":
        trace.set_tracer_provider(provider)
    spans = pipeline()
    if os.environ["ORDER"] == "after":
        trace.set_tracer_provider(provider)
    total = int(os.environ.get("STEPS", "1"))
    failing = steps.make_step(0, children=1, error=ValueError, step_kind="critic")
    spans.submit_step(failing)
    for number in range(1, total):
        spans.submit_step(steps.make_step(number, children=1))
    spans.shutdown()
    provider.force_flush()
    finished = exporter.get_finished_spans()
    tell(
        same=trace.get_tracer_provider() is provider,
        traces=sorted({f"{span.context.trace_id:032x}" for span in finished}),
        spans=[json.loads(span.to_json()) for span in finished[:3]],
        counts={"/".join(key): n for key, n in counts.seen.items()},
    )


class Exporter:
    """An exporter of a program's own: notes spans, and hangs while it is told to."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def export(self, spans: Any) -> None:
        self.goes_on.wait()
        self.spans.extend(spans)

    def shutdown(self) -> None:
        pass


def set_provider(exporter: Any) -> Any:
    """Sets a provider with the processor that PROCESSOR names."""
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider, export  # noqa: PLC0415

    provider = TracerProvider(shutdown_on_exit=not os.environ.get("NO_EXIT_HANDLER"))
    kind = os.environ.get("PROCESSOR", "SimpleSpanProcessor")
    if kind != "none":
        provider.add_span_processor(getattr(export, kind)(exporter))
    trace.set_tracer_provider(provider)
    return provider


def seen() -> dict[str, int]:
    """Returns what became of spans."""
    return {"/".join(key): number for key, number in sorted(counts.seen.items())}


def host_hangs() -> None:
    """Runs in a program whose exporter hangs from the second step on, and comes back later."""
    exporter = Exporter()
    set_provider(exporter)
    spans = pipeline()
    spans.submit_step(steps.make_step(0))
    spans.flush(2.0)
    exporter.goes_on.clear()
    for number in range(1, 40):
        spans.submit_step(steps.make_step(number))
        if number == 3:
            spans.flush(0.2)
    begin = time.monotonic()
    spans.shutdown(1.0)
    seconds = time.monotonic() - begin
    at_shutdown = seen()
    exporter.goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "fastvideo-spans":
            thread.join(10)
    tell(seconds=seconds, at_shutdown=at_shutdown, counts=seen(), threads=threading.active_count())


def host_shuts_down() -> None:
    """Runs in a program that shuts its provider down in the middle."""
    exporter = Exporter()
    provider = set_provider(exporter)
    spans = pipeline()
    for number in range(5):
        if number == 2:
            provider.shutdown()
        spans.submit_step(steps.make_step(number))
        spans.flush(2.0)
    spans.shutdown()
    tell(counts=seen(), arrived=len(exporter.spans))


def host_ends_first() -> None:
    """Ends while spans are queued, with a provider whose exit handler runs before ours."""
    import atexit  # noqa: PLC0415

    exporter = Exporter()
    atexit.register(lambda: tell(counts=seen(), arrived=len(exporter.spans)))
    spans = pipeline()
    set_provider(exporter)
    for number in range(4):
        spans.submit_step(steps.make_step(number))
        if number == 1:
            spans.flush(2.0)


def foreign_provider() -> None:
    """Runs in a program whose provider is not the SDK's."""
    from opentelemetry import trace  # noqa: PLC0415

    class Provider(trace.TracerProvider):
        def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
            return trace.NoOpTracer()

    logging.basicConfig(level=logging.INFO)
    trace.set_tracer_provider(Provider())
    spans = pipeline()
    for number in range(3):
        spans.submit_step(steps.make_step(number))
        spans.flush(2)
    spans.shutdown()
    tell(exported=counts.seen["exported", "file"])


def rank() -> None:
    """Is one rank of a run: sends the steps that are sampled."""
    from fastvideo.observability.tracing.ids import is_sampled, step_trace_id  # noqa: PLC0415

    number, settings = int(os.environ["RANK"]), TraceSettings.from_env(os.environ)
    ratio = settings.sampler.ratio()
    identity = steps.make_identity(rank=number, local_rank=number, world_size=2)
    spans = SpanPipeline(settings, identity, count=counts)
    spans.start()
    for step in range(200):
        if is_sampled(step_trace_id(identity.run_id, identity.attempt, step), ratio):
            spans.submit_step(steps.make_step(step, identity=identity))
    spans.shutdown()
    tell(exported=counts.total("exported"), dropped=counts.total("dropped"))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
