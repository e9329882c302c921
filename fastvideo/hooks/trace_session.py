"""One trace file of a process: the rings of its threads, and the thread that writes it."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from fastvideo.hooks.reduction import EMPTY, summarise
from fastvideo.hooks.trace_ring import ResultRing, TensorEntry, TraceBatch
from fastvideo.hooks.trace_steps import call_at_step_ends, current_step, leave_step_ends
from fastvideo.hooks.trace_writer import LineWriter
from fastvideo.logger import init_logger
from fastvideo.profiler.ranks import current_rank, current_world_size
from fastvideo.profiler.strict_json import dumps
from fastvideo.profiler.trace_metadata import trace_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from fastvideo.hooks.trace_settings import TraceSettings

logger = init_logger(__name__)

FORMAT_VERSION: Final = 1
_CLOSE_S: Final = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class TraceSource:
    """One module of one model.

    Attributes:
        module: Its name in the model.
        role: What the model is for.
        settings: What is recorded of it.
    """

    module: str
    role: str
    settings: TraceSettings


class TraceSession:
    """Records into one file.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid = os.getpid()
        self.users = 0
        self._rank = current_rank()
        self._here = threading.local()
        self._rings: list[ResultRing] = []
        self._lock = threading.Lock()
        self._last_of_step = 0
        self._writer = LineWriter(path, _line(self._header()))
        call_at_step_ends(self.end_step)
        atexit.register(self.close)
        logger.info("activations are traced to %s", path)

    def describe(self, model: torch.nn.Module, role: str, sources: Sequence[TraceSource]) -> None:
        """Writes down which modules of a model are traced.

        Args:
            model: The model.
            role: What it is for.
            sources: The modules, in the model's order.
        """
        settings = sources[0].settings
        record = {
            "kind": "model",
            "role": role,
            "class": f"{type(model).__module__}.{type(model).__qualname__}",
            "layers": settings.layers.pattern if settings.layers else "",
            "statistics": list(settings.statistics),
            "steps": [list(one) for one in settings.steps],
            "modules": [source.module for source in sources],
        }
        self._writer.submit(lambda: _line(record))

    def record(self, source: TraceSource, output: Sequence[tuple[str, Tensor]]) -> None:
        """Starts the passes over the tensors that a module returned.

        Args:
            source: The module.
            output: The tensors with their names.
        """
        if self._writer.failed or os.getpid() != self.pid:
            return
        recompute = _in_backward()
        step = current_step(in_backward=recompute)
        if not source.settings.selects_step(step.index):
            return
        call = step.next_call((source, recompute))
        for name, given in output:
            tensor = given if type(given) is torch.Tensor else _local(given)
            ring = self._ring(tensor)
            if ring is None:
                continue
            full = ring.add(tensor, (source, name, step, call, recompute))
            if full is not None:
                self._submit(full)

    def end_step(self) -> None:
        """Hands over what was recorded, when that of the step before is in the file.

        So a process that is killed loses the step it was in, and at most the one before.
        """
        if os.getpid() != self.pid:
            return
        last = self.flush()
        if last:
            self._writer.wait(self._last_of_step)
            self._last_of_step = last

    def flush(self) -> int:
        """Hands over what was recorded; returns the number of what comes last, 0 for nothing."""
        with self._lock:
            rings = tuple(self._rings)
        batches = [ring.take() for ring in rings]
        return max((self._submit(batch) for batch in batches if batch is not None), default=0)

    def close(self) -> None:
        """Writes everything and closes the file."""
        atexit.unregister(self.close)
        leave_step_ends(self.end_step)
        if os.getpid() == self.pid:
            self.flush()
            self._writer.close(_CLOSE_S)

    def _submit(self, batch: TraceBatch) -> int:
        return self._writer.submit(lambda: self._lines(batch))

    def _ring(self, tensor: Tensor) -> ResultRing | None:
        """Returns the ring of this thread and the tensor's stream; None if it has no numbers."""
        device = tensor.device
        if device.type == "cpu":
            ring: ResultRing | None = getattr(self._here, "cpu", None)
            if ring is None:
                ring = self._here.cpu = self._new_ring(device)
            return ring
        if device.type == "meta":
            return None
        stream = 0
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return None
            stream = torch.cuda.current_stream(device).stream_id
        rings: dict[Any, ResultRing] = self._here.__dict__.setdefault("others", {})
        if (device, stream) not in rings:
            rings[device, stream] = self._new_ring(device)
        return rings[device, stream]

    def _new_ring(self, device: torch.device) -> ResultRing:
        ring = ResultRing(device)
        with self._lock:
            self._rings.append(ring)
        return ring

    def _header(self) -> dict[str, Any]:
        about = trace_metadata(None)
        return {
            "kind": "header",
            "format": "fastvideo activations",
            "version": FORMAT_VERSION,
            "run_id": about["run_id"] or secrets.token_hex(8),
            "rank": self._rank,
            "world_size": current_world_size(),
            "pid": self.pid,
            "host": about["host"],
            "start_unix_ns": time.time_ns(),
            "versions": {name: about[name] for name in ("fastvideo", "torch", "python", "cuda")},
        }

    def _lines(self, batch: TraceBatch) -> bytes:
        batch.wait()
        return b"".join(_line(self._record(entry, batch.table)) for entry in batch.entries)

    def _record(self, entry: TensorEntry, table: Tensor) -> dict[str, Any]:
        """Returns what is written of one tensor."""
        record: dict[str, Any] = {
            "module": entry.source.module,
            "tensor": entry.tensor,
            "step": entry.step.index,
            "call": entry.call,
            "role": entry.source.role,
            "rank": self._rank,
            "shape": list(entry.shape),
            "dtype": str(entry.dtype),
            "numel": _numel(entry.shape),
        }
        if entry.step.loop:
            record["loop"] = entry.step.loop
        if entry.step.entry:
            record["entry"] = entry.step.entry
        if entry.recompute:
            record["recompute"] = True
        if entry.problem:
            return record | {"problem": entry.problem}
        summary = summarise(table[entry.row : entry.row + entry.rows]) if entry.rows else EMPTY
        for name in entry.source.settings.statistics:
            if name not in record:
                record[name] = getattr(summary, name)
        if summary.nan or summary.posinf or summary.neginf:
            counts = (summary.nan, summary.posinf, summary.neginf)
            record["nonfinite"] = dict(zip(("nan", "+inf", "-inf"), counts, strict=True))
        return record


_sessions: dict[Path, TraceSession] = {}
_sessions_lock = threading.Lock()


def open_session(path: Path) -> TraceSession:
    """Returns the session of a file, a new one if there is none; each must be left once.

    Args:
        path: The file. What is in it is overwritten by a new session.

    Raises:
        ConfigError: It cannot be written.
    """
    with _sessions_lock:
        session = _sessions.get(path)
        if session is None or session.pid != os.getpid():
            session = _sessions[path] = TraceSession(path)
        session.users += 1
        return session


def leave_session(session: TraceSession) -> None:
    """Closes a session that nobody uses any more.

    Args:
        session: From :func:`open_session`.
    """
    with _sessions_lock:
        session.users -= 1
        if session.users:
            return
        if _sessions.get(session.path) is session:
            del _sessions[session.path]
    session.close()


def _line(record: dict[str, Any]) -> bytes:
    return dumps(record) + b"\n"


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _local(tensor: Tensor) -> Tensor:
    """Returns what this process has of a tensor that is spread over several."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    with torch.no_grad():
        local: Tensor = to_local()
    return local


def _in_backward() -> bool:
    """Tells whether autograd runs this: then a forward is one that checkpointing does again."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - as torch.utils.checkpoint
