"""OTLP endpoints: which URL a signal goes to, for every way people write one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, quote, urlsplit

if TYPE_CHECKING:
    from fastvideo.observability.tracing.otel_env import OtelEnv
    from fastvideo.observability.tracing.signals import Signal

_HTTP_PORT: Final = 4318
_GRPC_PORT: Final = 4317
_PATH_CHARACTERS: Final = "/%?&=:@!$'()*+,;~-._"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a signal is sent.

    Attributes:
        secure: Whether to speak TLS.
        host: Name or address; IPv6 addresses without brackets.
        port: TCP port; 0 for a Unix socket.
        path: What is requested over HTTP, with query; for gRPC a Unix socket's path or empty.
    """

    secure: bool
    host: str
    port: int
    path: str = field(repr=False)  # its query may be a secret

    @property
    def authority(self) -> str:
        """``host:port``, as gRPC and the ``Host`` header want it."""
        if not self.port:
            return self.path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The URL for people: without user, password and query, which may be secrets."""
        if not self.port:
            return self.path
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.path.split('?')[0]}"


def http_endpoint(env: OtelEnv, signal: Signal) -> Endpoint | None:
    """Returns the endpoint for OTLP over HTTP, or None where its URL makes no sense.

    The signal's own endpoint is used as it is; the general one is a base that the path of the
    signal is added to.
    """
    own, general = signal.variables("ENDPOINT")
    name, value = env.named(own, general)
    text = value or f"http://localhost:{_HTTP_PORT}"
    if "://" not in text:
        env.note(f"{name} has no scheme; http:// is used")
        text = f"http://{text}"
    url = _split(env, name, text, signal)
    if url is None:
        return None
    path = url.path
    if name != own or value is None:
        path = f"{path.rstrip('/')}/{signal.path}"
    query = f"?{url.query}" if url.query else ""
    secure = url.scheme == "https"
    return Endpoint(
        secure=secure,
        host=url.hostname or "",
        port=url.port or (443 if secure else 80),
        path=quote(path or "/", safe=_PATH_CHARACTERS) + quote(query, safe=_PATH_CHARACTERS),
    )


def grpc_endpoint(env: OtelEnv, signal: Signal) -> Endpoint | None:
    """Returns the endpoint for OTLP over gRPC, or None where its URL makes no sense.

    The scheme decides about TLS. Without a scheme ``OTEL_EXPORTER_OTLP_INSECURE`` does, and where
    that is unset too the specification says TLS.
    """
    insecure = env.flag(*signal.variables("INSECURE"))
    name, value = env.named(*signal.variables("ENDPOINT"))
    text = value or f"http://localhost:{_GRPC_PORT}"
    if text.startswith(("unix:", "unix-abstract:")):
        return Endpoint(secure=False, host="", port=0, path=text)
    if "://" not in text:
        if not insecure:
            env.note(
                f"{name} has no scheme, so TLS is spoken; write http://... or set "
                "OTEL_EXPORTER_OTLP_INSECURE=true for plain text"
            )
        text = f"{'http' if insecure else 'https'}://{text}"
    url = _split(env, name, text, signal)
    if url is None:
        return None
    host, port = url.hostname or "", url.port or _GRPC_PORT
    return Endpoint(secure=url.scheme == "https", host=host, port=port, path="")


def _split(env: OtelEnv, name: str, text: str, signal: Signal) -> SplitResult | None:
    """Splits a URL; notes that it cannot be used, without showing it: it may hold a password."""
    try:
        url = urlsplit(text)
        usable = url.scheme in {"http", "https"} and bool(url.hostname)
        usable = usable and (url.port is None or url.port > 0)
    except ValueError:
        usable = False
    if usable:
        return url
    env.note(
        f"{name} is no URL of the form http://host:port or https://host:port; "
        f"OTLP {signal.shown} are off"
    )
    return None
