"""Finding a free port to listen on."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress
from typing import Final

from fastvideo.errors import ConfigError

_TRIES: Final = 64
_LAST_PORT: Final = 65_535
_BACKLOG: Final = 64
_NEXT_MAY_BE_FREE: Final = frozenset({errno.EADDRINUSE, errno.EACCES, errno.EPERM})


def listen(host: str, port: int) -> socket.socket:
    """Returns a non-blocking socket that listens on ``port`` or the next free port after it.

    Args:
        host: Name or address of this machine.
        port: The port that is tried first; 0: any free one. If a long row of ports is taken, any
            free one is taken as well.

    Raises:
        ConfigError: The host is no address of this machine.
    """
    if not 0 <= port <= _LAST_PORT:
        message = f"port {port} of the metrics endpoint does not exist; expected 0 to {_LAST_PORT}"
        raise ConfigError(message)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        for candidate in [*range(port, min(port + _TRIES, _LAST_PORT + 1)), 0]:
            listener = _try(family, (address[0], candidate, *address[2:]))
            if listener is not None:
                return listener
    except (OSError, UnicodeError) as error:
        message = (
            f"the metrics endpoint cannot listen on {host!r}: {error}; expected a name or an "
            "address of this machine, such as 127.0.0.1"
        )
        raise ConfigError(message) from error
    message = f"the metrics endpoint finds no free port on {host!r}"
    raise ConfigError(message)


def is_loopback(address: str) -> bool:
    """Tells whether only this machine can reach ``address``."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _try(family: int, address: tuple[object, ...]) -> socket.socket | None:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        with suppress(OSError):
            listener.close()
        if error.errno in _NEXT_MAY_BE_FREE:
            return None
        raise
    return listener
