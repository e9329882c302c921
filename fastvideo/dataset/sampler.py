"""Which rows make which batch: the same answer on every rank, for any epoch and any position."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from torch.utils.data import Sampler

from fastvideo.errors import ConfigError
from fastvideo.logger import init_logger

logger = init_logger(__name__)


@final
class IndexBatch(list[int]):
    """The row indices of one batch, and where in the run the batch belongs.

    It is a plain list to everybody else. The data set needs the epoch wherever it runs, also in
    worker processes that live through many epochs, so the epoch travels with the indices.

    Attributes:
        epoch: Number of the pass over the data set, from 0.
        position: Number of the batch within the epoch, from 0.
    """

    __slots__ = ("epoch", "position")

    def __init__(self, indices: Sequence[int], *, epoch: int, position: int) -> None:
        super().__init__(indices)
        self.epoch = epoch
        self.position = position


@final
class DP_SP_BatchSampler(Sampler[list[int]]):  # noqa: N801 - the name configs and users know
    """Shuffles the rows of a data set and deals them out to data-parallel groups.

    Every epoch has its own permutation, which depends on the seed and the epoch alone; epoch 0
    is ``torch.randperm`` with a generator seeded with ``seed``. Group ``rank // sp_world_size``
    takes every ``num_sp_groups``-th row, so ranks that share one sample see the same rows.

    The epoch advances when an iterator is exhausted, or by :meth:`set_epoch`. The state is the
    epoch; an iterator's state is epoch and position, and both can be restored.

    Args:
        batch_size: Rows per batch and group.
        dataset_size: Rows of the data set.
        num_sp_groups: Data-parallel groups.
        sp_world_size: Ranks that share a sample.
        global_rank: Rank of this process.
        drop_last: Leave out the rows that do not fill a batch in every group; otherwise the
            first rows of the permutation are taken again to fill it.
        drop_first_row: Never take row 0.
        seed: Seed of the permutations.

    Raises:
        ConfigError: The rows do not fill one batch per group, or a number is out of range (a
            ``ValueError``).
    """

    def __init__(
        self,
        batch_size: int,
        dataset_size: int,
        num_sp_groups: int,
        sp_world_size: int,
        global_rank: int,
        drop_last: bool = True,  # noqa: FBT001, FBT002
        drop_first_row: bool = False,  # noqa: FBT001, FBT002
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (
            ("batch_size", batch_size),
            ("num_sp_groups", num_sp_groups),
            ("sp_world_size", sp_world_size),
        ):
            if value < 1:
                message = f"{name} must be at least 1, got {value}"
                raise ConfigError(message)
        self.batch_size = batch_size
        self.dataset_size = dataset_size
        self.num_sp_groups = num_sp_groups
        self.sp_world_size = sp_world_size
        self.global_rank = global_rank
        self.drop_last = drop_last
        self.drop_first_row = drop_first_row
        self.seed = seed
        self.epoch = 0
        self._group = global_rank // sp_world_size
        self._orders: dict[int, torch.Tensor] = {}
        self._resumed: tuple[int, int] = (-1, 0)
        self._check_group()
        self._num_batches = self._count_batches()

    def _check_group(self) -> None:
        if not 0 <= self._group < self.num_sp_groups:
            message = (
                f"rank {self.global_rank} with {self.sp_world_size} ranks per sample is in group "
                f"{self._group}, but there are {self.num_sp_groups} groups"
            )
            raise ConfigError(message)

    def _count_batches(self) -> int:
        rows = self.dataset_size - int(self.drop_first_row)
        global_batch = self.batch_size * self.num_sp_groups
        count = rows // global_batch if self.drop_last else -(-rows // global_batch)
        if count < 1:
            message = (
                f"the data set has {max(rows, 0)} rows, fewer than one batch of {global_batch} "
                f"(training.data.train_batch_size {self.batch_size} on {self.num_sp_groups} "
                f"data-parallel groups); add data, repeat it (data_path: {{path: repeat}}), or "
                f"lower the batch size"
            )
            raise ConfigError(message)
        return count

    def __len__(self) -> int:
        """Returns the number of batches per epoch, the same on every rank."""
        return self._num_batches

    def __iter__(self) -> BatchIterator:
        """Returns an iterator over the current epoch, from its first batch."""
        return BatchIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iterator start at the first batch of ``epoch``."""
        self.epoch = epoch
        self._resumed = (-1, 0)

    def resume_at(self, epoch: int, position: int) -> None:
        """Makes iterators of ``epoch`` start at batch ``position`` instead of its first batch.

        A position past the end makes them empty, after which the next epoch follows.
        """
        self.epoch = epoch
        self._resumed = (epoch, position)

    def first_position(self, epoch: int) -> int:
        """Returns the batch that an iterator of ``epoch`` starts at."""
        return self._resumed[1] if self._resumed[0] == epoch else 0

    def finish_epoch(self, epoch: int) -> None:
        """Notes that every batch of ``epoch`` was handed out; does so once per epoch."""
        if self.epoch == epoch:
            self.epoch = epoch + 1

    def batch_at(self, epoch: int, position: int) -> IndexBatch:
        """Returns one batch of one epoch, without changing any state that is saved."""
        start = position * self.batch_size
        rows = self._local_order(epoch)[start : start + self.batch_size]
        return IndexBatch(rows.tolist(), epoch=epoch, position=position)

    def batch_after(self, batch: IndexBatch) -> IndexBatch:
        """Returns the batch that follows ``batch``, in the next epoch after the last one."""
        if batch.position + 1 < len(self):
            return self.batch_at(batch.epoch, batch.position + 1)
        return self.batch_at(batch.epoch + 1, 0)

    def _local_order(self, epoch: int) -> torch.Tensor:
        if epoch not in self._orders:
            order = permutation(self.dataset_size, self.seed, epoch)
            if self.drop_first_row:
                order = order[order != 0]
            total = len(self) * self.batch_size * self.num_sp_groups
            if total > len(order):
                order = order[torch.arange(total) % len(order)]
            # Two are kept: near the end of an epoch, readers ahead are in the next one.
            self._orders = dict(list(self._orders.items())[-1:])
            self._orders[epoch] = order[:total][self._group :: self.num_sp_groups]
        return self._orders[epoch]

    def state_dict(self) -> dict[str, int]:
        """Returns the epoch, and the sizes its position depends on."""
        return {
            "epoch": self.epoch,
            "seed": self.seed,
            "dataset_size": self.dataset_size,
            "batch_size": self.batch_size,
            "num_sp_groups": self.num_sp_groups,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the epoch; warns when the saved position belongs to another order of rows."""
        self.epoch = int(state_dict["epoch"])
        changed = [
            f"{name} was {state_dict[name]} and is {now}"
            for name, now in self.state_dict().items()
            if name in state_dict and state_dict[name] != now
        ]
        if changed:
            logger.warning(
                "the data order differs from the saved run (%s): rows of this epoch may repeat "
                "or be left out",
                "; ".join(changed),
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_orders": {}}


@final
class BatchIterator(Iterator[IndexBatch]):
    """Hands out the batches of one epoch of a :class:`DP_SP_BatchSampler`."""

    def __init__(self, sampler: DP_SP_BatchSampler) -> None:
        self._sampler = sampler
        self.epoch = sampler.epoch
        self.position = sampler.first_position(sampler.epoch)

    def __next__(self) -> IndexBatch:
        if self.position >= len(self._sampler):
            self._sampler.finish_epoch(self.epoch)
            raise StopIteration
        batch = self._sampler.batch_at(self.epoch, self.position)
        self.position += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        """Returns epoch and position: the number of batches handed out."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Goes on where the saved iterator was."""
        self.epoch = int(state_dict["epoch"])
        self.position = int(state_dict["position"])


def permutation(size: int, seed: int, epoch: int) -> torch.Tensor:
    """Returns the order of ``size`` rows in ``epoch``: int64, each row once."""
    generator = torch.Generator()
    generator.manual_seed(seed if epoch == 0 else stable_hash(seed, epoch))
    return torch.randperm(size, generator=generator)


def stable_hash(*numbers: int) -> int:
    """Returns 63 bits that depend on ``numbers`` alone: not on the process or the platform."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
