"""The command line of the trainer, shared by everything that starts one."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPILOG = """\
Every other option overrides a key of the run file:
  --training.loop.max_train_steps 6      a typed key; an unknown one is an error
  --training.data.data_path=data/mine    the same with an equals sign
  '--models.*.init_from' DIR             the same key in every role
  --method.cfg_uncond '{text: zero}'     a YAML list or mapping
  --callbacks.validation.every_steps 0   a free section; any key is accepted
"""


@dataclass(frozen=True, slots=True)
class TrainArguments:
    """What the command line asks for.

    Attributes:
        config: The run file.
        dry_run: Build everything and stop before the first step.
        overrides: Words for `load_run_config`, in order.
    """

    config: Path
    dry_run: bool
    overrides: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the trainer's own options and its notes to a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="run file in YAML"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="load the config, build models, method and data loader, then stop",
    )
    parser.add_argument(
        "--resume-from-checkpoint",
        metavar="PATH",
        help="same as --training.checkpoint.resume_from_checkpoint",
    )
    parser.add_argument(
        "--override-output-dir",
        metavar="DIR",
        help="same as --training.checkpoint.output_dir",
    )


def parse_arguments(argv: Sequence[str], *, prog: str | None = None) -> TrainArguments:
    """Splits a command line into the trainer's options and overrides.

    Args:
        argv: The words after the program's name.
        prog: The program's name in messages.

    Raises:
        SystemExit: `--config` is missing (status 2), or help was asked for (status 0).
    """
    parser = argparse.ArgumentParser(
        prog=prog, description="Train from a run file.", allow_abbrev=False
    )
    add_arguments(parser)
    known, rest = parser.parse_known_args(list(argv))
    return collect_arguments(known, rest)


def collect_arguments(known: argparse.Namespace, rest: Sequence[str]) -> TrainArguments:
    """Makes `TrainArguments` of what a parser with `add_arguments` gave.

    Args:
        known: What the parser recognised.
        rest: The words it did not.
    """
    aliases = (
        ("--training.checkpoint.resume_from_checkpoint", known.resume_from_checkpoint),
        ("--training.checkpoint.output_dir", known.override_output_dir),
    )
    extra = tuple(f"{path}={value}" for path, value in aliases if value is not None)
    return TrainArguments(known.config, known.dry_run, (*rest, *extra))
