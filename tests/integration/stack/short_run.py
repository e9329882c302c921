"""A run of one process that takes some steps, or is stopped before: a plain loop with regions."""

from __future__ import annotations

import sys
import time

from fastvideo import observability
from fastvideo.profiler import profiler_region
from fastvideo.train.entrypoint.termination import Terminated, terminate_by_exception


def main(name: str, steps: int) -> None:
    """Takes the steps.

    Args:
        name: The run's name.
        steps: How many; each sleeps for a fifth of a second.
    """
    telemetry = observability.start(run_name=name)
    telemetry.describe(method="sleep", model="none")
    try:
        for step in range(1, steps + 1):
            _take_step(telemetry, step)
    except Terminated as stop:
        telemetry.shutdown(error=stop, stopped=True, linger=True)
        raise
    telemetry.shutdown(linger=True)  # until the end has been scraped


def _take_step(telemetry: observability.Telemetry, step: int) -> None:
    with profiler_region("training_train_one_step", step=step):
        with profiler_region("training_dataloader"):
            time.sleep(0.001)
        with profiler_region("training_forward"):
            time.sleep(0.2)
    telemetry.record_step({"loss": 1 / step, "dataloader_time_sec": 0.001}, losses=["loss"])


if __name__ == "__main__":
    with terminate_by_exception():
        main(sys.argv[1], int(sys.argv[2]))
