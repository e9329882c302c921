"""Reading ahead changes when a batch is read, and nothing else."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading

import pytest

from fastvideo.dataset.read_ahead import ReadAhead
from fastvideo.dataset.sampler import IndexBatch


def _batch(position: int, epoch: int = 0) -> IndexBatch:
    return IndexBatch([position], epoch=epoch, position=position)


class _Loader:
    """Loads a batch as its key, noting threads and overlaps."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.threads: list[str] = []
        self.running = 0
        self.hold: int | None = None
        self.entered = threading.Event()
        self.released = threading.Event()
        self.overlapped = False

    def __call__(self, batch: IndexBatch) -> tuple[int, int]:
        self.running += 1
        self.overlapped |= self.running > 1
        self.calls.append((batch.epoch, batch.position))
        self.threads.append(threading.current_thread().name)
        if batch.position == self.hold:
            self.entered.set()
            self.released.wait(0.2)  # long enough to be seen by a load that does not wait
        elif self.entered.is_set():
            self.released.set()
        self.running -= 1
        if batch.position == 13:
            message = "batch 13 is damaged"
            raise ValueError(message)
        return (batch.epoch, batch.position)


def test_batches_in_order_are_loaded_once_in_the_thread() -> None:
    """After the first batch the thread has loaded what is asked for next."""
    load = _Loader()
    ahead = ReadAhead(load)
    got = [ahead.fetch(_batch(i), following=_batch(i + 1)) for i in range(5)]
    assert got == [(0, i) for i in range(5)]
    assert load.calls[:5] == [(0, i) for i in range(5)]
    assert load.threads[0] == threading.main_thread().name
    assert all(name.startswith("parquet-read-ahead") for name in load.threads[1:])


def test_a_jump_is_loaded_directly_and_never_at_the_same_time() -> None:
    """A batch that was not foreseen is loaded after the pending one has ended."""
    load = _Loader()
    load.hold = 1
    ahead = ReadAhead(load)
    ahead.fetch(_batch(0), following=_batch(1))
    assert load.entered.wait(30)
    for position, epoch in ((7, 0), (3, 0), (4, 1)):
        assert ahead.fetch(_batch(position, epoch), following=_batch(position + 1)) == (
            epoch,
            position,
        )
    assert not load.overlapped


def test_error_comes_with_its_batch() -> None:
    """A batch that cannot be loaded fails when it is asked for, not one batch earlier."""
    ahead = ReadAhead(_Loader())
    assert ahead.fetch(_batch(12), following=_batch(13)) == (0, 12)
    with pytest.raises(ValueError, match="batch 13 is damaged"):
        ahead.fetch(_batch(13), following=_batch(14))
    assert ahead.fetch(_batch(14), following=_batch(15)) == (0, 14)


def test_error_of_a_batch_nobody_asks_for_is_dropped() -> None:
    """A damaged batch that is jumped over does no harm."""
    ahead = ReadAhead(_Loader())
    ahead.fetch(_batch(12), following=_batch(13))
    assert ahead.fetch(_batch(20), following=_batch(21)) == (0, 20)


_FORK = """
import os
from fastvideo.dataset.read_ahead import ReadAhead
from fastvideo.dataset.sampler import IndexBatch
batch = [IndexBatch([i], epoch=0, position=i) for i in range(4)]
ahead = ReadAhead(list)
ahead.fetch(batch[0], following=batch[1])
pid = os.fork()
right = [ahead.fetch(batch[i], following=batch[i + 1]) for i in (1, 2)] == [[1], [2]]
if pid == 0:
    os._exit(0 if right else 1)
print(right, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_forked_child_starts_its_own_thread() -> None:
    """A child that inherits a reader without its thread does not wait for it."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True 0\n"


def test_pickled_reader_works() -> None:
    """A reader travels without its thread and its pending batch."""
    ahead = ReadAhead(list)
    ahead.fetch(_batch(0), following=_batch(1))
    copy = pickle.loads(pickle.dumps(ahead))
    assert copy.fetch(_batch(1), following=_batch(2)) == [1]
