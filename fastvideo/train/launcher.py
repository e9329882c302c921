"""What the launch is started with: processes, ports and environment, decided from this machine.

Works without a GPU, without `nvidia-smi`, without a Weights & Biases key, and beside other runs on
the same machine. It only plans; `fastvideo train` and `examples/train/run.sh` start the plan.
"""

from __future__ import annotations

import netrc
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.train.entrypoint.arguments import TrainArguments

LAUNCHER = "fastvideo.train.entrypoint.launch"
"""The program that is torchrun with checks before and a short report after."""

ENTRY_POINT = "fastvideo.train.entrypoint.train"
LOOPBACK = "127.0.0.1"
SHARED_PORT = 29501
"""Port where several nodes meet unless told otherwise; they cannot agree on a free one."""

_WANDB_HOST = "api.wandb.ai"
_NVIDIA_SMI_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One launch of the trainer.

    Attributes:
        argv: The command line.
        environ: The whole environment of the new process.
        notes: Lines that tell a person what was decided for them.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    notes: tuple[str, ...]


def plan_launch(
    arguments: TrainArguments,
    environ: Mapping[str, str],
    *,
    num_gpus: int | None = None,
    visible_gpus: int | None = None,
) -> LaunchPlan:
    """Decides how a run is started.

    Args:
        arguments: The trainer's command line.
        environ: The environment: `NUM_GPUS`, `NNODES`, `NODE_RANK`, `MASTER_ADDR`, `MASTER_PORT`,
            `WANDB_API_KEY` and `WANDB_MODE` are understood; empty counts as unset.
        num_gpus: Processes on this node; wins over `NUM_GPUS`.
        visible_gpus: GPUs of this machine; counted when None.

    Raises:
        ConfigError: One of the numbers in the environment is none.
    """
    gpus = count_visible_gpus(environ) if visible_gpus is None else visible_gpus
    notes: list[str] = []
    processes = num_gpus if num_gpus is not None else _positive(environ, "NUM_GPUS", 0)
    if processes <= 0:
        processes = max(gpus, 1)
        if gpus == 0:
            notes.append("no GPU found and NUM_GPUS is not set: one process on the CPU (gloo)")
    elif gpus == 0:
        notes.append(f"no GPU found: {processes} process(es) on the CPU (gloo)")
    elif processes > gpus:
        notes.append(f"{processes} processes were asked for, but only {gpus} GPU(s) are visible")
    environment = _environment(environ, on_cpu=gpus == 0, notes=notes)
    argv = (
        sys.executable,
        *("-m", LAUNCHER),
        *_rendezvous(environ),
        *("--nproc_per_node", str(processes)),
        *("-m", ENTRY_POINT, "--config", str(arguments.config)),
        *(("--dry-run",) if arguments.dry_run else ()),
        *arguments.overrides,
    )
    return LaunchPlan(argv, environment, tuple(notes))


def count_visible_gpus(environ: Mapping[str, str]) -> int:
    """Returns how many NVIDIA GPUs a process with this environment may use; 0 if in doubt.

    Args:
        environ: Where `CUDA_VISIBLE_DEVICES` and `PATH` are looked up.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return 0
    try:
        listing = subprocess.run(
            [program, "-L"],
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    present = sum(line.startswith("GPU ") for line in listing.splitlines())
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    entries = [entry.strip() for entry in chosen.split(",")]
    # CUDA ignores everything from the first invalid entry on, and -1 is the usual one.
    valid = entries.index("-1") if "-1" in entries else len(entries)
    return min(present, sum(bool(entry) for entry in entries[:valid]))


def find_free_port() -> int:
    """Returns a TCP port of the loopback interface that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _rendezvous(environ: Mapping[str, str]) -> tuple[str, ...]:
    nodes = _positive(environ, "NNODES", 1)
    default_port = find_free_port() if nodes == 1 else SHARED_PORT
    return (
        *("--nnodes", str(nodes)),
        *("--node_rank", environ.get("NODE_RANK") or "0"),
        *("--master_addr", environ.get("MASTER_ADDR") or LOOPBACK),
        *("--master_port", str(_positive(environ, "MASTER_PORT", default_port))),
    )


def _environment(environ: Mapping[str, str], *, on_cpu: bool, notes: list[str]) -> dict[str, str]:
    result = dict(environ)
    result.setdefault("TOKENIZERS_PARALLELISM", "false")
    result.setdefault("PYTHONUNBUFFERED", "1")
    if on_cpu and not result.get("OMP_NUM_THREADS"):
        # Small models on CPU spend most of their time waking threads otherwise: 10 to 20 times.
        result["OMP_NUM_THREADS"] = "1"
    if not result.get("WANDB_API_KEY"):
        result.pop("WANDB_API_KEY", None)
        if not result.get("WANDB_MODE") and not _logged_in_to_wandb(environ):
            result["WANDB_MODE"] = "offline"
            notes.append(
                "no WANDB_API_KEY and WANDB_MODE is not set: Weights & Biases stays offline "
                "('wandb sync' uploads later)"
            )
    return result


def _logged_in_to_wandb(environ: Mapping[str, str]) -> bool:
    """`wandb login` keeps the key in the user's netrc file."""
    path = Path(environ.get("NETRC") or Path(environ.get("HOME") or os.curdir) / ".netrc")
    try:
        return netrc.netrc(path).authenticators(_WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return False


def _positive(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        message = (
            f"environment variable {name}={text!r}: expected a whole number of at least 1; "
            f"unset it to let the launcher decide"
        )
        raise ConfigError(message)
    return int(text)
