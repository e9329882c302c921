"""`fastvideo train`: checks the run file, then becomes the launcher."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastvideo.errors import ConfigError, FastVideoError, import_extra
from fastvideo.train.entrypoint.arguments import TrainArguments, add_arguments, collect_arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_DESCRIPTION = """\
Trains from a run file, with one process per GPU of this machine; on a machine without
GPUs, one process on the CPU. The run file and the overrides are checked first.

Environment: NUM_GPUS, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT, MAX_RESTARTS,
WANDB_API_KEY, WANDB_MODE. Relative paths are relative to the current directory."""


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type is private
    """Adds the command to the parser's subcommands."""
    parser = subparsers.add_parser(
        "train",
        help="train from a YAML run file, one process per GPU",
        description=_DESCRIPTION,
        allow_abbrev=False,
    )
    add_arguments(parser)
    parser.add_argument(
        "--num-gpus",
        type=int,
        metavar="N",
        help="processes on this machine (default: NUM_GPUS, or all GPUs)",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        metavar="N",
        help="how often all ranks start again after one has failed (default: MAX_RESTARTS, or 0)",
    )
    parser.set_defaults(run=run, takes_overrides=True)


def run(args: argparse.Namespace) -> int:
    """Replaces this process by the launcher, so that signals and the exit status are its own.

    Args:
        args: The parsed options; `args.rest` holds the overrides.

    Raises:
        ConfigError: The run file, an override or a variable of the environment is wrong.
    """
    import_extra("yaml", extra="train")
    from fastvideo.train.launcher import (  # noqa: PLC0415 - needs the extra
        plan_launch,
        restarts_asked_for,
    )
    from fastvideo.train.preflight import (  # noqa: PLC0415 - needs the extra
        check_environment,
        check_restarts,
        check_run,
    )
    from fastvideo.train.run_config import load_run_config  # noqa: PLC0415 - needs the extra

    if args.num_gpus is not None and args.num_gpus < 1:
        message = f"--num-gpus: expected a whole number of at least 1, got {args.num_gpus}"
        raise ConfigError(message)
    arguments: TrainArguments = collect_arguments(args, args.rest)
    with _warnings_if_it_fails():
        check_environment()
        cfg = load_run_config(arguments.config, arguments.overrides)
        check_run(cfg, dry_run=arguments.dry_run)
        restarts = args.max_restarts
        restarts = restarts_asked_for(os.environ) if restarts is None else restarts
        check_restarts(cfg.training.checkpoint, restarts)
    plan = plan_launch(arguments, os.environ, num_gpus=args.num_gpus, max_restarts=restarts)
    for note in plan.notes:
        sys.stderr.write(f"fastvideo: {note}\n")
    sys.stderr.flush()
    # Ctrl-C waits until the launcher handles it: it would be a traceback out of an import.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.execve(plan.argv[0], plan.argv, dict(plan.environ))  # noqa: S606 - fixed program, no shell
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Collected(logging.Handler):
    """Keeps records instead of writing them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the record."""
        self.records.append(record)


@contextmanager
def _warnings_if_it_fails() -> Iterator[None]:
    """Shows warnings of the body only above an error that they may explain.

    Otherwise rank 0 reads the same file in a moment and warns in the log of the run.
    """
    root = logging.getLogger("fastvideo")
    collected = _Collected()
    propagate, root.propagate = root.propagate, False
    root.addHandler(collected)
    try:
        yield
    except FastVideoError:
        for record in collected.records:
            sys.stderr.write(f"warning: {record.getMessage()}\n")
        raise
    finally:
        root.removeHandler(collected)
        root.propagate = propagate
