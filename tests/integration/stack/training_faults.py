"""A callback that spoils a run on purpose, in ways that a file tells it while the run goes on.

    callbacks:
      faults:
        _target_: training_faults.Faults
        file: /path/to/faults.json

The file maps ranks to faults: `{"all": {"forward_s": 0.2}, "1": {"dataloader_s": 0.3}}`. Known are
`dataloader_s`, `forward_s` and `backward_s` (seconds to sleep before each), `nan` (losses of NaN)
and `hang` (sleep before the forward pass until the file says otherwise).
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from fastvideo.distributed import get_world_rank
from fastvideo.train.callbacks import Callback


class Faults(Callback):
    """Sleeps, hangs and spoils losses as a file says.

    Args:
        file: The file; must exist, and be replaced in one piece.
    """

    def __init__(self, file: str) -> None:
        self._file = Path(file)
        self._rank = get_world_rank()
        pid = self._file.with_name(f"rank{self._rank}.pid")
        pid.write_text(str(os.getpid()))

    def _now(self) -> dict[str, Any]:
        faults = json.loads(self._file.read_text())
        return {**faults.get("all", {}), **faults.get(str(self._rank), {})}

    def on_train_start(self, method: Any, iteration: int = 0) -> None:
        """Puts itself between the trainer and the method's step, and before the data set."""
        dataset = method.student.dataloader.dataset
        load, train, backward = dataset.__getitems__, method.single_train_step, method.backward

        def slow_load(indices: Any) -> Any:
            time.sleep(self._now().get("dataloader_s", 0))
            return load(indices)

        def faulty_train(batch: Any, step: int) -> Any:
            faults = self._now()
            time.sleep(faults.get("forward_s", 0))
            while self._now().get("hang"):
                time.sleep(0.1)
            losses, outputs, metrics = train(batch, step)
            if faults.get("nan"):
                # Beside the total, which goes backward: the run is to go on.
                losses = {n: v if n == "total_loss" else v * math.nan for n, v in losses.items()}
            return losses, outputs, metrics

        def slow_backward(*args: Any, **kwargs: Any) -> None:
            time.sleep(self._now().get("backward_s", 0))
            backward(*args, **kwargs)

        dataset.__getitems__ = slow_load
        method.single_train_step = faulty_train
        method.backward = slow_backward
