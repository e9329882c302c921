"""Forks while a transport has a connection, waits for one, or makes one after the other.

``python fork_beside_transport.py <protocol> <endpoint> <moment>`` prints how many children had a
socket, and whether the transport still works, as JSON. Run by the tests.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo.observability.tracing.exporters import make_transport
from fastvideo.observability.tracing.settings import TraceSettings

if TYPE_CHECKING:
    from fastvideo.observability.tracing.transport import Transport

FORKS = {"idle": 5, "waiting": 5, "reconnecting": 200}


def open_sockets() -> int:
    """Returns how many sockets this process holds."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode)
        except OSError:
            continue
    return count


def reconnect(transport: Transport, stop: threading.Event) -> None:
    """Sends over new connections until it is told to stop."""
    while not stop.is_set():
        transport.send(b"", 2.0)
        transport.close()


def main(protocol: str, endpoint: str, moment: str) -> None:
    """Forks at that moment."""
    settings = TraceSettings.from_env(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    )
    assert settings.otlp is not None
    transport = make_transport(settings.otlp)
    assert transport is not None
    stop = threading.Event()
    actions = {
        "idle": lambda: transport.send(b"", 2.0),
        "waiting": lambda: transport.send(b"", 60.0),
        "reconnecting": lambda: reconnect(transport, stop),
    }
    thread = threading.Thread(target=actions[moment], daemon=True)
    thread.start()
    if moment == "idle":
        thread.join()
    else:
        while not open_sockets():
            time.sleep(0.001)
        time.sleep(0.3 if moment == "waiting" else 0.0)
    leaks = 0
    for _ in range(FORKS[moment]):
        child = os.fork()
        if child == 0:
            os._exit(min(open_sockets(), 1))
        leaks += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    stop.set()
    if moment == "waiting":
        transport.abort()
    thread.join(10)
    works = not transport.send(b"", 0.3).reason
    transport.close()
    print(json.dumps({"leaks": leaks, "works": works}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:4])
