"""An endless stream of batches over a finite loader."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import DataError, FastVideoError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TORCH_ON_DEAD_WORKERS: Final = "DataLoader worker"
_RAISED_IN_WORKER: Final = re.compile(r"Caught \w+ in DataLoader worker process (\d+)")


class DataStream:
    """Iterates over a loader again and again.

    The first iterator is made here, in the constructor, because making one draws from the global
    random generator and starts worker processes: a run restores its random state afterwards, and
    the first step does not pay for the start.

    Args:
        loader: Anything that can be iterated many times. If its ``batch_sampler`` (or ``sampler``)
            has ``set_epoch`` and does not count epochs by itself, it is told of every new pass.

    Attributes:
        passes: Passes over the loader that this stream has completed.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.passes = 0
        self._loader = loader
        self._sampler = _sampler_with_epoch(loader)
        self._epoch: int | None = getattr(self._sampler, "epoch", None)
        self._iterator: Iterator[Any] = iter(loader)

    def __iter__(self) -> DataStream:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - a batch is whatever the loader yields
        try:
            return next(self._iterator)
        except StopIteration:
            self._begin_next_pass()
        try:
            return next(self._iterator)
        except StopIteration:
            message = (
                f"the data loader ({type(self._loader).__name__}) yields no batch; check "
                "training.data.data_path, and that the data set has at least "
                "training.data.train_batch_size rows per data-parallel rank"
            )
            raise DataError(message) from None

    def _begin_next_pass(self) -> None:
        self.passes += 1
        if self._sampler is not None:
            self._advance_epoch(self._sampler)
        self._iterator = iter(self._loader)

    def _advance_epoch(self, sampler: Any) -> None:  # noqa: ANN401 - found by its attributes
        """Makes the sampler's next pass another epoch, unless it has moved on by itself."""
        now: int | None = getattr(sampler, "epoch", None)
        if now is None:
            sampler.set_epoch(self.passes)
        elif now == self._epoch:
            sampler.set_epoch(now + 1)
        self._epoch = getattr(sampler, "epoch", None)


def _sampler_with_epoch(loader: object) -> Any:  # noqa: ANN401 - any object with set_epoch
    for name in ("batch_sampler", "sampler"):
        sampler = getattr(loader, name, None)
        if callable(getattr(sampler, "set_epoch", None)):
            return sampler
    return None


@contextmanager
def explaining_workers() -> Iterator[None]:
    """Says in a line what torch says in a page about workers that load data.

    A worker that dies is reported wherever the main thread is then, not only where it waits for
    data, so this belongs around all of the training.

    Raises:
        DataError: A worker process has died.
        FastVideoError: What a worker raised, with its own message.
    """
    try:
        yield
    except FastVideoError as error:
        found = _RAISED_IN_WORKER.match(str(error))
        if found is None:
            raise
        kind = type(error)
        own = str(error).rpartition(f"{kind.__module__}.{kind.__qualname__}: ")[2].strip()
        message = f"{own} (data loading worker {found[1]})"
        raise kind(message) from error
    except RuntimeError as error:
        if not str(error).startswith(_TORCH_ON_DEAD_WORKERS):
            raise
        message = (
            f"a process that loads data for this rank has died: {str(error).strip()} Most often "
            f"the machine had no memory left ('Killed'), or /dev/shm is too small ('Bus error'). "
            f"Set a smaller --training.data.dataloader_num_workers (0 loads in the training "
            f"process) and go on with --training.checkpoint.resume_from_checkpoint latest"
        )
        raise DataError(message) from error
