"""Metrics as TensorBoard event files."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from fastvideo.train.trackers.packages import import_tracker_package

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fastvideo.train.trackers.tracker import Scalar


class TensorBoardTracker:
    """Writes scalars to event files; texts and artifacts are left out.

    Args:
        log_dir: Directory of the event files; made if missing.
        config: The run's configuration, shown as a text.
    """

    name = "tensorboard"

    def __init__(self, log_dir: Path, config: Mapping[str, Any] | None) -> None:
        import_tracker_package("tensorboard")
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - needs the extra

        self._directory = log_dir
        self._writer: Any = SummaryWriter(str(log_dir))
        if config:
            text = json.dumps(config, indent=2, default=str, ensure_ascii=False)
            self._writer.add_text("config", f"```json\n{text}\n```")

    def log(self, metrics: Mapping[str, Scalar], step: int) -> None:
        """Adds one point per scalar."""
        for name, value in metrics.items():
            if not isinstance(value, str):
                self._writer.add_scalar(name, value, step)

    def log_artifacts(self, artifacts: Mapping[str, Any], step: int) -> None:
        """Ignores artifacts."""

    def log_file(self, path: Path, name: str) -> None:
        """Copies the file beside the event files."""
        target = self._directory / name
        if not (target.exists() and target.samefile(path)):
            shutil.copyfile(path, target)

    def video(self, data: Any, *, caption: str | None, fps: int, format: str) -> None:  # noqa: A002, ANN401 - the protocol
        """Supports no videos: TensorBoard would need another library to encode them."""

    def finish(self, exit_code: int) -> None:
        """Writes what is queued and closes the event file."""
        del exit_code
        self._writer.close()
