"""Torchrun with checks before, and a few lines instead of pages after.

    python -m fastvideo.train.entrypoint.launch TORCHRUN-OPTIONS -m MODULE --config run.yaml …

Processes are started, watched and ended by `torch.distributed.run`. What this adds: a mistake in
the environment or in the data path is one line before any process starts; ranks that fail are one
line each, below what they said themselves; and Ctrl-C, SIGTERM or a closed terminal end the run
without a traceback, even when one of them arrives twice.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from fastvideo import envs
from fastvideo.errors import ConfigError, FastVideoError
from fastvideo.logger import errors_only
from fastvideo.train.entrypoint.arguments import parse_arguments
from fastvideo.train.entrypoint.launcher_death import announce_launcher
from fastvideo.train.entrypoint.mistakes import recorded_failure
from fastvideo.train.entrypoint.stop_file import StopFile
from fastvideo.train.entrypoint.termination import pending_s
from fastvideo.train.launcher import check_process_count, count_visible_gpus
from fastvideo.train.preflight import (
    check_environment,
    check_models,
    check_restarts,
    check_run,
)
from fastvideo.train.run_config import load_run_config
from fastvideo.train.targets import import_foreign_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from fastvideo.train.entrypoint.arguments import TrainArguments
    from fastvideo.train.run_config import RunConfig

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LEFT_TO_TORCHRUN: Final = "SIGQUIT"
_REPEAT_S: Final = 2.0
_MISTAKE: Final = 2
_SIGNAL_STATUS: Final = 128
_ENDED_BY_SIGTERM: Final = (_SIGNAL_STATUS + signal.SIGTERM, -signal.SIGTERM)
_SHUTDOWN_VARIABLE: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_ONE_STORE_VARIABLE: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_TORCHRUN_LOGGERS: Final = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
)
_SAID_HERE: Final = ("Received %s death signal", "Sending process %s closing", "failed (exitcode")


def main(argv: Sequence[str] | None = None) -> int:
    """Checks, then runs what torchrun runs for these words.

    Args:
        argv: Torchrun's options, `-m`, the trainer's module and the trainer's words; by default
            this process's.

    Returns:
        The exit status: 0, 1 if a rank failed, 2 for a mistake that was found before the start,
        or 128 plus the number of the signal that ended the run.
    """
    stop_file = StopFile(os.environ)
    signals = _Signals(stop_file)
    signals.handle_start()
    try:
        stop_file.announce()
        announce_launcher(os.environ)
        return _launch(sys.argv[1:] if argv is None else list(argv), signals)
    except FastVideoError as error:
        sys.stderr.write(f"error: {error}\n")
        return _MISTAKE
    finally:
        stop_file.remove()


def check_launch(arguments: TrainArguments) -> RunConfig:
    """Refuses what every rank would refuse, as far as that can be known in a moment.

    Args:
        arguments: The trainer's command line.

    Returns:
        The run file.

    Raises:
        FastVideoError: A variable of the environment, a key of the run file, the data path, a
            model, a class or the checkpoint to resume from cannot be used.
    """
    from fastvideo.hooks.trace_settings import (  # noqa: PLC0415 - imports torch
        check_trace_variables,
    )
    from fastvideo.profiler import TorchProfilerConfig  # noqa: PLC0415 - imports torch
    from fastvideo.train.settings_check import check_settings  # noqa: PLC0415 - imports torch

    check_environment()
    check_trace_variables()
    with errors_only():  # rank 0 repeats every warning where people look for it
        if envs.FASTVIDEO_TORCH_PROFILER_DIR:
            _check_tracing(TorchProfilerConfig.from_env)
        cfg = load_run_config(arguments.config, arguments.overrides)
        check_run(cfg, dry_run=arguments.dry_run)
        check_models(cfg)
        import_foreign_targets(cfg)
        check_settings(cfg)
    return cfg


def grace_s(cfg: RunConfig) -> int:
    """Returns the seconds that ranks have between SIGTERM and SIGKILL.

    Args:
        cfg: The run file; it says whether a run saves first and how long that may take, and how
            long it waits for a scrape.
    """
    from fastvideo.observability import TelemetryConfig  # noqa: PLC0415 - imports torch

    checkpoint = cfg.training.checkpoint
    saves = checkpoint.training_state_checkpointing_steps > 0 and checkpoint.save_on_sigterm
    telemetry = TelemetryConfig.from_sources(os.environ, cfg.observability)
    pending = pending_s(telemetry.final_scrape_s) if telemetry.metrics else pending_s(0)
    return pending + (checkpoint.sigterm_timeout_s if saves else 0)


def describe_failures(failures: Mapping[int, ProcessFailure]) -> list[str]:
    """Returns a line for each rank that failed by itself, without what was said already.

    Args:
        failures: Global rank to what torchrun knows about its end. Ranks that torchrun ended
            because another one had failed are among them.
    """
    recorded = {rank: recorded_failure(f.error_file_data) for rank, f in failures.items()}
    said = {message for message, told in recorded.values() if told}
    first = {r: f for r, f in failures.items() if f.exitcode != -signal.SIGTERM} or failures
    lines: list[str] = []
    for rank, failure in sorted(first.items()):
        end = f"ended with status {failure.exitcode}"
        if failure.exitcode < 0:
            end = f"was ended by {signal.Signals(-failure.exitcode).name}"
        message = recorded[rank][0]
        news = message and message not in said
        lines.append(f"rank {rank} (pid {failure.pid}) {end}" + (f": {message}" if news else ""))
        said.add(message)
    return lines


def _check_tracing(read: Callable[[], object]) -> None:
    try:
        read()
    except FastVideoError:
        raise
    except ValueError as error:  # a variable that is not of its type
        raise ConfigError(str(error)) from error


def _launch(argv: list[str], signals: _Signals) -> int:
    from torch.distributed import run as torchrun  # noqa: PLC0415 - slow; signals come first
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import (  # noqa: PLC0415
        ChildFailedError,
        record,
    )

    options = torchrun.parse_args(argv)  # type: ignore[no-untyped-call]
    if options.nproc_per_node.isdecimal():
        gpus = count_visible_gpus(os.environ)
        check_process_count(int(options.nproc_per_node), gpus=gpus, where="--nproc_per_node")
    cfg = check_launch(parse_arguments(options.training_script_args))
    check_restarts(cfg.training.checkpoint, options.max_restarts)
    with errors_only():
        os.environ.setdefault(_SHUTDOWN_VARIABLE, str(grace_s(cfg)))
    if options.max_restarts:
        # Machines would share one store for all starts, and find the addresses of dead ranks there.
        os.environ.setdefault(_ONE_STORE_VARIABLE, "1")
    options.signals_to_handle = _LEFT_TO_TORCHRUN
    for name in _TORCHRUN_LOGGERS:
        logging.getLogger(name).addFilter(_is_news)
    # Whoever started this process with an error file gets the first failure in it.
    run: Any = torchrun.run
    if os.environ.get("TORCHELASTIC_ERROR_FILE"):
        run = record(run)
    try:
        signals.install(SignalException)
        run(options)
    except SignalException:
        return _SIGNAL_STATUS + signals.first
    except ChildFailedError as error:
        for line in describe_failures(error.failures):
            sys.stderr.write(f"fastvideo: {line}\n")
        if all(failure.exitcode in _ENDED_BY_SIGTERM for failure in error.failures.values()):
            return _SIGNAL_STATUS + signal.SIGTERM  # the ranks got a signal that this did not
        return 1
    return 0


class _Signals:
    """Turns the signals that end a run into the exception that torchrun expects, once each.

    One Ctrl-C often arrives twice, from the terminal and from a script, and an exception inside of
    torchrun's wait for the ranks would end that wait. Who asks again after two seconds means it:
    torchrun then repeats the signal to the ranks, which end at once.

    Args:
        stop_file: Where ranks learn that a signal came here.
    """

    def __init__(self, stop_file: StopFile) -> None:
        self._stop_file = stop_file
        self.first = 0
        self._first_at = 0.0
        self._exception: Any = None

    def handle_start(self) -> None:
        """Lets a signal end this process at once, which has started nothing yet.

        Ctrl-C may wait for this, see `fastvideo train`: an exception inside of an import can come
        out as any other one, or as a traceback.
        """
        self._handle(self._on_early_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def install(self, exception: type[Exception]) -> None:
        """Handles the signals from now on.

        Args:
            exception: Torchrun's `SignalException`.
        """
        self._exception = exception
        self._handle(self._on_signal)

    def _handle(self, handler: Callable[[int, FrameType | None], None]) -> None:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
                signal.signal(number, handler)

    def _on_early_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._stop_file.remove()
        os.write(2, f"fastvideo: stopped by {signal.Signals(number).name}\n".encode())
        os._exit(_SIGNAL_STATUS + number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if self.first and now - self._first_at <= _REPEAT_S:
            return
        self.first = self.first or number
        self._first_at = now
        self._stop_file.write()
        message = f"stopped by {signal.Signals(number).name}"
        os.write(2, f"fastvideo: {message}; the ranks write what is pending\n".encode())
        # The ranks write what is pending on SIGTERM, whichever signal came.
        raise self._exception(message, sigval=signal.SIGTERM)


def _is_news(record: logging.LogRecord) -> bool:
    """Leaves out what this program says in fewer words."""
    return not str(record.msg).startswith(_SAID_HERE)


if __name__ == "__main__":
    sys.exit(main())
