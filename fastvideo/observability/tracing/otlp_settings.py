"""How a collector is spoken to, for spans and for metrics, from ``OTEL_EXPORTER_OTLP_*``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fastvideo.observability.tracing.endpoints import Endpoint, grpc_endpoint, http_endpoint
from fastvideo.observability.tracing.otel_env import UnreadableFileError
from fastvideo.observability.tracing.signals import GRPC, HTTP_PROTOBUF, TRACES, Signal

if TYPE_CHECKING:
    from pathlib import Path

    from fastvideo.observability.tracing.otel_env import OtelEnv

_FILES: Final = ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SET_BY_TRANSPORTS: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """How a signal is sent to a collector.

    Attributes:
        protocol: ``grpc``, ``http/protobuf`` or ``http/json``.
        endpoint: Where to.
        headers: Sent with every request; never shown.
        timeout_s: Longest wait for one answer, in seconds.
        gzip: Whether requests are compressed.
        certificate: CA certificates to trust, or None for the system's.
        client_key: Private key of this client, or None.
        client_certificate: Certificate of this client, or None.
        signal: What is sent.
    """

    protocol: str
    endpoint: Endpoint
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float = 10.0
    gzip: bool = False
    certificate: Path | None = None
    client_key: Path | None = None
    client_certificate: Path | None = None
    signal: Signal = TRACES


def read_otlp(env: OtelEnv, signal: Signal) -> OtlpSettings | None:
    """Returns how a signal is sent, or None where its endpoint or a certificate is of no use.

    Args:
        env: The environment; is told what cannot be used.
        signal: What is sent.
    """
    names = signal.variables
    protocol = env.choice(*names("PROTOCOL"), choices=signal.protocols, default=HTTP_PROTOBUF)
    endpoint = (grpc_endpoint if protocol == GRPC else http_endpoint)(env, signal)
    timeout_s = env.milliseconds(*names("TIMEOUT"), default=10_000)
    compression = env.choice(*names("COMPRESSION"), choices=("gzip", "none"), default="none")
    headers = _headers(env, names("HEADERS"), protocol)
    try:
        certificate, client_key, client_certificate = [env.file(*names(kind)) for kind in _FILES]
    except UnreadableFileError as error:
        env.note(f"{error}; OTLP {signal.shown} are off")
        return None
    if endpoint is None:
        return None
    return OtlpSettings(
        protocol=protocol,
        endpoint=endpoint,
        headers=headers,
        timeout_s=timeout_s,
        gzip=compression == "gzip",
        certificate=certificate,
        client_key=client_key,
        client_certificate=client_certificate,
        signal=signal,
    )


def _headers(env: OtelEnv, names: tuple[str, str], protocol: str) -> tuple[tuple[str, str], ...]:
    """Returns the headers that can be sent; lower-case names, as gRPC and HTTP/2 want them."""
    variable, _ = env.named(*names)
    pairs = env.pairs(*names, secret=True)
    sendable = {
        key.lower(): value for key, value in pairs.items() if _is_sendable(key, value, protocol)
    }
    if left_out := len(pairs) - len(sendable):
        env.note(f"{variable}: {left_out} headers cannot be sent and are left out")
    taken = sorted(key for key in sendable if _is_set_by_transport(key, protocol))
    if taken:
        env.note(f"{variable}: {', '.join(taken)}: set by the transport itself, and left out")
    return tuple((key, value) for key, value in sendable.items() if key not in taken)


def _is_sendable(header: str, value: str, protocol: str) -> bool:
    is_binary = protocol == GRPC and header.lower().endswith("-bin")
    usable = value.isascii() and value.isprintable() and not is_binary
    return usable and bool(_HEADER_NAME.fullmatch(header))


def _is_set_by_transport(header: str, protocol: str) -> bool:
    if protocol == GRPC and (header == "user-agent" or header.startswith("grpc-")):
        return True
    return header in _SET_BY_TRANSPORTS
