"""The trainer's program: one process per device, started by torchrun or alone.

    python -m fastvideo.train.entrypoint.train --config run.yaml --training.data.seed 7

An exception ends the process with status 1 and its traceback, SIGTERM and SIGINT with 128 plus the
signal's number; kernel traces, trackers and the process group are closed in every case.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from fastvideo import envs
from fastvideo.distributed import (
    cleanup_dist_env_and_memory,
    get_world_rank,
    get_world_size,
    maybe_init_distributed_environment_and_model_parallel,
)
from fastvideo.distributed.collective_wait import CollectiveWait, set_collective_wait
from fastvideo.errors import ConfigError
from fastvideo.logger import configure_logging, init_logger
from fastvideo.observability import TelemetryConfig
from fastvideo.observability import start as start_telemetry
from fastvideo.observability.logs import log_formatter
from fastvideo.profiler import get_or_create_profiler, profiler_region
from fastvideo.train.builder import build_from_config
from fastvideo.train.entrypoint.arguments import TrainArguments, parse_arguments
from fastvideo.train.entrypoint.termination import Terminated, terminate_by_exception
from fastvideo.train.mesh import reconcile_mesh
from fastvideo.train.run_config import RunConfig, load_run_config
from fastvideo.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastvideo.observability import Telemetry
    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.methods.base import TrainingMethod

logger = init_logger("fastvideo.train.entrypoint.train")  # __name__ is __main__ under torchrun

RUN_FILE_NAME = "run.yaml"
"""Name under which the tracker keeps the run file."""

_LATEST = "latest"
_CONFIG_MODULES = (
    "fastvideo.train.mesh",
    "fastvideo.train.run_config",
    "fastvideo.train.typed_section",
    "fastvideo.train.yaml_file",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Trains from a command line.

    Args:
        argv: The words after the program's name; by default this process's.

    Returns:
        0. Anything else leaves as an exception.
    """
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    rank = get_world_rank()
    form = log_formatter(envs.FASTVIDEO_LOG_FORMAT, rank=rank)
    configure_logging(envs.FASTVIDEO_LOG_LEVEL, rank=rank, formatter=form)
    if rank != 0:
        _leave_config_warnings_to_rank_zero()
    with terminate_by_exception():
        _run(arguments)
    return 0


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


def _run(arguments: TrainArguments) -> None:
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    cfg = load_run_config(arguments.config, arguments.overrides)
    reject_unavailable(cfg.training)
    mesh = cfg.training.distributed
    reconcile_mesh(mesh, get_world_size(), strict=envs.FASTVIDEO_STRICT_MESH)
    controller = telemetry = error = None
    try:
        maybe_init_distributed_environment_and_model_parallel(mesh.tp_size, mesh.sp_size)
        settings = TelemetryConfig.from_sources(
            os.environ, cfg.observability, run_name=cfg.training.tracker.run_name
        )
        if not arguments.dry_run:
            telemetry = start_telemetry(settings)
        controller = get_or_create_profiler(envs.FASTVIDEO_TORCH_PROFILER_DIR or None)
        with profiler_region("model_loading"):
            _, method, dataloader, start_step = build_from_config(cfg)
        if arguments.dry_run:
            _report_dry_run(cfg, method, settings)
            return
        if telemetry is not None:
            _observe(telemetry, cfg, method)
        _train(cfg, arguments.config, method, dataloader=dataloader, start_step=start_step)
    except BaseException as stop:
        error = stop
        if isinstance(stop, Terminated):
            logger.warning("stopping on %s; writing what is pending", stop.signal.name)
        raise
    finally:
        if controller is not None:
            controller.stop()
        cleanup_dist_env_and_memory()
        set_collective_wait(None)
        if telemetry is not None:
            telemetry.shutdown(error=error, linger=True)


def _observe(telemetry: Telemetry, cfg: RunConfig, method: TrainingMethod) -> None:
    """Says what is trained, and puts clocks around the collectives of its models."""
    telemetry.describe(method=type(method).__name__, model=cfg.training.model_path)
    wait = CollectiveWait(telemetry.add_collective_wait)
    wait.observe(method)
    set_collective_wait(wait)


def _train(
    cfg: RunConfig,
    config_path: Path,
    method: TrainingMethod,
    *,
    dataloader: Any,  # noqa: ANN401 - any iterable of batches
    start_step: int,
) -> None:
    trainer = Trainer(cfg.training, config=cfg.resolved_config(), callback_configs=cfg.callbacks)
    trainer.tracker.log_file(config_path, name=RUN_FILE_NAME)
    trainer.run(
        method,
        dataloader=dataloader,
        max_steps=cfg.training.loop.max_train_steps,
        start_step=start_step,
    )


def _report_dry_run(cfg: RunConfig, method: TrainingMethod, settings: TelemetryConfig) -> None:
    logger.info(
        "dry run succeeded: %s with %s on %d process(es), %d steps configured",
        type(method).__name__,
        ", ".join(sorted(cfg.models)),
        cfg.training.distributed.num_gpus,
        cfg.training.loop.max_train_steps,
    )
    for name, value in settings.describe().items():
        logger.info("telemetry: %s: %s", name, value)


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
    if not resume or (resume == _LATEST and not found):
        return
    key = "training.checkpoint.resume_from_checkpoint"
    what = f"{resume!r}, which is {found[-1]}" if resume == _LATEST else repr(resume)
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


def _leave_config_warnings_to_rank_zero() -> None:
    """All ranks read the same file; one of them complaining is enough."""
    for name in _CONFIG_MODULES:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=r".* does not take .*; ignored", category=UserWarning)


if __name__ == "__main__":
    sys.exit(record(main)())
