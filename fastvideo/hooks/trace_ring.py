"""Results that wait on their device, and leave it together."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from fastvideo.hooks.reduction import FIELDS, reducer_for

if TYPE_CHECKING:
    from torch import Tensor

    from fastvideo.hooks.trace_steps import TraceStep

_HOST_ROWS: Final = 1_024
_DEVICE_ROWS: Final = 32_768


class TensorEntry(NamedTuple):
    """One tensor that was seen.

    Attributes:
        source: Of which module of which model.
        tensor: Where it is in the output, such as ``out[0]``.
        step: When it was.
        call: How often the module was called before in this step.
        recompute: Whether the forward was one of a backward pass.
        shape: Its sizes.
        dtype: Its type.
        row: The first of its rows.
        rows: How many it has; none for a tensor without elements, or without numbers to read.
        problem: Why it could not be read; empty if it could.
    """

    source: Any
    tensor: str
    step: TraceStep
    call: int
    recompute: bool
    shape: torch.Size
    dtype: torch.dtype
    row: int
    rows: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TraceBatch:
    """What left a ring together.

    Attributes:
        entries: The fields of a :class:`TensorEntry` for each tensor, in the order in which they
            were seen.
        table: Their rows, in host memory once ``ready`` is.
        used: How many of the rows are theirs.
        ready: Event of the device, or None where the rows are there already.
    """

    entries: list[tuple[Any, ...]]
    table: Tensor
    used: int
    ready: Any

    def wait(self) -> None:
        """Waits for the copy to the host."""
        if self.ready is not None:
            self.ready.synchronize()


class ResultRing:
    """The results of one thread on one stream of one device.

    Nothing but :meth:`take` copies from the device, all results at once, and nothing at all waits.

    Args:
        device: Where the tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._capacity = _HOST_ROWS if device.type == "cpu" else _DEVICE_ROWS
        self._reducer = reducer_for(device.type)
        self._table = self._new_table()
        self._used = 0
        self._entries: list[tuple[Any, ...]] = []
        self.lock = threading.Lock()

    def add(self, tensor: Tensor, what: tuple[Any, str, TraceStep, int, bool]) -> TraceBatch | None:
        """Starts the pass over a tensor; holds :attr:`lock` meanwhile.

        Args:
            tensor: The tensor.
            what: The first fields of its :class:`TensorEntry`.

        Returns:
            What was in the ring before, if there was no room.
        """
        numel = tensor.numel() * (2 if tensor.dtype.is_complex else 1)
        full: TraceBatch | None = None
        with self.lock:
            rows = self._reducer.rows(numel) if numel else 0
            if self._used + rows > self._capacity:
                full = self._take()
            problem = ""
            if rows:
                try:
                    self._reducer.reduce(tensor, self._table, self._used)
                except Exception as error:  # noqa: BLE001 - exotic tensors fail in many ways
                    rows, problem = 0, type(error).__name__
            # A plain tuple: a named one would take longer than many a pass.
            self._entries.append((*what, tensor.shape, tensor.dtype, self._used, rows, problem))
            self._used += rows
        return full

    def take(self) -> TraceBatch | None:
        """Empties the ring and returns what was in it; None if there was nothing."""
        with self.lock:
            return self._take()

    def _take(self) -> TraceBatch | None:
        if not self._entries:
            return None
        entries, self._entries = self._entries, []
        used, self._used = self._used, 0
        if not self._is_cuda:
            table = self._table if self._device.type == "cpu" else self._table[:used].cpu()
            if self._device.type == "cpu":
                self._table = self._new_table()
            return TraceBatch(entries, table, used, None)
        # The next results are written by the same stream, after the copy.
        host = torch.empty((used, len(FIELDS)), dtype=torch.float64, pin_memory=True)
        host.copy_(self._table[:used], non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return TraceBatch(entries, host, used, ready)

    def _new_table(self) -> Tensor:
        dtype = torch.float32 if self._device.type == "mps" else torch.float64
        with torch.inference_mode(mode=False):
            return torch.empty((self._capacity, len(FIELDS)), dtype=dtype, device=self._device)
