"""Reading ahead changes when a batch is read, and nothing else."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

from fastvideo.dataset.read_ahead import ReadAhead
from fastvideo.dataset.sampler import IndexBatch


def _batch(position: int, epoch: int = 0) -> IndexBatch:
    return IndexBatch([position], epoch=epoch, position=position)


def _next(batch: IndexBatch) -> IndexBatch:
    return _batch(batch.position + 1, batch.epoch)


class _Loader:
    """Loads a batch as its key, noting calls and threads."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.threads: set[str] = set()

    def __call__(self, batch: IndexBatch) -> tuple[int, int]:
        self.calls.append((batch.epoch, batch.position))
        self.threads.add(threading.current_thread().name)
        if batch.position == 13:
            message = "batch 13 is damaged"
            raise ValueError(message)
        return (batch.epoch, batch.position)


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_in_order_are_loaded_once_in_threads(threads: int) -> None:
    """Each batch is loaded once, whoever asks for it, and two more for each thread."""
    load = _Loader()
    ahead = ReadAhead(load, _next, threads=threads)
    assert [ahead.fetch(_batch(i)) for i in range(5)] == [(0, i) for i in range(5)]
    wait([future for _, future in ahead._pending], timeout=30)
    assert sorted(load.calls) == [(0, i) for i in range(5 + 2 * threads)]
    assert all(name.startswith("parquet-reader") for name in load.threads)
    assert len(load.threads) <= threads


def test_threads_load_at_the_same_time() -> None:
    """Three threads meet at a barrier, which one after the other could not."""
    barrier = threading.Barrier(3, timeout=30)

    def load(batch: IndexBatch) -> int:
        if batch.position < 3:
            barrier.wait()
        return batch.position

    ahead = ReadAhead(load, _next, threads=3)
    assert [ahead.fetch(_batch(i)) for i in range(4)] == [0, 1, 2, 3]


def test_a_jump_is_loaded() -> None:
    """A batch that was not foreseen is loaded, and those after it are foreseen."""
    load = _Loader()
    ahead = ReadAhead(load, _next, threads=2)
    ahead.fetch(_batch(0))
    for position, epoch in ((7, 0), (3, 0), (3, 1), (4, 1)):
        assert ahead.fetch(_batch(position, epoch)) == (epoch, position)
    assert load.calls.count((1, 4)) == 1


def test_what_was_foreseen_wrongly_is_not_loaded() -> None:
    """Only what a thread has begun with is finished after a jump."""
    begun, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    def load(batch: IndexBatch) -> int:
        calls.append(batch.position)
        if batch.position == 1:
            begun.set()
            go_on.wait(30)
        return batch.position

    ahead = ReadAhead(load, _next, threads=1)
    ahead.fetch(_batch(0))
    assert begun.wait(30)
    threading.Timer(0.1, go_on.set).start()
    assert ahead.fetch(_batch(50)) == 50
    assert calls[:3] == [0, 1, 50]


def test_error_comes_with_its_batch() -> None:
    """A batch that cannot be loaded fails when it is asked for, not earlier, and only that one."""
    ahead = ReadAhead(_Loader(), _next, threads=2)
    assert ahead.fetch(_batch(12)) == (0, 12)
    with pytest.raises(ValueError, match="batch 13 is damaged"):
        ahead.fetch(_batch(13))
    assert ahead.fetch(_batch(14)) == (0, 14)


def test_error_of_a_batch_nobody_asks_for_is_dropped() -> None:
    """A damaged batch that is jumped over does no harm."""
    ahead = ReadAhead(_Loader(), _next, threads=1)
    assert ahead.fetch(_batch(12)) == (0, 12)
    assert ahead.fetch(_batch(20)) == (0, 20)


_FORK = """
import os
from fastvideo.dataset.read_ahead import ReadAhead
from fastvideo.dataset.sampler import IndexBatch
batch = [IndexBatch([i], epoch=0, position=i) for i in range(20)]
ahead = ReadAhead(list, lambda b: batch[b.position + 1], threads=2)
ahead.fetch(batch[0])
pid = os.fork()
right = [ahead.fetch(batch[i]) for i in (1, 2)] == [[1], [2]]
if pid == 0:
    os._exit(0 if right else 1)
print(right, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_forked_child_starts_its_own_threads() -> None:
    """A child that inherits a reader without its threads does not wait for them."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True 0\n"


def test_pickled_reader_works() -> None:
    """A reader travels without its threads and its pending batches."""
    ahead = ReadAhead(list, _next, threads=1)
    ahead.fetch(_batch(0))
    copy = pickle.loads(pickle.dumps(ahead))
    assert copy.fetch(_batch(1)) == [1]


_EXIT = """
import sys, threading
from fastvideo.dataset.read_ahead import ReadAhead
from fastvideo.dataset.sampler import IndexBatch
after = lambda b: IndexBatch([0], epoch=0, position=b.position + 1)
ahead = ReadAhead(lambda b: b.position, after, threads=2)
print(ahead.fetch(IndexBatch([0], epoch=0, position=0)))
sys.exit(3)
"""


def test_threads_do_not_keep_a_process_alive() -> None:
    """The interpreter ends with its own status while batches are still foreseen."""
    done = subprocess.run(
        [sys.executable, "-c", _EXIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "0\n", "")
