"""One rank of a run that trains in an open segment until SIGTERM ends it, as the trainer does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import torch

from fastvideo.profiler import get_or_create_profiler, profiler_region


def leave(number: int, frame: object) -> NoReturn:
    """Ends the run by an exception."""
    sys.exit(128 + number)


def main() -> None:
    """Trains a little, and goes on until the signal comes."""
    signal.signal(signal.SIGTERM, leave)
    controller = get_or_create_profiler(os.environ["FASTVIDEO_TORCH_PROFILER_DIR"])
    try:
        with profiler_region("training_train"):
            for step in range(1, 101):
                with profiler_region("training_train_one_step", step=step):
                    torch.mm(torch.ones(64, 64), torch.ones(64, 64))
            Path(sys.argv[1]).touch()
            while True:
                signal.pause()
    finally:
        controller.stop()


if __name__ == "__main__":
    main()
