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

from fastvideo.errors import ConfigError, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastvideo.train.entrypoint.arguments import TrainArguments

LAUNCHER = "fastvideo.train.entrypoint.launch"
"""The program that is torchrun with checks before and a short report after."""

ENTRY_POINT = "fastvideo.train.entrypoint.train"
LOOPBACK = "127.0.0.1"
SHARED_PORT = 29501
"""Port where several nodes meet unless told otherwise; they cannot agree on a free one."""

PROCESSES_PER_CORE = 4
"""How many processes without a GPU of their own a core may have before a run is refused."""

_WANDB_HOST = "api.wandb.ai"
_NVIDIA_SMI_TIMEOUT_S = 30.0
_LARGEST_PORT = 65535


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
    max_restarts: int | None = None,
    visible_gpus: int | None = None,
) -> LaunchPlan:
    """Decides how a run is started.

    Args:
        arguments: The trainer's command line.
        environ: The environment: `NUM_GPUS`, `NNODES`, `NODE_RANK`, `MASTER_ADDR`, `MASTER_PORT`,
            `MAX_RESTARTS`, `WANDB_API_KEY` and `WANDB_MODE` are understood; empty counts as unset.
        num_gpus: Processes on this node; wins over `NUM_GPUS`.
        max_restarts: How often all ranks are started again after one has failed; wins over
            `MAX_RESTARTS`.
        visible_gpus: GPUs of this machine; counted when None.

    Raises:
        ConfigError: One of the numbers in the environment is none, or there would be far more
            processes than cores.
    """
    gpus = count_visible_gpus(environ) if visible_gpus is None else visible_gpus
    notes: list[str] = []
    restarts = restarts_asked_for(environ) if max_restarts is None else max_restarts
    processes = num_gpus if num_gpus is not None else _whole_number(environ, "NUM_GPUS", 0)
    check_process_count(
        processes, gpus=gpus, where="NUM_GPUS" if num_gpus is None else "--num-gpus"
    )
    if processes <= 0:
        processes = max(gpus, 1)
        if gpus == 0:
            notes.append("no GPU found and NUM_GPUS is not set: one process on the CPU (gloo)")
    elif gpus == 0:
        notes.append(f"no GPU found: {counted(processes, 'process')} on the CPU (gloo)")
    elif processes > gpus:
        notes.append(
            f"{processes} processes were asked for, but only {counted(gpus, 'GPU')} "
            f"{'is' if gpus == 1 else 'are'} visible"
        )
    environment = _environment(environ, on_cpu=gpus == 0, notes=notes)
    argv = (
        sys.executable,
        *("-m", LAUNCHER),
        *_rendezvous(environ, restarts=restarts),
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


def check_process_count(processes: int, *, gpus: int, where: str, cores: int | None = None) -> None:
    """Refuses more processes than this machine can have any use for, before one is started.

    Args:
        processes: How many are to be started here.
        gpus: GPUs of this machine.
        where: Where the number was given, for the message.
        cores: Cores of this machine; counted when None.

    Raises:
        ConfigError: There are more than four for each core, and more than there are GPUs.
    """
    cores = cores or os.cpu_count() or 1
    most = max(gpus, PROCESSES_PER_CORE * cores)
    if processes > most:
        message = (
            f"{where} asks for {counted(processes, 'process')} on a machine with "
            f"{counted(gpus, 'GPU')} and {counted(cores, 'core')}; expected one for each GPU, or "
            f"at most {PROCESSES_PER_CORE} for each core: "
            f"set {where} to {most} or less"
        )
        raise ConfigError(message)


def restarts_asked_for(environ: Mapping[str, str]) -> int:
    """Returns `MAX_RESTARTS`, or 0.

    Args:
        environ: Where it is looked up.

    Raises:
        ConfigError: It is no whole number.
    """
    return _whole_number(environ, "MAX_RESTARTS", 0, at_least=0)


def _rendezvous(environ: Mapping[str, str], *, restarts: int) -> tuple[str, ...]:
    """Returns torchrun's options on where the ranks meet.

    Machines with fixed ranks do not hear that the ranks of another one have failed. Those that may
    start again meet in a store that the first of them keeps, and may get other ranks there.
    """
    nodes = _whole_number(environ, "NNODES", 1)
    node = _node_rank(environ, nodes)
    address = environ.get("MASTER_ADDR") or LOOPBACK
    default_port = find_free_port() if nodes == 1 else SHARED_PORT
    port = _whole_number(environ, "MASTER_PORT", default_port, at_most=_LARGEST_PORT)
    size = ("--nnodes", str(nodes), *(("--max_restarts", str(restarts)) if restarts else ()))
    if nodes == 1 or not restarts:
        meeting = ("--node_rank", str(node), "--master_addr", address, "--master_port", str(port))
        return (*size, *meeting)
    return (
        *size,
        *("--rdzv_backend", "c10d", "--rdzv_endpoint", f"{address}:{port}"),
        *("--rdzv_id", environ.get("SLURM_JOB_ID") or "fastvideo"),
        *("--rdzv_conf", f"is_host={int(node == 0)}"),
        *(("--local_addr", address) if node == 0 else ()),
    )


def _node_rank(environ: Mapping[str, str], nodes: int) -> int:
    node = _whole_number(environ, "NODE_RANK", 0, at_least=0)
    if node >= nodes:
        message = (
            f"environment variable NODE_RANK={node}: expected a number from 0 to {nodes - 1}, as "
            f"NNODES is {nodes}; every machine needs a NODE_RANK of its own"
        )
        raise ConfigError(message)
    return node


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


def _whole_number(
    environ: Mapping[str, str],
    name: str,
    default: int,
    *,
    at_least: int = 1,
    at_most: int | None = None,
) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    beyond = "" if at_most is None else f" and at most {at_most}"
    number = int(text) if text.isdecimal() else -1
    if number < at_least or (at_most is not None and number > at_most):
        message = (
            f"environment variable {name}={text!r}: expected a whole number of at least "
            f"{at_least}{beyond}; unset it to let the launcher decide"
        )
        raise ConfigError(message)
    return int(text)
