"""A group of ranks that talk to each other.

A group of one rank needs no process group: every operation is then local, so code written against
:class:`RankGroup` runs unchanged in a single process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Some ranks of the run, seen from one of them.

    Positions inside the group (``src``, ``dst``, :attr:`rank_in_group`) count from 0; ``rank`` and
    ``ranks`` are global.

    Attributes:
        rank: Global rank of this process.
        local_rank: Rank of this process on its node.
        ranks: Global ranks of the group, in order.
        device: Device that collectives of this group work on.
        process_group: The torch group behind it; None in a group of one rank.
    """

    rank: int
    local_rank: int
    ranks: tuple[int, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    process_group: dist.ProcessGroup | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return len(self.ranks)

    @property
    def rank_in_group(self) -> int:
        """Position of this process in the group."""
        return self.ranks.index(self.rank)

    @property
    def is_first_rank(self) -> bool:
        """Whether this process is the first of the group."""
        return self.rank == self.ranks[0]

    def barrier(self) -> None:
        """Waits until every rank of the group is here."""
        if self.process_group is None:
            return
        device_ids = [self.device.index or 0] if self.device.type == "cuda" else None
        dist.barrier(group=self.process_group, device_ids=device_ids)

    def broadcast(self, tensor: Tensor, src: int = 0) -> Tensor:
        """Overwrites ``tensor`` with that of position ``src`` and returns it."""
        if self.process_group is not None:
            dist.broadcast(tensor, src=self.ranks[src], group=self.process_group)
        return tensor

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """Overwrites ``tensor`` with the element-wise maximum over the group and returns it."""
        if self.process_group is not None:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.process_group)
        return tensor

    def all_gather_object(self, value: Any) -> list[Any]:  # noqa: ANN401 - any picklable value
        """Returns every rank's ``value``, in the order of the group."""
        if self.process_group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.process_group)
        return values

    def broadcast_object(self, value: Any, src: int = 0) -> Any:  # noqa: ANN401 - as above
        """Returns the ``value`` of position ``src`` on every rank."""
        if self.process_group is None:
            return value
        values = [value]
        dist.broadcast_object_list(
            values, src=self.ranks[src], group=self.process_group, device=self.device
        )
        return values[0]

    def send_object(self, value: Any, dst: int) -> None:  # noqa: ANN401 - as above
        """Sends a picklable value to position ``dst``, which must call :meth:`recv_object`.

        Raises:
            ValueError: ``dst`` is this process or is not in the group.
        """
        target = self._peer(dst)
        dist.send_object_list([value], dst=target, group=self.process_group, device=self.device)

    def recv_object(self, src: int) -> Any:  # noqa: ANN401 - as above
        """Receives the value that position ``src`` sends with :meth:`send_object`.

        Raises:
            ValueError: ``src`` is this process or is not in the group.
        """
        source = self._peer(src)
        values: list[Any] = [None]
        dist.recv_object_list(values, src=source, group=self.process_group, device=self.device)
        return values[0]

    def _peer(self, position: int) -> int:
        if not 0 <= position < self.world_size or position == self.rank_in_group:
            message = (
                f"position {position} is no peer of position {self.rank_in_group} in a group of "
                f"{self.world_size} ranks; give another position from 0 to {self.world_size - 1}"
            )
            raise ValueError(message)
        return self.ranks[position]
