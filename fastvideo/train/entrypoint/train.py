"""The trainer's program: one process per device, started by torchrun or alone.

    python -m fastvideo.train.entrypoint.train --config run.yaml --training.data.seed 7

A mistake of the user ends the process with status 1 and its message, any other exception with its
traceback, SIGTERM and SIGINT with 128 plus the signal's number; kernel traces, trackers and the
process group are closed in every case. A run with checkpoints finishes its step and saves it first
when SIGTERM comes.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import tempfile
import threading
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from fastvideo.errors import FastVideoError, counted
from fastvideo.hooks.trace_settings import check_trace_variables
from fastvideo.logger import configure_logging, init_logger
from fastvideo.observability import TelemetryConfig
from fastvideo.observability import start as start_telemetry
from fastvideo.observability.logs import log_formatter
from fastvideo.profiler import get_or_create_profiler, profiler_region
from fastvideo.train.builder import build_from_config
from fastvideo.train.callbacks import CallbackDict
from fastvideo.train.checkpoint.lock import output_dir_held
from fastvideo.train.checkpoint.manager import CheckpointConfig, CheckpointManager
from fastvideo.train.entrypoint.arguments import TrainArguments, parse_arguments
from fastvideo.train.entrypoint.launcher_death import LauncherDeath
from fastvideo.train.entrypoint.mistakes import tell_mistake
from fastvideo.train.entrypoint.peers import PeerConnections
from fastvideo.train.entrypoint.stop_file import stopping_for_s, was_stopped
from fastvideo.train.entrypoint.stop_request import StopRequest
from fastvideo.train.entrypoint.termination import (
    Terminated,
    Termination,
    pending_s,
    terminate_by_exception,
)
from fastvideo.train.mesh import reconcile_mesh
from fastvideo.train.preflight import check_environment, check_run
from fastvideo.train.run_config import RunConfig, load_run_config
from fastvideo.train.trainer import Trainer
from fastvideo.train.yaml_file import dump_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from fastvideo.observability import Telemetry
    from fastvideo.profiler import TorchProfilerController
    from fastvideo.train.methods.base import TrainingMethod

logger = init_logger("fastvideo.train.entrypoint.train")  # __name__ is __main__ under torchrun

RUN_FILE_NAME = "run.yaml"
"""Name under which the tracker keeps the run file, as it is after overrides."""

_TRACING_S: Final = 3.0
_CLOSING_S: Final = 10.0
_MARGIN_S: Final = 5.0
_CONFIG_MODULES = (
    "fastvideo.train.builder",
    "fastvideo.train.callbacks.callback_dict",
    "fastvideo.train.callbacks.validation",
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
    check_environment()
    check_trace_variables()
    rank = get_world_rank()
    form = log_formatter(envs.FASTVIDEO_LOG_FORMAT, rank=rank)
    configure_logging(envs.FASTVIDEO_LOG_LEVEL, rank=rank, formatter=form)
    if rank != 0:
        _leave_config_warnings_to_rank_zero()
    elif (restarts := os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) != "0":
        most = os.environ.get("TORCHELASTIC_MAX_RESTARTS", restarts)
        logger.warning("a rank had failed: all ranks start again (%s of %s)", restarts, most)
    if rank == 0:
        for given, meant in envs.misspelled_variables().items():
            logger.warning("%s is set, but is no variable: is %s meant?", given, meant)
    launcher = LauncherDeath(os.environ)
    with terminate_by_exception() as termination:
        launcher.send_sigterm()
        try:
            _run(arguments, termination)
        except Terminated:
            if launcher.has_happened():
                logger.warning("the launcher is gone, and this rank ends with it")
            raise
    return 0


def run_program(argv: Sequence[str] | None = None) -> int:
    """Trains in a process of its own, which is about to end.

    Args:
        argv: As for :func:`main`.

    Returns:
        0, or 1 for a mistake of the user, which is said in one line. Other exceptions pass, and a
        signal ends the process here.
    """
    try:
        return main(argv)
    except FastVideoError as error:
        tell_mistake(error, rank=get_world_rank())
        return 1
    except Terminated as stop:
        # Everything is written. Other ranks may wait in a collective for the end of this one, and
        # after a large trace it takes Python many seconds to take itself apart.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(stop.status)


def _run(arguments: TrainArguments, termination: Termination) -> None:
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    cfg = load_run_config(arguments.config, arguments.overrides)
    check_run(cfg, dry_run=arguments.dry_run)
    mesh = cfg.training.distributed
    reconcile_mesh(mesh, get_world_size(), strict=envs.FASTVIDEO_STRICT_MESH)
    controller = telemetry = error = None
    peers = PeerConnections()
    try:
        with peers.opened_here():
            maybe_init_distributed_environment_and_model_parallel(mesh.tp_size, mesh.sp_size)
        settings = TelemetryConfig.from_sources(
            os.environ, cfg.observability, run_name=cfg.training.tracker.run_name
        )
        if not arguments.dry_run:
            telemetry = start_telemetry(settings)
        controller = get_or_create_profiler(envs.FASTVIDEO_TORCH_PROFILER_DIR or None)
        with peers.shut_down_on_signals(termination.is_final):
            if arguments.dry_run:
                method = _build(cfg)[0]
                CallbackDict(cfg.callbacks, cfg.training)
                _report_dry_run(cfg, method, settings)
            else:
                with _output_dir_held(cfg, telemetry):
                    _build_and_train(cfg, telemetry, termination, peers)
    except BaseException as stop:
        error = stop
        if isinstance(stop, Terminated):
            logger.warning("stopping on %s; writing what is pending", stop.signal.name)
        raise
    finally:
        _end(controller, telemetry, error, termination)


def _end(
    controller: TorchProfilerController | None,
    telemetry: Telemetry | None,
    error: BaseException | None,
    termination: Termination,
) -> None:
    """Ends what was started, in the time that there is.

    Where the run ends well or somebody stopped it, the telemetry goes on serving until that has
    been scraped. All ranks do so at the same time, since nothing waits for another one any more.
    """
    if error is None:
        with termination.waiting(telemetry.stop_lingering) if telemetry else nullcontext():
            _close(controller, telemetry, None)
        return
    stopped = was_stopped(error, world_size=get_world_size())
    final_scrape_s = telemetry.config.final_scrape_s if telemetry is not None else 0
    longest_s = pending_s(final_scrape_s) - _MARGIN_S - stopping_for_s(error)
    closing_s = _CLOSING_S + (max(longest_s, 0.0) if stopped else 0.0)
    with (
        nullcontext() if isinstance(error, Terminated) else termination.closing(closing_s),
        termination.waiting(telemetry.stop_lingering) if telemetry else nullcontext(),
    ):
        _close(controller, telemetry, error, stopped=stopped, longest_s=longest_s)


def _close(
    controller: TorchProfilerController | None,
    telemetry: Telemetry | None,
    error: BaseException | None,
    *,
    stopped: bool = False,
    longest_s: float = math.inf,
) -> None:
    """Ends what was started, each part whatever becomes of the others.

    After an error the process group comes last, since leaving it may wait for ranks that are gone.
    At a good end it comes before the telemetry, which goes on serving for a while.
    """
    parts: list[Callable[[], object]] = [cleanup_dist_env_and_memory]
    if telemetry is not None:
        shutdown = partial(
            telemetry.shutdown,
            error=error,
            stopped=stopped,
            linger=stopped or error is None,
            limit_s=longest_s,
        )
        parts.insert(0 if error else 1, shutdown)
    if controller is not None:
        parts.insert(0, partial(_stop_tracing, controller, error))
    set_collective_wait(None)
    for close in parts:
        try:
            close()
        except Exception:
            if error is None:
                raise
            logger.exception("after the error that ended the run, closing it failed as well")


def _build(cfg: RunConfig) -> tuple[TrainingMethod, Any, int]:
    """Returns the method, its loader, and the step to start after."""
    with profiler_region("model_loading"):
        return build_from_config(cfg)[1:]


def _output_dir_held(cfg: RunConfig, telemetry: Telemetry | None) -> AbstractContextManager[None]:
    """Keeps other runs from the output directory, if this one saves there."""
    settings = cfg.training.checkpoint
    if not settings.training_state_checkpointing_steps:
        return nullcontext()
    run_id = "" if telemetry is None else telemetry.identity.run_id
    return output_dir_held(settings.output_dir, run_id=run_id)


def _build_and_train(
    cfg: RunConfig,
    telemetry: Telemetry | None,
    termination: Termination,
    peers: PeerConnections,
) -> None:
    method, dataloader, start_step = _build(cfg)
    if telemetry is not None:
        _observe(telemetry, cfg, method)
    trainer = Trainer(cfg.training, config=cfg.resolved_config(), callback_configs=cfg.callbacks)
    with peers.opened_here():
        manager = _checkpoint_manager(cfg, method, dataloader, trainer)
        stop_request = _stop_request(cfg, termination)
    trainer.run(
        method,
        dataloader=dataloader,
        max_steps=cfg.training.loop.max_train_steps,
        start_step=start_step,
        checkpoint_manager=manager,
        stop_request=stop_request,
        on_restored=partial(_keep_run_file, cfg, trainer) if get_world_rank() == 0 else None,
    )


def _checkpoint_manager(
    cfg: RunConfig,
    method: TrainingMethod,
    dataloader: Any,  # noqa: ANN401 - any iterable of batches
    trainer: Trainer,
) -> CheckpointManager | None:
    """Returns what saves and restores the run; None for one that does neither."""
    settings = cfg.training.checkpoint
    if not settings.training_state_checkpointing_steps and not settings.resume_from_checkpoint:
        return None
    return CheckpointManager(
        method,
        dataloader,
        settings.output_dir,
        config=CheckpointConfig(
            save_steps=settings.training_state_checkpointing_steps,
            keep_last=settings.checkpoints_total_limit,
            async_save=settings.async_save,
        ),
        callbacks=trainer.callbacks,
        raw_config=cfg.raw,
    )


def _stop_request(cfg: RunConfig, termination: Termination) -> StopRequest | None:
    """Returns what lets SIGTERM save the run first, if it is saved at all."""
    settings = cfg.training.checkpoint
    if not settings.training_state_checkpointing_steps or not settings.save_on_sigterm:
        return None
    return StopRequest(termination, timeout_s=settings.sigterm_timeout_s)


def _observe(telemetry: Telemetry, cfg: RunConfig, method: TrainingMethod) -> None:
    """Says what is trained, and puts clocks around the collectives of its models."""
    telemetry.describe(method=type(method).__name__, model=cfg.training.model_path)
    wait = CollectiveWait(telemetry.add_collective_wait)
    wait.observe(method)
    set_collective_wait(wait)


def _keep_run_file(cfg: RunConfig, trainer: Trainer) -> None:
    """Hands the run file with its overrides to the trackers; it reproduces the run by itself."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, RUN_FILE_NAME)
        path.write_text(dump_yaml(cfg.raw), encoding="utf-8")
        trainer.tracker.log_file(path, name=RUN_FILE_NAME)


def _stop_tracing(controller: TorchProfilerController, error: BaseException | None) -> None:
    """Closes kernel tracing; after a signal the exports are left to their helper process.

    Other ranks may wait in a collective for this one, and only its end lets them go.
    """
    if not isinstance(error, Terminated):
        controller.stop()
        return
    stopping = threading.Thread(target=controller.stop, name="stop-tracing", daemon=True)
    stopping.start()
    stopping.join(_TRACING_S)
    if stopping.is_alive():
        logger.warning("kernel traces are still being exported; their helper process goes on")


def _report_dry_run(cfg: RunConfig, method: TrainingMethod, settings: TelemetryConfig) -> None:
    logger.info(
        "dry run succeeded: %s with %s on %s, %s configured",
        type(method).__name__,
        ", ".join(sorted(cfg.models)),
        counted(cfg.training.distributed.num_gpus, "process"),
        counted(cfg.training.loop.max_train_steps, "step"),
    )
    for name, value in settings.describe(changed_only=True).items():
        logger.info("telemetry: %s: %s", name, value)


def _leave_config_warnings_to_rank_zero() -> None:
    """All ranks read the same file; one of them complaining is enough."""
    for name in _CONFIG_MODULES:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=r".* does not take .*; ignored", category=UserWarning)


if __name__ == "__main__":
    sys.exit(record(run_program)())
