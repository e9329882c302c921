"""OTLP over gRPC. The library is imported with the first request, on the sender's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastvideo.observability.forks import FORKS
from fastvideo.observability.tracing.inherited_sockets import connected_to, give_up, resolve
from fastvideo.observability.tracing.proxies import find_grpc_proxy, is_loopback
from fastvideo.observability.tracing.transport import (
    REJECTED,
    TIMEOUT,
    UNAVAILABLE,
    UNREACHABLE,
    Outcome,
    rejected_spans,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fastvideo.observability.tracing.inherited_sockets import Peer
    from fastvideo.observability.tracing.otlp_settings import OtlpSettings

_RETRY_INFO: Final = "google.rpc.retryinfo-bin"
_RETRYABLE: Final = frozenset({"CANCELLED", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS"})
_OPTIONS: Final = (
    ("grpc.enable_retries", 0),  # the sender's own retries are counted and bounded
    ("grpc.use_local_subchannel_pool", 1),  # no connection is shared with another channel
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.primary_user_agent", "fastvideo"),
)


class GrpcTransport:
    """Sends requests over one channel.

    Args:
        settings: Where to, and how.
    """

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._channel: Any = None
        self._export: Any = None
        self._waiting: Any = None
        self._aborts = 0
        self._peers: set[Peer] = set()
        self._of_others: set[int] = set()

    @property
    def target(self) -> str:
        """The URL, without user and password."""
        return self._settings.endpoint.shown

    def send(self, body: bytes, timeout_s: float) -> Outcome:
        """Calls ``Export`` once."""
        # Takes a tenth of a second, and only those who use gRPC need it.
        import grpc  # type: ignore[import-untyped]  # noqa: PLC0415

        aborts = self._aborts
        try:
            if self._export is None:
                self._open(grpc)
            call = self._waiting = self._export.future(
                body, timeout=timeout_s, metadata=self._settings.headers or None
            )
            if self._aborts != aborts:  # before anybody could know the call
                call.cancel()
            answer = call.result()
            self._peers = self._peers or self._find_peers()  # the name may not have resolved before
        except grpc.RpcError as error:
            return _outcome(error)
        except grpc.FutureCancelledError:
            return Outcome(TIMEOUT, retryable=True, detail="cancelled")
        except (OSError, ValueError) as error:
            return Outcome(UNREACHABLE, retryable=True, detail=type(error).__name__)
        finally:
            self._waiting = None
        return Outcome(rejected_spans=rejected_spans(answer))

    def abort(self) -> None:
        """Cancels the call that waits, or is about to."""
        self._aborts += 1
        waiting = self._waiting
        if waiting is not None:
            waiting.cancel()

    def close(self) -> None:
        """Closes the channel."""
        channel, self._channel, self._export = self._channel, None, None
        if channel is not None:
            channel.close()
            self._peers = set()

    def leave_parent(self) -> None:
        """Forgets the channel: its threads are the parent's, and closing it would wait for them.

        Sockets that are connected to the collector, and were not before, are the channel's.
        """
        ours = connected_to(self._peers)
        give_up([number for number, inode in ours.items() if inode not in self._of_others])
        self._forgotten = (self._channel, self._export, self._waiting)  # never collected here
        self._channel = self._export = self._waiting = None

    def _open(self, grpc: Any) -> None:  # noqa: ANN401 - an untyped module
        endpoint = self._settings.endpoint
        FORKS.watch(self)
        self._peers = self._find_peers()
        self._of_others = set(connected_to(self._peers).values())
        direct = int(is_loopback(endpoint.host))
        options = {
            "options": (*_OPTIONS, ("grpc.enable_http_proxy", 1 - direct)),
            "compression": grpc.Compression.Gzip
            if self._settings.gzip
            else grpc.Compression.NoCompression,
        }
        if endpoint.secure:
            credentials = grpc.ssl_channel_credentials(
                _read(self._settings.certificate),
                _read(self._settings.client_key),
                _read(self._settings.client_certificate),
            )
            self._channel = grpc.secure_channel(endpoint.authority, credentials, **options)
        else:
            self._channel = grpc.insecure_channel(endpoint.authority, **options)
        self._export = self._channel.unary_unary(
            self._settings.signal.method,
            request_serializer=_unchanged,
            response_deserializer=_unchanged,
        )

    def _find_peers(self) -> set[Peer]:
        """Returns whom the channel may be connected to: the collector, or a proxy before it."""
        endpoint = self._settings.endpoint
        if not endpoint.port:
            path = endpoint.path.replace("unix-abstract:", "\0").removeprefix("unix:")
            return {(path.replace("///", "/", 1), 0)}
        proxy = find_grpc_proxy(endpoint)
        behind = resolve(proxy.host, proxy.port) if proxy is not None else set()
        return behind | resolve(endpoint.host, endpoint.port)


def _outcome(error: Any) -> Outcome:  # noqa: ANN401 - grpc.RpcError has no typed code()
    name = error.code().name
    wait_s = _retry_delay_s(error)
    if name == "DEADLINE_EXCEEDED":
        return Outcome(TIMEOUT, retryable=True, detail="no answer in time")
    if name == "UNAVAILABLE":
        reason = UNREACHABLE if wait_s is None else UNAVAILABLE
        return Outcome(reason, retryable=True, retry_after_s=wait_s, detail=f"gRPC {name}")
    if name in _RETRYABLE or (name == "RESOURCE_EXHAUSTED" and wait_s is not None):
        return Outcome(UNAVAILABLE, retryable=True, retry_after_s=wait_s, detail=f"gRPC {name}")
    return Outcome(REJECTED, detail=f"gRPC {name}")


def _retry_delay_s(error: Any) -> float | None:  # noqa: ANN401 - grpc.RpcError is untyped
    """Returns the wait that a ``RetryInfo`` asks for, in seconds, or None."""
    for key, value in error.trailing_metadata() or ():
        if key == _RETRY_INFO:
            return _read_delay(value)
    return None


def _read_delay(message: bytes) -> float | None:
    """Reads a ``google.rpc.RetryInfo``."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415
    from google.rpc.error_details_pb2 import (  # type: ignore[import-untyped]  # noqa: PLC0415
        RetryInfo,
    )

    try:
        delay = RetryInfo.FromString(message).retry_delay
    except DecodeError:
        return None
    return float(delay.seconds + delay.nanos / 1e9)


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None else None


def _unchanged(message: bytes) -> bytes:
    return message
