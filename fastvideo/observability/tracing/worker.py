"""Takes spans from the training thread and does everything else on threads of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger
from fastvideo.observability.tracing.build_thread import BuildThread
from fastvideo.observability.tracing.inbox import Inbox
from fastvideo.observability.tracing.sender import DROPPED, QUEUE_FULL, SHUTDOWN
from fastvideo.profiler.lifecycle import LifecycleHooks

if TYPE_CHECKING:
    from fastvideo.observability.identity import RunIdentity
    from fastvideo.observability.tracing.records import SpanRecord, StepSpans
    from fastvideo.observability.tracing.sender import Count
    from fastvideo.observability.tracing.settings import TraceSettings
    from fastvideo.profiler.lifecycle import Chain

logger = init_logger(__name__)

# A process that has torch loaded takes most of a second to end by itself, and two seconds are all
# that an exit may take.
_AT_EXIT_S: Final = 1.0
_SIGTERM_S: Final = 1.0


class SpanPipeline:
    """The way of spans from the training thread to wherever they go.

    ``submit`` and ``submit_step`` cost the caller an append. They take no lock, so they can be
    called from a signal handler that interrupts them, and never raise. What cannot be kept is
    counted by reason and forgotten.

    Args:
        settings: What is sent where.
        identity: Of this process.
        count: Told what became of spans, once per destination: ``("exported", destination, n)``
            or ``("dropped", reason, n)``. Called from several threads.
    """

    def __init__(self, settings: TraceSettings, identity: RunIdentity, *, count: Count) -> None:
        self._settings = settings
        self._identity = identity
        self._count = count
        self._inbox = Inbox(settings.batch)
        self._started = False
        self._closed = False
        self._forked = False
        self._ending = False
        self._thread: BuildThread | None = None
        self._hooks = LifecycleHooks(self)

    def start(self) -> None:
        """Starts the threads; never raises. A second time changes nothing."""
        if self._started or self._closed or self._settings.disabled:
            return
        self._started = True
        try:
            self._thread = BuildThread(self._settings, self._identity, self._count, self._inbox)
            self._thread.start()
            self._hooks.install()
        except Exception as error:  # noqa: BLE001 - the run goes on without spans
            logger.warning("spans are off: they could not be started (%s)", type(error).__name__)
            self._closed = True

    def submit_step(self, spans: StepSpans) -> None:
        """Takes the spans of one sampled step; does not block and does not raise."""
        self._put(spans, len(spans.entries) + 1)

    def submit(self, record: SpanRecord) -> None:
        """Takes one span that belongs to no step, and has it sent soon."""
        if self._put(record, 1):
            self._inbox.wake()

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything that was submitted has been sent.

        Args:
            timeout_s: Longest wait, in seconds.

        Returns:
            Whether everything was taken by everything it goes to.
        """
        if self._thread is None or self._closed or self._forked:
            return not len(self._inbox)
        return self._inbox.ask(timeout_s, ends=False)

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """Sends what it can and ends the threads; a second time changes nothing.

        Args:
            timeout_s: Longest time it takes, in seconds. What is not sent by then is counted.
        """
        if self._closed or self._forked:
            return
        self._closed = True
        if self._thread is not None and not self._inbox.ask(timeout_s, ends=True):
            self._thread.abandon()
        left = self._inbox.clear()
        if left:
            self._tell(SHUTDOWN, left)
        self._hooks.remove()

    def at_exit(self) -> None:
        """Ends in time with the process."""
        self.shutdown(_AT_EXIT_S)

    def on_sigterm(self, chain: Chain) -> None:
        """Flushes and goes on with what SIGTERM did before.

        Args:
            chain: What it did before.
        """
        if self._ending:  # one more SIGTERM while the first is being handled: no reason to wait
            chain()
            return
        self._ending = True
        try:
            self.flush(_SIGTERM_S)
        finally:
            self._ending = False
            chain()

    def in_child(self) -> None:
        """Becomes inert in a forked child: no threads, no sockets, nothing counted."""
        self._forked = True
        self._inbox.leave_parent()
        if self._thread is not None:
            self._thread.leave_parent()

    def _put(self, item: StepSpans | SpanRecord, spans: int) -> bool:
        """Queues an item; returns whether it was taken."""
        if self._forked or self._settings.disabled:
            return False
        if self._closed or not self._started:
            self._tell(SHUTDOWN, spans)
            return False
        if not self._inbox.put(item, spans):
            self._tell(QUEUE_FULL, spans)
            return False
        return True

    def _tell(self, reason: str, spans: int) -> None:
        """Counts dropped spans, whatever the counter does."""
        try:
            self._count(DROPPED, reason, spans)
        except Exception as error:  # noqa: BLE001 - nothing here may reach the training thread
            logger.debug("spans could not be counted: %s", type(error).__name__)
