"""One trace file of a process: the rings of its threads, and the thread that writes it."""

from __future__ import annotations

import atexit
import itertools
import math
import os
import secrets
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from fastvideo.hooks.reduction import EMPTY, Summary, join_rows, summarise
from fastvideo.hooks.trace_ring import ResultRing, TensorEntry, TraceBatch
from fastvideo.hooks.trace_steps import (
    TraceStep,
    call_at_step_ends,
    current_step,
    leave_step_ends,
)
from fastvideo.hooks.trace_writer import LineWriter, WrittenFile
from fastvideo.logger import init_logger
from fastvideo.profiler.ranks import current_rank, current_world_size
from fastvideo.profiler.strict_json import dumps
from fastvideo.profiler.trace_metadata import trace_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from fastvideo.hooks.trace_settings import TraceSettings

logger = init_logger(__name__)

FORMAT_VERSION: Final = 1
_CLOSE_S: Final = 60.0
_CPU: Final = torch.device("cpu")
_NO_TASK: Final = -1
_graph_task: Final = torch._C._current_graph_task_id  # noqa: SLF001 - as torch.utils.checkpoint


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
        before: What this process has written there before, where it has.

    Attributes:
        path: The file that was asked for.
        users: How many models are traced into it.
        is_parents: Whether this is a forked child, in which nothing is recorded.

    Raises:
        ConfigError: It cannot be written.
    """

    def __init__(self, path: Path, before: WrittenFile | None = None) -> None:
        self.path = path
        self.users = 0
        self.is_parents = False
        self._rank = current_rank()
        self._outside = TraceStep(None)
        self._entered: defaultdict[Hashable, Iterator[int]] = defaultdict(itertools.count)
        self._rings: list[ResultRing] = []
        self._lock = threading.Lock()
        self._here = _RingsOfThread(self._new_ring)
        self._last_of_step = 0
        self._writer = LineWriter(path, _line(self._header()), before=before)
        call_at_step_ends(self.end_step)
        atexit.register(self.close)
        logger.info("activations are traced to %s", self._writer.path)

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
        if self._writer.stopped:
            return
        # A forward that autograd runs is one that checkpointing does again.
        recompute = _graph_task() != _NO_TASK
        step = current_step(in_backward=recompute) or self._outside
        settings = source.settings
        if settings.steps and not settings.selects_step(step.index):
            return
        if self not in step.entries:
            step.entries[self] = next(self._entered[step.loop, step.index])
        call = step.next_call((source,) if recompute else source)
        for name, given in output:
            tensor = given if type(given) is torch.Tensor else _local(given)
            ring = self._here.cpu if tensor.device == _CPU else self._device_ring(tensor)
            if ring is None:
                continue
            full = ring.add(tensor, (source, name, step, call, recompute))
            if full is not None:
                self._submit(full)

    def end_step(self) -> None:
        """Hands over what was recorded, when that of the step before is in the file.

        So a process that is killed loses the step it was in, and at most the one before.
        """
        if self.is_parents:
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

    def close(self) -> WrittenFile | None:
        """Writes everything and closes the file.

        Returns:
            The file; None where it is not complete.
        """
        atexit.unregister(self.close)
        leave_step_ends(self.end_step)
        if self.is_parents:
            return None
        self.flush()
        return self._writer.close(_CLOSE_S)

    def leave_to_parent(self) -> None:
        """Records no more, in a forked child."""
        self.is_parents = True
        self._writer.stopped = True

    def _submit(self, batch: TraceBatch) -> int:
        return self._writer.submit(lambda: self._lines(batch))

    def _device_ring(self, tensor: Tensor) -> ResultRing | None:
        """Returns the ring of this thread and the tensor's stream; None if it has no numbers."""
        device = tensor.device
        if device.type == "meta":
            return None
        stream = 0
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return None
            stream = torch.cuda.current_stream(device).stream_id
        rings = self._here.others
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
            "pid": os.getpid(),
            "host": about["host"],
            "start_unix_ns": time.time_ns(),
            "versions": {name: about[name] for name in ("fastvideo", "torch", "python", "cuda")},
        }

    def _lines(self, batch: TraceBatch) -> bytes:
        batch.wait()
        rows = batch.table[: batch.used].tolist()
        lines = []
        for entry in map(TensorEntry._make, batch.entries):
            summary = EMPTY
            if entry.rows == 1:
                summary = summarise(rows[entry.row])
            elif entry.rows:
                summary = summarise(join_rows(batch.table[entry.row : entry.row + entry.rows]))
            lines.append(_line(self._record(entry, summary)))
        return b"".join(lines)

    def _record(self, entry: TensorEntry, summary: Summary) -> dict[str, Any]:
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
            "numel": math.prod(entry.shape),
        }
        if entry.step.loop:
            record["loop"] = entry.step.loop
        if entry.step.entries[self]:
            record["entry"] = entry.step.entries[self]
        if entry.recompute:
            record["recompute"] = True
        if entry.problem:
            return record | {"problem": entry.problem}
        for name in entry.source.settings.statistics:
            if name not in record:
                record[name] = getattr(summary, name)
        if summary.nan or summary.posinf or summary.neginf:
            counts = (summary.nan, summary.posinf, summary.neginf)
            record["nonfinite"] = dict(zip(("nan", "+inf", "-inf"), counts, strict=True))
        return record


class _RingsOfThread(threading.local):
    """The rings of one thread: that of host memory, and those of streams of devices."""

    def __init__(self, new_ring: Callable[[torch.device], ResultRing]) -> None:
        self.cpu = new_ring(_CPU)
        self.others: dict[tuple[torch.device, int], ResultRing] = {}


class _Sessions(dict["Path", TraceSession]):
    """Those of this process, by file; a forked child has none."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.written: dict[Path, WrittenFile] = {}
        # A garbage collector may run anywhere, even where a lock is held: it leaves a note only.
        self.forsaken: deque[TraceSession] = deque()
        self._watches_forks = False

    def watch_forks(self) -> None:
        """Leaves the sessions to this process when it forks."""
        if not self._watches_forks:
            self._watches_forks = True
            os.register_at_fork(after_in_child=self._leave_parent)

    def _leave_parent(self) -> None:
        for session in self.values():
            session.leave_to_parent()
        self.clear()
        self.written.clear()
        self.forsaken.clear()
        self.lock = threading.Lock()


_sessions: Final = _Sessions()


def open_session(path: Path) -> TraceSession:
    """Returns the session of a file, a new one if there is none; each must be left once.

    Args:
        path: The file. What is in it is overwritten; if it comes from this process, it is kept
            under another name.

    Raises:
        ConfigError: It cannot be written.
    """
    with _sessions.lock:
        _sessions.watch_forks()
        _leave_forsaken()
        session = _sessions.get(path)
        if session is None:
            session = _sessions[path] = TraceSession(path, _sessions.written.get(path))
        session.users += 1
        return session


def leave_session(session: TraceSession) -> None:
    """Closes a session that nobody uses any more.

    Args:
        session: From :func:`open_session`.
    """
    with _sessions.lock:
        _leave(session)
        _leave_forsaken()


def forsake_session(session: TraceSession) -> None:
    """Leaves a session as soon as another is opened or left, or at the end of the process.

    Unlike :func:`leave_session`, it may be called by the garbage collector.

    Args:
        session: From :func:`open_session`.
    """
    _sessions.forsaken.append(session)


def _leave_forsaken() -> None:
    while _sessions.forsaken:
        _leave(_sessions.forsaken.popleft())


def _leave(session: TraceSession) -> None:
    session.users -= 1
    if session.users:
        return
    if _sessions.get(session.path) is session:
        del _sessions[session.path]
    written = session.close()
    if written is not None:
        _sessions.written[session.path] = written


def _line(record: dict[str, Any]) -> bytes:
    return dumps(record) + b"\n"


def _local(tensor: Tensor) -> Tensor:
    """Returns what this process has of a tensor that is spread over several."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    with torch.no_grad():
        local: Tensor = to_local()
    return local
