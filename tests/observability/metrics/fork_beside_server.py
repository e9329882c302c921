"""Forks while another process scrapes an endpoint of this one. Run by the tests.

Prints what the children found, as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from fastvideo.observability.metrics.accumulators import Instruments
from fastvideo.observability.metrics.collector import InstrumentsCollector
from fastvideo.observability.metrics.server import MetricsServer

FORKS = 50
SCRAPER = """
import http.client, sys
while True:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=5)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    sys.stdout.write("x")
    sys.stdout.flush()
    connection.close()
"""


def open_sockets() -> int:
    """Returns how many sockets this process holds."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except OSError:
            continue
    return count


def child(server: MetricsServer, instruments: Instruments, *, close_everything: bool) -> int:
    """Returns 0 if nothing of the endpoint is left in this process, which then leaves it."""
    if open_sockets() or server.address is not None or server.url is not None:
        return 1
    if threading.active_count() != 1:
        return 2
    server.stop()
    instruments.counter("fastvideo_training_steps_total").add()
    if close_everything:
        os.closerange(3, 4096)
    return 0


def fork_often(server: MetricsServer, instruments: Instruments) -> tuple[list[int], float]:
    """Returns the exit statuses of many children, and how long they took in all."""
    statuses = []
    start = time.monotonic()
    for number in range(FORKS):
        pid = os.fork()
        if pid == 0:
            os._exit(child(server, instruments, close_everything=number % 2 == 1))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return statuses, time.monotonic() - start


def main() -> None:
    """Forks again and again beside scrapes, then starts an endpoint in a child as well."""
    instruments = Instruments()
    idle = MetricsServer(InstrumentsCollector(instruments, {"rank": "0"}), port=0)
    _, seconds_without = fork_often(idle, instruments)
    server = MetricsServer(InstrumentsCollector(instruments, {"rank": "0"}), port=0)
    server.start()
    assert server.address is not None
    scraper = subprocess.Popen(
        [sys.executable, "-c", SCRAPER, str(server.address[1])], stdout=subprocess.PIPE
    )
    assert scraper.stdout is not None
    scraper.stdout.read(1)
    statuses, seconds = fork_often(server, instruments)
    pid = os.fork()
    if pid == 0:
        server.start()
        with socket.create_connection(server.address or ("", 0), timeout=5) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            os._exit(0 if client.recv(15) == b"HTTP/1.1 200 OK" else 1)
    second = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    scraped = scraper.stdout.read(2)
    scraper.kill()
    scraper.wait()
    scraper.stdout.close()
    server.stop()
    found = {
        "statuses": statuses,
        "seconds": seconds,
        "seconds_without": seconds_without,
        "started_in_child": second,
        "scraped": scraped.decode(),
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
