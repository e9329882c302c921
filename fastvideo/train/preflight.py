"""What can be said to be wrong with a run before anything heavy is imported.

The launcher asks before it starts processes, so that a mistake is one line instead of a report of
every rank; a trainer that was started without the launcher asks for itself.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastvideo import envs
from fastvideo.errors import ConfigError
from fastvideo.train.checkpoint.checksums import check_metadata
from fastvideo.train.checkpoint.layout import LATEST, resolve_checkpoint
from fastvideo.train.checkpoint.origin import (
    MethodNames,
    newest_whole,
    refuse_mixing,
    refuse_other_method,
    refuse_starting_among,
)
from fastvideo.train.options import as_int
from fastvideo.train.targets import check_own_target, is_own, named_targets
from fastvideo.train.tracker_names import checked_tracker_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.train.config import CheckpointConfig, TrainingConfig
    from fastvideo.train.run_config import RunConfig

VALIDATION: Final = "validation"
_VALIDATION_EVERY: Final = 100
_STUDENT: Final = "student"
_TARGET: Final = "_target_"
_STRICT_VARIABLES: Final = ("FASTVIDEO_NVTX_PROFILE", "FASTVIDEO_STRICT_MESH")


def check_run(cfg: RunConfig, *, dry_run: bool) -> None:
    """Refuses a run that would end with an error after its processes have started.

    Args:
        cfg: The loaded run file.
        dry_run: Whether nothing will be saved, so that checkpoints that are there do not matter.

    Raises:
        ConfigError: A key has a value that cannot be used; the message names it.
        FileNotFoundError: The checkpoint to resume from does not exist.
        CheckpointError: It is damaged.
        ImportError: A `_target_` leads nowhere in this package.
    """
    for where, target in named_targets(cfg).items():
        if is_own(target):
            check_own_target(target, where=where)
    reject_unavailable(cfg.training)
    _check_output_dir(cfg.training.checkpoint.output_dir)
    _check_checkpoints(cfg.training.checkpoint, str(cfg.method.get(_TARGET, "")), dry_run=dry_run)
    checked_tracker_names(cfg.training.tracker.trackers)
    if cfg.training.loop.max_train_steps < 1:
        key = "training.loop.max_train_steps"
        message = (
            f"{key}: expected a whole number of at least 1, got "
            f"{cfg.training.loop.max_train_steps} (0 is also what a missing key means). "
            f"Set --{key} N"
        )
        raise ConfigError(message)
    _check_validation(cfg.callbacks.get(VALIDATION), cfg.training.checkpoint.output_dir)


def check_models(cfg: RunConfig) -> None:
    """Looks for the models of a run that are directories; imports torch.

    Names on the Hugging Face hub pass: whether there is such a model is seen when it is loaded.
    Roles whose class is not of this package pass as well.

    Args:
        cfg: The loaded run file.

    Raises:
        ConfigError: A name is missing, or a path that is no directory.
        DataError: A directory is not in diffusers layout, or has no transformer.
    """
    from fastvideo.dataset.model_files import (  # noqa: PLC0415 - imports torch
        find_local_model,
        read_component_config,
    )

    roles = {role: spec for role, spec in cfg.models.items() if is_own(spec.get(_TARGET))}
    for role, spec in roles.items():
        key = f"models.{role}.init_from"
        if not isinstance(spec.get("init_from"), str):
            message = (
                f"{key}: expected a model directory, a hub id or tiny-random:wan2.1, "
                f"got {spec.get('init_from')!r}"
            )
            raise ConfigError(message)
        directory = find_local_model(spec["init_from"], option=key)
        if directory is not None:
            read_component_config(directory, "transformer")
    if _STUDENT in roles and cfg.training.model_path:
        find_local_model(cfg.training.model_path, option="training.model_path")


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
        ConfigError: Attention is to be sparse.
    """
    if training.vsa.sparsity > 0:
        message = (
            f"training.vsa.sparsity: sparse attention is not available in this version, "
            f"got {training.vsa.sparsity}. Set --training.vsa.sparsity 0 for dense attention"
        )
        raise ConfigError(message)


def check_restarts(checkpoint: CheckpointConfig, max_restarts: int) -> None:
    """Refuses restarts that would begin from the start and write over what was done.

    Args:
        checkpoint: The section that says what is saved and what a run goes on from.
        max_restarts: How often all ranks may be started again.

    Raises:
        ConfigError: There may be restarts, and nothing is saved or a restart would not look for it.
    """
    if max_restarts < 0:
        message = f"--max-restarts: expected a whole number of at least 0, got {max_restarts}"
        raise ConfigError(message)
    if max_restarts == 0:
        return
    section = "--training.checkpoint"
    if checkpoint.training_state_checkpointing_steps < 1:
        message = (
            f"--max-restarts (MAX_RESTARTS) is {max_restarts}, but nothing is saved that a restart "
            f"could go on from. Set {section}.training_state_checkpointing_steps N, or no restarts"
        )
        raise ConfigError(message)
    if checkpoint.resume_from_checkpoint != LATEST:
        message = (
            f"--max-restarts (MAX_RESTARTS) is {max_restarts}, but a restart would begin from "
            f"{checkpoint.resume_from_checkpoint or 'the start'} again. Set {section}."
            f"resume_from_checkpoint {LATEST}, or no restarts"
        )
        raise ConfigError(message)


def _check_output_dir(output_dir: str) -> None:
    """Looks whether the directory exists or can be made."""
    if not output_dir:
        return
    path = Path(output_dir).expanduser().absolute()
    existing = next(p for p in (path, *path.parents) if p.exists() or p.is_symlink())
    key = "training.checkpoint.output_dir"
    if not existing.is_dir():
        what = "is a file" if existing == path else f"is below {existing}, which is a file"
        message = (
            f"{key}: {output_dir} {what}; expected a directory, or one that can be made. "
            f"Set --{key} DIR"
        )
        raise ConfigError(message)
    if not os.access(existing, os.W_OK | os.X_OK):
        message = f"{key}: this user may not write into {existing}. Set --{key} DIR"
        raise ConfigError(message)


def _check_validation(settings: Mapping[str, Any] | None, output_dir: str) -> None:
    """Looks for the prompts to validate with, and for a place to write videos to."""
    if settings is None or settings.get(_TARGET) is not None:
        return
    every = settings.get("every_steps", _VALIDATION_EVERY)
    if as_int(every, where="callbacks.validation.every_steps") <= 0:
        return
    pipeline = settings.get("pipeline_target")
    if is_own(pipeline):
        check_own_target(str(pipeline), where="callbacks.validation.pipeline_target")
    file = settings.get("dataset_file")
    if not isinstance(file, str) or not Path(file).expanduser().is_file():
        problem, off = (
            (f"there is no file {file}", "set --callbacks.validation.every_steps 0")
            if file
            else ("it is required and missing", "leave callbacks.validation out")
        )
        message = (
            f"callbacks.validation.dataset_file: {problem}. Name a file with prompts, or {off}"
        )
        raise ConfigError(message)
    if not (settings.get("output_dir") or output_dir):
        message = (
            "callbacks.validation has no place for its videos. Set --callbacks.validation."
            "output_dir DIR or --training.checkpoint.output_dir DIR, or "
            "--callbacks.validation.every_steps 0"
        )
        raise ConfigError(message)


def _check_checkpoints(checkpoint: CheckpointConfig, method: str, *, dry_run: bool) -> None:
    """Looks for a place to save to, and for what a run is to go on from."""
    saves = checkpoint.training_state_checkpointing_steps > 0
    if saves and not checkpoint.output_dir:
        message = (
            "training.checkpoint.output_dir is empty, but checkpoints are to be saved every "
            f"{checkpoint.training_state_checkpointing_steps} steps. Set --training.checkpoint."
            "output_dir DIR, or --training.checkpoint.training_state_checkpointing_steps 0"
        )
        raise ConfigError(message)
    is_latest = checkpoint.resume_from_checkpoint == LATEST
    resumed = (
        newest_whole(checkpoint.output_dir)
        if is_latest
        else resolve_checkpoint(checkpoint.resume_from_checkpoint, checkpoint.output_dir)
    )
    if resumed is not None:
        check_metadata(resumed)
    if is_own(method):  # another may derive from the one that saved; the trainer knows that later
        names = MethodNames(method, {method.rpartition(".")[2]})
        if resumed is not None:
            refuse_other_method(resumed, names)
        if saves and not is_latest:
            refuse_mixing(checkpoint.output_dir, names)
    if saves and not is_latest and not dry_run:
        refuse_starting_among(checkpoint.output_dir, newest_whole(checkpoint.output_dir), resumed)
