"""Groups of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastvideo.distributed import RankGroup


def test_a_group_of_one_talks_to_itself() -> None:
    """Every operation is local and changes nothing."""
    group = RankGroup(3, 1, (3,))
    tensor = torch.tensor([1.0, 2.0])
    assert group.rank_in_group == 0
    assert group.is_first_rank
    group.barrier()
    assert group.broadcast(tensor) is tensor
    assert group.all_reduce_max(tensor) is tensor
    assert group.all_gather_object("a") == ["a"]
    assert group.broadcast_object("a") == "a"
    with pytest.raises(ValueError, match="no peer"):
        group.send_object("a", dst=0)
    with pytest.raises(ValueError, match="no peer"):
        group.recv_object(src=1)


@pytest.mark.distributed
def test_two_ranks_exchange_tensors_and_objects(two_ranks: dict[str, Any]) -> None:
    """Both see the sender's value, whichever position it has."""
    first, second = two_ranks["groups"]
    for seen in (first, second):
        assert seen["broadcast"] == 1.0
        assert seen["max"] == [1, 0]
        assert seen["broadcast_object"] == {"rank": 0}
        assert "no peer" in seen["refused"]
    assert first["received"] == {"from": 1}
    assert second["received"] == {"from": 0}
    assert [first["first"], second["first"]] == [True, False]
    assert [first["alone"], second["alone"]] == [[0], [1]]
