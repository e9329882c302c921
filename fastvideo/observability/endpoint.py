"""Everything through which the numbers of a process leave it: endpoint, target file, push."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.observability.config import TelemetryConfig
    from fastvideo.observability.identity import RunIdentity
    from fastvideo.observability.metrics.accumulators import Instruments
    from fastvideo.observability.metrics.otlp import OtlpMetrics
    from fastvideo.observability.metrics.server import MetricsServer
    from fastvideo.observability.metrics.targets import TargetFile

logger = init_logger(__name__)

_PUSH_S: Final = 1.0


class MetricsEndpoint:
    """Serves and pushes the numbers of this process.

    Args:
        config: What is served where.
        identity: Whose numbers they are.
        instruments: The numbers.
    """

    def __init__(
        self, config: TelemetryConfig, identity: RunIdentity, instruments: Instruments
    ) -> None:
        self._config = config
        self._identity = identity
        self._instruments = instruments
        self._server: MetricsServer | None = None
        self._target: TargetFile | None = None
        self._push: OtlpMetrics | None = None

    @property
    def url(self) -> str | None:
        """Where the metrics are, or None."""
        return None if self._server is None else self._server.url

    def start(self) -> None:
        """Begins to serve; what cannot be had is one warning, and the run goes on."""
        for begin in (self._serve, self._start_push):
            try:
                begin()
            except Exception as error:  # noqa: BLE001 - telemetry never ends a run
                logger.warning("metrics: %s; the run goes on without", error)

    def stop(self, *, scrapes: int, limit_s: float, is_over: Callable[[], bool]) -> None:
        """Ends serving.

        Args:
            scrapes: How often the last state is to be scraped before, where something scrapes
                regularly.
            limit_s: The longest wait for that, in seconds, however long the settings allow.
            is_over: Tells whether the wait has been called off.
        """
        if self._push is not None:
            self._push.shutdown(_PUSH_S)
        allowed_s = scrapes * self._config.final_scrape_s
        try:
            if self._server is not None and allowed_s:
                limit_s = min(limit_s, allowed_s)
                self._server.linger(scrapes=scrapes, limit_s=limit_s, is_over=is_over)
        finally:  # a handler of the program may raise
            if self._server is not None:
                self._server.stop()
            if self._target is not None:
                self._target.remove()

    def _serve(self) -> None:
        config, identity = self._config, self._identity
        if not config.metrics:
            return
        from fastvideo.observability.metrics.collector import (  # noqa: PLC0415 - stay light
            InstrumentsCollector,
        )
        from fastvideo.observability.metrics.server import MetricsServer  # noqa: PLC0415
        from fastvideo.observability.metrics.targets import TargetFile  # noqa: PLC0415
        from fastvideo.observability.metrics.web_config import load_web_config  # noqa: PLC0415

        labels = {"rank": str(identity.rank), "run": identity.run_name}
        web_config = load_web_config(config.web_config) if config.web_config else None
        self._server = MetricsServer(
            InstrumentsCollector(self._instruments, labels),
            host=config.host,
            port=config.port + identity.local_rank if config.port else 0,
            web_config=web_config,
        )
        address = self._server.start()
        if config.targets_dir is not None:
            self._target = TargetFile(config.targets_dir, run=identity.run_name, rank=identity.rank)
            scheme = web_config.scheme if web_config is not None else "http"
            self._target.write(address, scheme=scheme)

    def _start_push(self) -> None:
        settings = self._config.otlp_metrics
        if settings is None:
            return
        from fastvideo.observability.metrics.otlp import OtlpMetrics  # noqa: PLC0415 - stay light
        from fastvideo.observability.tracing.exporters import make_transport  # noqa: PLC0415

        transport = make_transport(settings.otlp)
        if transport is not None:
            self._push = OtlpMetrics(
                settings, self._instruments, self._identity, transport=transport
            )
            self._push.start()
