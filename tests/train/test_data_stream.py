"""The endless stream of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from fastvideo.errors import DataError
from fastvideo.train.data_stream import DataStream, explaining_workers

if TYPE_CHECKING:
    from collections.abc import Iterator


class Loader:
    """A loader with a sampler, which counts how often it is iterated."""

    def __init__(self, batch_sampler: Any, size: int = 2) -> None:
        self.batch_sampler = batch_sampler
        self.size = size
        self.iterators = 0

    def __iter__(self) -> Iterator[Any]:
        self.iterators += 1
        epoch = getattr(self.batch_sampler, "epoch", None)
        for index in range(self.size):
            yield epoch, index
        if getattr(self.batch_sampler, "counts_itself", False):
            self.batch_sampler.epoch += 1


class Sampler:
    """Has an epoch that somebody must set, or that it advances itself."""

    def __init__(self, *, counts_itself: bool) -> None:
        self.epoch = 0
        self.counts_itself = counts_itself
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)
        self.epoch = epoch


class Numbers(Dataset[int]):
    """Four numbers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def take(stream: DataStream, count: int) -> list[Any]:
    """Returns the next batches."""
    return [next(stream) for _ in range(count)]


def test_a_sampler_that_is_told_gets_every_epoch() -> None:
    """Without its own counting, a sampler is told 1 after the first pass, 2 after the second."""
    sampler = Sampler(counts_itself=False)
    stream = DataStream(Loader(sampler))
    assert take(stream, 5) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert sampler.told == [1, 2]
    assert stream.passes == 2


def test_a_sampler_that_counts_is_left_alone() -> None:
    """A sampler that advances at the end of a pass is not advanced twice."""
    sampler = Sampler(counts_itself=True)
    assert take(DataStream(Loader(sampler)), 5) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert sampler.told == []


def test_a_resumed_epoch_goes_on_from_there() -> None:
    """A sampler that was restored to epoch 7 goes on with 8, whoever counts."""
    for counts_itself in (True, False):
        sampler = Sampler(counts_itself=counts_itself)
        sampler.epoch = 7
        assert take(DataStream(Loader(sampler)), 3) == [(7, 0), (7, 1), (8, 0)]


def test_the_first_iterator_is_made_at_once() -> None:
    """Making the stream makes the iterator, so random numbers it draws come before a restore."""

    class Drawing:
        def __iter__(self) -> Iterator[float]:
            return iter([float(torch.rand(()))])

    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    stream = DataStream(Drawing())
    second = torch.rand(())
    assert next(stream) == float(expected[0])
    assert second == expected[1]


def test_two_empty_passes_are_an_error() -> None:
    """One empty pass may follow a resume at the end of an epoch; two mean there is no data."""

    class OnceEmpty:
        passes = 0

        def __iter__(self) -> Iterator[int]:
            self.passes += 1
            return iter([] if self.passes == 1 else [5])

    assert next(DataStream(OnceEmpty())) == 5
    with pytest.raises(DataError, match=r"list\) yields no batch"):
        next(DataStream([]))


def test_torch_distributed_samplers_get_a_new_order_each_pass() -> None:
    """DistributedSampler repeats itself unless told; through the stream it does not."""
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(), num_replicas=1, rank=0)
    stream = DataStream(DataLoader(Numbers(), sampler=sampler, batch_size=None))
    passes = [take(stream, 4) for _ in range(6)]
    assert all(sorted(numbers) == [0, 1, 2, 3] for numbers in passes)
    assert len({tuple(numbers) for numbers in passes}) > 1
    assert sampler.epoch == 5


class Rows(Dataset[int]):
    """Rows of which the last is damaged."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index == 1:
            message = "row 1 is damaged: \nwrite it again"
            raise DataError(message)
        return index


def test_an_error_in_a_worker_is_its_own_message() -> None:
    """Without the page that torch makes of it."""
    loader = DataLoader(Rows(), num_workers=1)
    stream = DataStream(loader)
    next(stream)
    with pytest.raises(DataError) as caught, explaining_workers():
        next(stream)
    assert str(caught.value) == "row 1 is damaged: \nwrite it again (data loading worker 0)"


def test_other_errors_pass() -> None:
    """Neither ours nor torch's are touched where no worker is meant."""
    for error in (DataError("a file"), RuntimeError("a tensor"), KeyError("a key")):
        with pytest.raises(type(error)) as caught, explaining_workers():
            raise error
        assert caught.value is error
