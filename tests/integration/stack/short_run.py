"""A run of one process that takes some steps and ends well: a plain loop with regions."""

from __future__ import annotations

import sys
import time

from fastvideo import observability
from fastvideo.profiler import profiler_region


def main(name: str, steps: int) -> None:
    """Takes the steps.

    Args:
        name: The run's name.
        steps: How many; each sleeps for a fifth of a second.
    """
    telemetry = observability.start(run_name=name)
    telemetry.describe(method="sleep", model="none")
    for step in range(1, steps + 1):
        with profiler_region("training_train_one_step", step=step):
            with profiler_region("training_dataloader"):
                time.sleep(0.001)
            with profiler_region("training_forward"):
                time.sleep(0.2)
        telemetry.record_step({"loss": 1 / step, "dataloader_time_sec": 0.001}, losses=["loss"])
    telemetry.shutdown(linger=True)  # until the end has been scraped


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
