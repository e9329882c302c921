"""Sockets that a library opened: found by whom they are connected to, for want of a handle.

gRPC gives nobody its descriptors, and a forked child inherits them. While a child lives, a
connection that its parent closed would stay open for the collector.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_DESCRIPTORS: Final = Path("/proc/self/fd")

Peer = tuple[str, int]
"""An address and a port, or the path of a Unix socket and 0."""


def resolve(host: str, port: int) -> set[Peer]:
    """Returns the addresses of a host; none where its name cannot be resolved."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return {_peer(address) for *_, address in found}
    return set()


def connected_to(peers: Collection[Peer]) -> dict[int, int]:
    """Returns the descriptors of sockets that are connected to one of ``peers``, and their inodes.

    Where the system does not list descriptors, as only Linux does in this way, there are none.
    """
    return {descriptor: inode for descriptor, inode, peer in _connected_sockets() if peer in peers}


def give_up(descriptors: Collection[int]) -> None:
    """Closes sockets of this process, and keeps their numbers from being given to others.

    Args:
        descriptors: Whoever uses them finds nothing there any more.
    """
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)


def _connected_sockets() -> Iterator[tuple[int, int, Peer]]:
    names = []
    with contextlib.suppress(OSError):
        names = os.listdir(_DESCRIPTORS)  # noqa: PTH208 - in a child just forked every call counts
    for name in names:
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                yield int(name), status.st_ino, _peer_of(int(name))


def _peer_of(descriptor: int) -> Peer:
    borrowed = socket.socket(fileno=descriptor)
    try:
        return _peer(borrowed.getpeername())
    finally:
        borrowed.detach()


def _peer(address: object) -> Peer:
    """Returns an address in one form, whichever family it was given in."""
    if not isinstance(address, tuple):
        return os.fsdecode(address) if isinstance(address, bytes) else str(address), 0
    given = ipaddress.ip_address(str(address[0]).partition("%")[0])
    return str(getattr(given, "ipv4_mapped", None) or given), int(address[1])
