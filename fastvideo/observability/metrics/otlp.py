"""Pushes the numbers of a process over OTLP, for machines that nobody can scrape."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from fastvideo.logger import init_logger
from fastvideo.observability.forks import FORKS
from fastvideo.observability.metrics.otlp_encoding import encode
from fastvideo.observability.metrics.otlp_settings import OtlpMetricsSettings
from fastvideo.observability.tracing.resource import (
    SCOPE_NAME,
    resource_attributes,
    scope_version,
)
from fastvideo.observability.tracing.settings import TraceSettings
from fastvideo.observability.tracing.transport import Outcome

if TYPE_CHECKING:
    from fastvideo.observability.identity import RunIdentity
    from fastvideo.observability.metrics.accumulators import Instruments
    from fastvideo.observability.tracing.transport import Transport

logger = init_logger(__name__)

__all__ = ["OtlpMetrics", "OtlpMetricsSettings"]

_SAY_AGAIN_S: Final = 60.0
_MARGIN_S: Final = 0.2


class OtlpMetrics:
    """Sends everything there is every so often, and once more at the end.

    The numbers are cumulative, so a push that fails loses nothing that the next one does not
    bring, and nothing is queued.

    Args:
        settings: Where to, how, and how often.
        instruments: The numbers.
        identity: Whose numbers they are.
        transport: What sends.
    """

    def __init__(
        self,
        settings: OtlpMetricsSettings,
        instruments: Instruments,
        identity: RunIdentity,
        *,
        transport: Transport,
    ) -> None:
        self._settings = settings
        self._instruments = instruments
        self._labels = {"rank": str(identity.rank), "run": identity.run_name}
        self._resource = _resource(settings, identity)
        self._transport = transport
        self._log = _PushLog(self._transport.target)
        self._stop = threading.Event()
        self._deadline = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts to push; a second time changes nothing.

        Raises:
            RuntimeError: The process may not have another thread.
        """
        if self._thread is None and not self._stop.is_set():
            FORKS.watch(self)
            thread = threading.Thread(target=self._run, name="fastvideo-metrics-out", daemon=True)
            thread.start()
            self._thread = thread

    def shutdown(self, timeout_s: float = 1.0) -> None:
        """Pushes once more if pushes arrived so far, and ends; a second time changes nothing.

        Args:
            timeout_s: The longest time for it, in seconds.
        """
        thread, self._thread = self._thread, None
        self._deadline = time.monotonic() + timeout_s
        self._stop.set()
        if thread is None:
            return
        thread.join(max(0.0, timeout_s - _MARGIN_S))
        if thread.is_alive():
            self._transport.abort()
            thread.join(_MARGIN_S)

    def leave_parent(self) -> None:
        """Becomes inert in a forked child."""
        self._thread = None
        self._stop = threading.Event()  # the parent's may be locked
        self._stop.set()
        self._transport.leave_parent()

    def _run(self) -> None:
        stop = self._stop
        wait_s = self._settings.interval_s
        while not stop.wait(wait_s):
            outcome = self._push(self._settings.otlp.timeout_s)
            wait_s = max(self._settings.interval_s, outcome.retry_after_s or 0.0)
        left = self._deadline - time.monotonic() - _MARGIN_S
        if left > 0 and not self._log.is_failing:
            self._push(min(left, self._settings.otlp.timeout_s))
        self._transport.close()

    def _push(self, timeout_s: float) -> Outcome:
        try:
            body = encode(
                self._instruments,
                constant_labels=self._labels,
                resource=self._resource,
                scope=(SCOPE_NAME, scope_version()),
                unix_ns=time.time_ns(),
            )
            outcome = self._transport.send(body, timeout_s)
        except Exception as error:  # noqa: BLE001 - telemetry never ends a run
            outcome = Outcome(reason="error", detail=type(error).__name__)
        self._log.note(outcome)
        return outcome


class _PushLog:
    """What the log says about pushes: one line, then a count a minute."""

    def __init__(self, target: str) -> None:
        self.is_failing = False
        self._target = target
        self._has_delivered = False
        self._failures = 0
        self._quiet_until = 0.0

    def note(self, outcome: Outcome) -> None:
        if not outcome.reason:
            if self.is_failing or not self._has_delivered:
                again = " again" if self._has_delivered else ""
                logger.info("metrics are delivered to %s%s", self._target, again)
            self.is_failing, self._has_delivered = False, True
            return
        self.is_failing = True
        self._failures += 1
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + _SAY_AGAIN_S
        logger.warning(
            "metrics do not reach %s (%s; %d pushes failed); the run goes on, and this is said "
            "once a minute at most",
            self._target,
            outcome.detail or outcome.reason,
            self._failures,
        )
        self._failures = 0


def _resource(settings: OtlpMetricsSettings, identity: RunIdentity) -> dict[str, Any]:
    """Returns the resource, the same as that of spans."""
    traces = TraceSettings(service_name=settings.service_name, resource=settings.resource)
    return dict(resource_attributes(traces, identity))
