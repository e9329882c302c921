"""A loop of three steps with telemetry and kernel traces on, as a program of one's own has it.

Settings come from the environment. It prints what a scrape in the OpenMetrics format says after the
last step.
"""

from __future__ import annotations

import os
import sys
import urllib.request

import torch

from fastvideo import observability
from fastvideo.profiler import get_or_create_profiler, profiler_region


def main() -> None:
    """Runs the loop."""
    telemetry = observability.start()
    controller = get_or_create_profiler(os.environ["FASTVIDEO_TORCH_PROFILER_DIR"])
    with profiler_region("model_loading"):
        torch.ones(2)
    for step in range(1, 4):
        with profiler_region("training_train_one_step", step=step):
            with profiler_region("training_dataloader"):
                x = torch.ones(8, 8)
            with profiler_region("training_forward"):
                torch.mm(x, x)
    assert telemetry.metrics_url is not None
    request = urllib.request.Request(
        telemetry.metrics_url, headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        sys.stdout.write(response.read().decode())
    controller.stop()
    telemetry.shutdown()


if __name__ == "__main__":
    main()
