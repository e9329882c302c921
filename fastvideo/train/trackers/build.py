"""Trackers from their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastvideo.distributed import get_world_rank
from fastvideo.errors import ConfigError
from fastvideo.train.tracker_names import checked_tracker_names
from fastvideo.train.trackers.jsonl import JsonlTracker
from fastvideo.train.trackers.swanlab_service import SwanlabTracker
from fastvideo.train.trackers.tensorboard import TensorBoardTracker
from fastvideo.train.trackers.tracker import Tracker
from fastvideo.train.trackers.wandb_service import WandbTracker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.trackers.tracker import TrackerBackend


def initialize_trackers(
    names: str | Sequence[str],
    *,
    experiment_name: str,
    config: Mapping[str, Any] | None,
    log_dir: str | Path,
    entity: str | None = None,
    run_name: str | None = None,
) -> Tracker:
    """Starts trackers; all names are checked before any of them is started.

    Args:
        names: Some of :data:`~fastvideo.train.tracker_names.SUPPORTED_TRACKERS`;
            ``none`` adds nothing.
        experiment_name: Project at the services.
        config: The run's configuration, for people to look up.
        log_dir: Directory for everything that is written locally.
        entity: Account or team at the services.
        run_name: Name of this run at the services.

    Returns:
        One tracker in front of all of them.

    Raises:
        ConfigError: A name is not supported, or the directory cannot be written to.
        MissingExtraError: A tracker's package is not installed.
    """
    backends: list[TrackerBackend] = []
    try:
        for name in checked_tracker_names([names] if isinstance(names, str) else names):
            backend = _start(name, experiment_name, config, Path(log_dir), entity, run_name)
            backends.append(backend)
    except BaseException:
        Tracker(backends).finish(exit_code=1)
        raise
    return Tracker(backends)


def build_tracker(
    training_config: TrainingConfig, *, config: Mapping[str, Any] | None = None
) -> Tracker:
    """Starts the trackers of a run, on global rank 0; other ranks get one that does nothing.

    Args:
        training_config: Says which, and the output directory; files go to its ``tracker`` folder.
        config: The run's whole configuration.
    """
    wanted = training_config.tracker
    names = list(wanted.trackers) or (["wandb"] if wanted.project_name else [])
    if get_world_rank() != 0:
        checked_tracker_names(names)
        return Tracker()
    return initialize_trackers(
        names,
        experiment_name=wanted.project_name or "fastvideo",
        config=config,
        log_dir=Path(training_config.checkpoint.output_dir) / "tracker",
        entity=wanted.entity or None,
        run_name=wanted.run_name or None,
    )


def _start(
    name: str,
    project: str,
    config: Mapping[str, Any] | None,
    log_dir: Path,
    entity: str | None,
    run_name: str | None,
) -> TrackerBackend:
    if name in {"jsonl", "tensorboard"}:
        try:
            return JsonlTracker(log_dir) if name == "jsonl" else TensorBoardTracker(log_dir, config)
        except OSError as error:
            message = (
                f"the tracker {name!r} cannot write to {log_dir}: {error.strerror or error}. "
                "Set --training.checkpoint.output_dir DIR"
            )
            raise ConfigError(message) from error
    service = WandbTracker if name == "wandb" else SwanlabTracker
    return service(project, config, log_dir, entity=entity, run_name=run_name)
