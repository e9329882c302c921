"""The proxy between this process and a collector, as the environment names it."""

from __future__ import annotations

import base64
import ipaddress
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastvideo.observability.tracing.endpoints import Endpoint

_HTTP_PORT = 80


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        host: Name or address.
        port: TCP port.
        headers: What tells it who asks; never shown.
    """

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def find_proxy(endpoint: Endpoint) -> Proxy | None:
    """Returns the proxy for an endpoint, by ``http_proxy``, ``https_proxy`` and ``no_proxy``.

    This machine itself is never asked for through a proxy, whatever ``no_proxy`` says: what listens
    on the proxy's loopback is somebody else's.

    Raises:
        OSError: The environment names what is no proxy.
    """
    return _find(endpoint, ("https" if endpoint.secure else "http",))


def find_grpc_proxy(endpoint: Endpoint) -> Proxy | None:
    """Returns the proxy that the gRPC library chooses, which does so by variables of its own.

    Raises:
        OSError: The environment names what is no proxy.
    """
    return _find(endpoint, ("grpc", "https", "http"))


def _find(endpoint: Endpoint, kinds: Iterable[str]) -> Proxy | None:
    named = urllib.request.getproxies()
    text = next((named[kind] for kind in kinds if named.get(kind)), None)
    if text is None or is_loopback(endpoint.host) or _is_exempt(endpoint, named.get("no", "")):
        return None
    return _read(text)


def _read(text: str) -> Proxy:
    """Returns the proxy that a variable names.

    Raises:
        OSError: It names none. The message does not quote it, for it may hold a password.
    """
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        host = None
    if not host:
        raise OSError(0, "the proxy that the environment names is no URL with a host")
    return Proxy(host, port or _HTTP_PORT, _headers(url.netloc))


def is_loopback(host: str) -> bool:
    """Returns whether a host is this machine, by its name or address alone."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _is_exempt(endpoint: Endpoint, no_proxy: str) -> bool:
    """Returns whether ``no_proxy`` names a host, its domain, its address or a network of it."""
    if any(urllib.request.proxy_bypass(name) for name in (endpoint.authority, endpoint.host)):
        return True
    try:
        address = ipaddress.ip_address(endpoint.host)
    except ValueError:
        return False
    return any(_holds(part.strip(), address) for part in no_proxy.split(","))


def _holds(network: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _headers(netloc: str) -> dict[str, str]:
    """Returns the header that names a user to a proxy whose URL has one."""
    credentials, at, _ = netloc.rpartition("@")
    if not at:
        return {}
    encoded = base64.b64encode(unquote(credentials).encode()).decode("ascii")
    return {"proxy-authorization": f"Basic {encoded}"}
