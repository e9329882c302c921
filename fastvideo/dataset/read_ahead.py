"""Threads that read the batches that will be asked for next while the current one is used."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.dataset.sampler import IndexBatch

T = TypeVar("T")

BATCHES_PER_THREAD: Final = 2
"""Batches that are being read or ready for each thread, beside the one that was asked for."""


@final
class ReadAhead(Generic[T]):
    """Threads that load the next batches.

    They change when a batch is read and nothing else: what comes next is computed, not taken from
    an iterator, so no saved state moves. The threads start with the first batch, start anew in a
    forked process, and end with this object or the interpreter, whichever ends first.

    Args:
        load: Loads one batch. It is run by all threads at once, and must not depend on anything
            but its argument.
        following: Returns the batch that will most likely be asked for after another one.
        threads: Their number.
    """

    def __init__(
        self,
        load: Callable[[IndexBatch], T],
        following: Callable[[IndexBatch], IndexBatch],
        *,
        threads: int,
    ) -> None:
        self._load = load
        self._following = following
        self._threads = threads
        self._pid = -1
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[tuple[IndexBatch, Future[T]]] = deque()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_pool": None, "_pending": deque()}

    def fetch(self, batch: IndexBatch) -> T:
        """Returns ``batch`` and has the batches that follow it loaded.

        Raises:
            Exception: Whatever ``load`` raised for ``batch``, when it is asked for.
        """
        if self._pool is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._pool = ThreadPoolExecutor(self._threads, "parquet-reader")
            self._pending = deque()
        if self._pending and not _same(self._pending[0][0], batch):
            self._forget()
        if not self._pending:
            self._submit(self._pool, batch)
        while len(self._pending) <= BATCHES_PER_THREAD * self._threads:
            self._submit(self._pool, self._following(self._pending[-1][0]))
        return self._pending.popleft()[1].result()

    def _submit(self, pool: ThreadPoolExecutor, batch: IndexBatch) -> None:
        self._pending.append((batch, pool.submit(self._load, batch)))

    def _forget(self) -> None:
        """Gives up what was foreseen, because somebody asked for another batch."""
        for _, future in self._pending:
            future.cancel()
        self._pending.clear()


def _same(one: IndexBatch, other: IndexBatch) -> bool:
    return (one.epoch, one) == (other.epoch, other)
