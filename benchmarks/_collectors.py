"""Collectors that behave and misbehave, in one process of their own, for the benchmarks of spans.

``python _collectors.py healthy silent`` prints the ports of a collector for each, in that order,
and serves until its standard input is closed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_RECEIVER = Path(__file__).parent.parent / "tests/observability/tracing/otlp_receiver.py"
_REFUSING = "refusing"
_SLOW_S = 0.15  # not fast enough for a batch of 512 spans out of every 15 short steps


@contextlib.contextmanager
def collectors(behaviours: Sequence[str]) -> Iterator[dict[str, str]]:
    """Runs a collector for each behaviour; gives their endpoints, by behaviour.

    Args:
        behaviours: As the receiver of the tests knows them; ``healthy`` may be followed by more
            words, and nobody listens where it is ``refusing``.
    """
    served = [behaviour for behaviour in behaviours if behaviour != _REFUSING]
    endpoints = {_REFUSING: f"http://127.0.0.1:{_free_port()}"}
    command = [sys.executable, __file__, *served]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None:
            message = "the collectors have no output"
            raise RuntimeError(message)
        ports = process.stdout.readline().split()
        for behaviour, port in zip(served, ports, strict=True):
            endpoints[behaviour] = f"http://127.0.0.1:{port}"
        try:
            yield {behaviour: endpoints[behaviour] for behaviour in behaviours}
        finally:
            process.kill()


def serve(behaviours: Sequence[str]) -> None:
    """Serves until standard input is closed. Keeps nothing of what it gets."""
    os.nice(10)  # a collector is elsewhere as a rule, and takes no core from the training
    receivers = []
    module = _receiver_module()
    for behaviour in behaviours:
        receiver = module.HttpReceiver()
        receiver.inbox.behaviour = behaviour.split()[0]
        receiver.inbox.delay_s = _SLOW_S
        receiver.inbox.received = deque(maxlen=1)
        receivers.append(receiver)
    print(*(receiver.port for receiver in receivers), flush=True)
    sys.stdin.read()


def _receiver_module() -> Any:  # noqa: ANN401 - test folders are no packages
    spec = importlib.util.spec_from_file_location("otlp_receiver", _RECEIVER)
    if spec is None or spec.loader is None:
        message = f"{_RECEIVER} cannot be imported"
        raise RuntimeError(message)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    serve(sys.argv[1:])
