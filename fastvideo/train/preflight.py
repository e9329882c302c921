"""What can be said to be wrong with a run before anything heavy is imported.

The launcher asks before it starts processes, so that a mistake is one line instead of a report of
every rank; a trainer that was started without the launcher asks for itself.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastvideo import envs
from fastvideo.errors import ConfigError
from fastvideo.train.options import as_int
from fastvideo.train.tracker_names import checked_tracker_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.run_config import RunConfig

LATEST: Final = "latest"
"""Value of ``resume_from_checkpoint`` that stands for the newest checkpoint, if there is one."""

VALIDATION: Final = "validation"
_VALIDATION_EVERY: Final = 100
_TARGET: Final = "_target_"
_STRICT_VARIABLES: Final = ("FASTVIDEO_NVTX_PROFILE", "FASTVIDEO_STRICT_MESH")


def check_run(cfg: RunConfig, *, dry_run: bool) -> None:
    """Refuses a run that would end with an error after its processes have started.

    Args:
        cfg: The loaded run file.
        dry_run: Whether nothing will be trained, so that the length of the run does not matter.

    Raises:
        ConfigError: A key has a value that cannot be used; the message names it.
    """
    reject_unavailable(cfg.training)
    checked_tracker_names(cfg.training.tracker.trackers)
    if dry_run:
        return
    if cfg.training.loop.max_train_steps < 1:
        key = "training.loop.max_train_steps"
        message = (
            f"{key}: expected a whole number of at least 1, got "
            f"{cfg.training.loop.max_train_steps} (0 is also what a missing key means). "
            f"Set --{key} N"
        )
        raise ConfigError(message)
    _check_validation(cfg.callbacks.get(VALIDATION))


def check_environment() -> None:
    """Reads the variables that every run needs, to find those that cannot be used.

    Those of telemetry have defaults to fall back on, and those of kernel traces are read where
    traces are asked for.

    Raises:
        ConfigError: A variable is not of its type, or the log level is none.
    """
    for name in _STRICT_VARIABLES:
        try:
            envs.VARIABLES[name].read()
        except ValueError as error:
            raise ConfigError(str(error)) from error
    level = str(envs.FASTVIDEO_LOG_LEVEL)
    if level.upper() not in logging.getLevelNamesMapping():
        message = (
            f"environment variable FASTVIDEO_LOG_LEVEL={level!r}: expected DEBUG, INFO, WARNING, "
            f"ERROR or CRITICAL"
        )
        raise ConfigError(message)


def reject_unavailable(training: TrainingConfig) -> None:
    """Refuses what this version cannot do, before anything is loaded.

    Args:
        training: The typed section.

    Raises:
        ConfigError: Attention is to be sparse, checkpoints are to be saved, or the run is to
            continue from one. Resuming from "latest" where there is no checkpoint starts afresh
            and is fine.
    """
    if training.vsa.sparsity > 0:
        message = (
            f"training.vsa.sparsity: sparse attention is not available in this version, "
            f"got {training.vsa.sparsity}. Set --training.vsa.sparsity 0 for dense attention"
        )
        raise ConfigError(message)
    _reject_checkpoints(training)


def reject_validation(every_steps: int) -> None:
    """Refuses sampling during training, which this version does not do.

    Args:
        every_steps: Value of ``callbacks.validation.every_steps``.

    Raises:
        ConfigError: It is more than 0.
    """
    if every_steps > 0:
        message = (
            f"callbacks.validation.every_steps is {every_steps}, but validation sampling is not "
            "available in this version; switch it off with --callbacks.validation.every_steps 0"
        )
        raise ConfigError(message)


def _check_validation(settings: Mapping[str, Any] | None) -> None:
    if settings is None or settings.get(_TARGET) is not None:
        return
    every = settings.get("every_steps", _VALIDATION_EVERY)
    reject_validation(as_int(every, where="callbacks.validation.every_steps"))


def _reject_checkpoints(training: TrainingConfig) -> None:
    checkpoint = training.checkpoint
    key = "training.checkpoint.training_state_checkpointing_steps"
    if checkpoint.training_state_checkpointing_steps > 0:
        message = (
            f"{key}: saving checkpoints is not available in this version, "
            f"got {checkpoint.training_state_checkpointing_steps}. Set --{key} 0"
        )
        raise ConfigError(message)
    resume = checkpoint.resume_from_checkpoint
    found = _checkpoints(checkpoint.output_dir)
    if not resume or (resume == LATEST and not found):
        return
    key = "training.checkpoint.resume_from_checkpoint"
    what = f"{resume!r}, which is {found[-1]}" if resume == LATEST else repr(resume)
    message = (
        f"{key}: resuming is not available in this version, got {what}. "
        f"Start afresh with --{key} null"
    )
    raise ConfigError(message)


def _checkpoints(output_dir: str) -> list[Path]:
    """Returns complete checkpoints below a run's output directory, oldest step first."""
    if not output_dir:
        return []
    found = {}
    for path in Path(output_dir).expanduser().glob("checkpoint-*/dcp"):
        step = path.parent.name.removeprefix("checkpoint-")
        if step.isdecimal():
            found[int(step)] = path.parent
    return [found[step] for step in sorted(found)]
