"""Metrics at SwanLab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastvideo.train.trackers.packages import import_tracker_package

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fastvideo.train.trackers.tracker import Scalar


class SwanlabTracker:
    """Logs scalars to a SwanLab experiment; files and videos are left out.

    Args:
        project: Project name.
        config: The run's configuration.
        log_dir: Where SwanLab keeps its files; made if missing.
        entity: Workspace, or None for the default one.
        run_name: Name of the experiment, or None to have one chosen.

    Raises:
        MissingExtraError: The package ``swanlab`` is not installed.
    """

    name = "swanlab"

    def __init__(
        self,
        project: str,
        config: Mapping[str, Any] | None,
        log_dir: Path,
        *,
        entity: str | None,
        run_name: str | None,
    ) -> None:
        self._swanlab: Any = import_tracker_package("swanlab")
        log_dir.mkdir(parents=True, exist_ok=True)
        self._swanlab.init(
            project=project,
            workspace=entity or None,
            experiment_name=run_name or None,
            config=dict(config or {}),
            logdir=str(log_dir),
        )

    def log(self, metrics: Mapping[str, Scalar], step: int) -> None:
        """Logs the numbers; SwanLab takes no texts here."""
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, str)}
        self._swanlab.log(numbers, step=step)

    def log_artifacts(self, artifacts: Mapping[str, Any], step: int) -> None:
        """Ignores artifacts."""

    def log_file(self, path: Path, name: str) -> None:
        """Keeps no files."""

    def video(self, data: Any, *, caption: str | None, fps: int, format: str) -> None:  # noqa: A002, ANN401 - the protocol
        """Supports no videos."""

    def finish(self, exit_code: int) -> None:
        """Ends the experiment."""
        state = "success" if exit_code == 0 else "crashed"
        self._swanlab.finish(state=state)
