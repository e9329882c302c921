"""Metrics over OTLP's gRPC. The library is imported with the first request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastvideo.observability.tracing.transport import TIMEOUT, UNREACHABLE, Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from fastvideo.observability.tracing.settings import OtlpSettings

_METHOD: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
_OPTIONS: Final = (("grpc.enable_retries", 0), ("grpc.primary_user_agent", "fastvideo"))


class GrpcMetricsTransport:
    """Sends requests over one channel, one at a time; the next push is the retry.

    Args:
        settings: Where to, and how.
    """

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._channel: Any = None
        self._waiting: Any = None

    @property
    def target(self) -> str:
        """The URL, without user and password."""
        return self._settings.endpoint.shown

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        """Calls ``Export`` once."""
        import grpc  # type: ignore[import-untyped]  # noqa: PLC0415 - see the module's first line

        try:
            if self._channel is None:
                self._channel = self._open(grpc)
            export = self._channel.unary_unary(_METHOD)
            headers = self._settings.headers or None
            call = self._waiting = export.future(body, timeout=timeout_s, metadata=headers)
            call.result()
        except grpc.RpcError as error:
            return Outcome(UNREACHABLE, retryable=True, detail=f"gRPC {error.code().name}")
        except grpc.FutureCancelledError:
            return Outcome(TIMEOUT, retryable=True, detail="cancelled")
        except (OSError, ValueError) as error:
            return Outcome(UNREACHABLE, retryable=True, detail=type(error).__name__)
        finally:
            self._waiting = None
        return Outcome()

    def abort(self) -> None:
        """Cancels the call that waits."""
        waiting = self._waiting
        if waiting is not None:
            waiting.cancel()

    def close(self) -> None:
        """Closes the channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def leave_parent(self) -> None:
        """Forgets the channel: its threads are the parent's, and closing it would wait for them."""
        self._forgotten = (self._channel, self._waiting)  # never collected here
        self._channel = self._waiting = None

    def _open(self, grpc: Any) -> Any:  # noqa: ANN401 - an untyped module
        settings = self._settings
        compression = grpc.Compression.Gzip if settings.gzip else grpc.Compression.NoCompression
        options = {"options": _OPTIONS, "compression": compression}
        if not settings.endpoint.secure:
            return grpc.insecure_channel(settings.endpoint.authority, **options)
        credentials = grpc.ssl_channel_credentials(
            _read(settings.certificate),
            _read(settings.client_key),
            _read(settings.client_certificate),
        )
        return grpc.secure_channel(settings.endpoint.authority, credentials, **options)


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None else None
