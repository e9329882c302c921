"""Who a run is: its identifier, its attempt, this process's place in it, agreed once at start.

Every rank derives the ids of its traces from what stands here, so nothing has to be exchanged
inside of the training loop. All randomness is the operating system's: seeds that a program sets
do not make two runs the same.
"""

from __future__ import annotations

import math
import re
import secrets
import socket
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch.distributed

from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = init_logger(__name__)

TraceParent = tuple[int, int, bool]

_INSTANCE_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "telemetry.fastvideo")
_HOST_ID_FILES: Final = (
    Path("/etc/machine-id"),
    Path("/var/lib/dbus/machine-id"),
    Path("/proc/sys/kernel/random/boot_id"),
)
_TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.DOTALL,
)
_MAX_TEXT: Final = 200
_MAX_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """A process of a run, as telemetry names it. Everything but the last places is equal on ranks.

    Attributes:
        run_id: Identifier of the run; stays the same when the run is resumed under the same name.
        attempt: Restart count of the launcher and a nonce; differs each time the run starts.
        run_name: The run's name, for people.
        rank: Global rank of this process.
        world_size: Number of ranks.
        local_rank: Rank on this node.
        host_name: Name of this node.
        host_id: Identifier of this node: the machine id, else the boot id, else its name.
        sampler_ratio: Part of the steps whose traces are kept, 0 to 1.
        traceparent: Trace id (128 bit), span id (64 bit) and sampled flag of what started the
            run, or None.
    """

    run_id: str
    attempt: str
    run_name: str
    rank: int
    world_size: int
    local_rank: int
    host_name: str
    host_id: str
    sampler_ratio: float
    traceparent: TraceParent | None

    @property
    def service_instance_id(self) -> str:
        """UUIDv5 of run, attempt and rank: the same in every process that is forked from here."""
        return str(uuid.uuid5(_INSTANCE_NAMESPACE, f"{self.run_id}/{self.attempt}/{self.rank}"))


@dataclass(frozen=True, slots=True)
class _Agreed:
    """What rank 0 decides for all."""

    run_id: str
    attempt: str
    run_name: str
    sampler_ratio: float
    traceparent: TraceParent | None


def agree(
    *,
    run_name: str,
    ratio: float,
    environ: Mapping[str, str],
    broadcast: Callable[[object], object] | None,
) -> RunIdentity:
    """Returns this process's identity; all ranks must call it, once, at start.

    The run's identifier is ``FASTVIDEO_RUN_ID``, else the trace that ``TRACEPARENT`` names, else
    the launcher's (``TORCHELASTIC_RUN_ID``), else drawn. Nothing here looks anything up on a
    network, and no value of a variable makes it raise.

    Args:
        run_name: The run's name; empty: its identifier.
        ratio: Part of the steps whose traces are kept, 0 to 1.
        environ: The environment.
        broadcast: Returns rank 0's argument on every rank; None: there is nobody to agree with.
            If it fails, a warning says so and this rank goes by its environment alone.

    Returns:
        The identity. Without ``broadcast`` in a run of several ranks, the attempt is the restart
        count alone, which all ranks know.
    """
    rank, world_size = _place(environ)
    alone = broadcast is None and world_size > 1
    proposed = _propose(run_name, ratio, environ, nonce=not alone)
    agreed = proposed if broadcast is None else _broadcast(proposed, broadcast)
    host_name = _clean(socket.gethostname()) or "localhost"
    return RunIdentity(
        run_id=agreed.run_id,
        attempt=agreed.attempt,
        run_name=agreed.run_name,
        rank=rank,
        world_size=world_size,
        local_rank=_number(environ, "LOCAL_RANK") or 0,
        host_name=host_name,
        host_id=read_host_id(_HOST_ID_FILES) or host_name,
        sampler_ratio=agreed.sampler_ratio,
        traceparent=agreed.traceparent,
    )


def parse_traceparent(text: str) -> TraceParent | None:
    """Reads a W3C ``traceparent``.

    Args:
        text: Such as ``00-<32 hex digits>-<16 hex digits>-01``; versions to come are read as far
            as this one goes, as their specification asks.

    Returns:
        Trace id, span id and sampled flag; None if ``text`` is malformed.
    """
    found = _TRACEPARENT.fullmatch(text.strip(" \t"))
    if found is None or (found["version"] == "00" and found["more"] is not None):
        return None
    trace_id, span_id = int(found["trace"], 16), int(found["span"], 16)
    if trace_id == 0 or span_id == 0:
        return None
    return trace_id, span_id, bool(int(found["flags"], 16) & 1)


def read_host_id(files: tuple[Path, ...]) -> str:
    """Returns the first line that one of ``files`` has to offer, or an empty text."""
    for file in files:
        try:
            line = file.read_text("utf-8", "replace").strip()
        except OSError:
            continue
        if line and line != "uninitialized":
            return line.splitlines()[0]
    return ""


def _propose(run_name: str, ratio: float, environ: Mapping[str, str], *, nonce: bool) -> _Agreed:
    """Returns what this process would decide."""
    traceparent = _traceparent(environ)
    run_id = (
        _clean(environ.get("FASTVIDEO_RUN_ID", ""))
        or (f"{traceparent[0]:032x}" if traceparent else "")
        or _launcher_run_id(environ)
        or secrets.token_hex(8)
    )
    restarts = _number(environ, "TORCHELASTIC_RESTART_COUNT")
    if restarts is None:
        restarts = _number(environ, "SLURM_RESTART_COUNT") or 0
    return _Agreed(
        run_id=run_id,
        attempt=f"{restarts}-{secrets.token_hex(4)}" if nonce else str(restarts),
        run_name=_clean(run_name) or run_id,
        sampler_ratio=1.0 if math.isnan(ratio) else min(max(float(ratio), 0.0), 1.0),
        traceparent=traceparent,
    )


def _broadcast(proposed: _Agreed, broadcast: Callable[[object], object]) -> _Agreed:
    """Returns what rank 0 proposed, or what this rank can know by itself."""
    problem: object = None
    try:
        received = broadcast(proposed)
    except Exception as error:  # noqa: BLE001 - telemetry never ends a run
        problem = type(error).__name__
    else:
        if isinstance(received, _Agreed):
            return received
        problem = f"got a {type(received).__name__} from rank 0"
    logger.warning(
        "the ranks could not agree on the run's identity (%s): traces of different ranks may not "
        "belong together; FASTVIDEO_RUN_ID names the run without agreeing",
        problem,
    )
    restarts, _, _ = proposed.attempt.partition("-")
    return replace(proposed, attempt=restarts)


def _traceparent(environ: Mapping[str, str]) -> TraceParent | None:
    text = environ.get("TRACEPARENT", "")
    parsed = parse_traceparent(text)
    if parsed is None and text.strip():
        logger.warning(
            "environment variable TRACEPARENT=%.80r is not of the form "
            "00-<32 hex digits>-<16 hex digits>-<2 hex digits> and is ignored",
            text,
        )
    return parsed


def _launcher_run_id(environ: Mapping[str, str]) -> str:
    named = _clean(environ.get("TORCHELASTIC_RUN_ID", ""))
    return "" if named == "none" else named


def _place(environ: Mapping[str, str]) -> tuple[int, int]:
    """Returns rank and world size: of the process group, else of the launcher, else 0 of 1."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _number(environ, "RANK") or 0, max(1, _number(environ, "WORLD_SIZE") or 1)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def _clean(text: str) -> str:
    """Returns printable UTF-8 of bounded length: what every exporter can carry."""
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(c for c in encodable if c.isprintable()).strip()[:_MAX_TEXT]
