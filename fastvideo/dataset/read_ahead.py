"""Reads the batch that will be asked for next while the current one is being used."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.dataset.sampler import IndexBatch

T = TypeVar("T")


@final
class ReadAhead(Generic[T]):
    """One thread that loads one batch ahead.

    It changes when a batch is read and nothing else: what comes next is computed, not taken from
    an iterator, so no saved state moves. ``load`` is never run by two threads at once. The
    thread starts with the first batch, and starts anew in a forked process.

    Args:
        load: Loads one batch; must not depend on anything but its argument.
    """

    def __init__(self, load: Callable[[IndexBatch], T]) -> None:
        self._load = load
        self._pid = -1
        self._pool: ThreadPoolExecutor | None = None
        self._pending: tuple[IndexBatch, Future[T]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_pool": None, "_pending": None}

    def fetch(self, batch: IndexBatch, *, following: IndexBatch) -> T:
        """Returns ``batch`` and begins to load ``following``.

        Raises:
            Exception: Whatever ``load`` raised for ``batch``, when it is asked for.
        """
        if self._pid != os.getpid() or self._pool is None:
            self._pid = os.getpid()
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="parquet-read-ahead")
            self._pending = None
        loaded = self._take(batch)
        self._pending = (following, self._pool.submit(self._load, following))
        return loaded

    def _take(self, batch: IndexBatch) -> T:
        pending, self._pending = self._pending, None
        if pending is None:
            return self._load(batch)
        expected, future = pending
        if (expected.epoch, expected) == (batch.epoch, batch):
            return future.result()
        future.exception()  # somebody jumped: wait, because load must not run twice at once
        return self._load(batch)
