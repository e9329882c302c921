"""Two gloo ranks, one of which waits for the other when that is told to end.

A script started by torchrun with a directory, in which rank 1 says that it waits no more.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from fastvideo.train.entrypoint.peers import PeerConnections

LONGEST_S = 60.0


def main() -> None:
    """Lets rank 0 end the collective of rank 1, which needs both."""
    freed = Path(sys.argv[1], "freed")
    peers = PeerConnections()
    with peers.opened_here():
        dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError:
            freed.touch()
        return
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    before = signal.getsignal(signal.SIGTERM)
    with peers.shut_down_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    restored = signal.getsignal(signal.SIGTERM) is before
    end = time.monotonic() + LONGEST_S
    while not freed.exists() and time.monotonic() < end:
        time.sleep(0.05)
    # Still connected as far as rank 0 knows: only the signal can have freed rank 1.
    print("freed", freed.exists(), "handler", signals == [signal.SIGTERM], "restored", restored)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # torch's own threads sometimes abort a process that ends the usual way
