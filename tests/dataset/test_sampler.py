"""Every rank knows the same order, every epoch has its own, and any place in it can be restored."""

from __future__ import annotations

import pickle
import random

import pytest
import torch

from fastvideo.dataset import DP_SP_BatchSampler
from fastvideo.dataset.sampler import IndexBatch, permutation, stable_hash
from fastvideo.errors import ConfigError


def _sampler(rows: int = 20, batch: int = 2, groups: int = 1, rank: int = 0, **kwargs: object):  # noqa: ANN202
    options = {"sp_world_size": 1} | kwargs
    return DP_SP_BatchSampler(batch, rows, groups, global_rank=rank, **options)


def test_epoch_zero_is_the_plain_permutation() -> None:
    """The first epoch is torch.randperm of the seed, dealt out in batches."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(7)).tolist()
    batches = list(_sampler(seed=7))
    assert batches == [order[i : i + 2] for i in range(0, 20, 2)]
    assert all(type(index) is int for batch in batches for index in batch)


def test_groups_take_every_nth_row() -> None:
    """Group g takes the rows g, g + groups, … of the permutation."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3)).tolist()
    for rank in range(4):
        rows = [i for batch in _sampler(batch=1, groups=4, rank=rank, seed=3) for i in batch]
        assert rows == order[rank::4]


def test_ranks_of_one_group_see_the_same_rows() -> None:
    """Ranks that share a sample agree; ranks of other groups differ."""
    batches = [list(_sampler(groups=2, rank=rank, sp_world_size=2)) for rank in range(4)]
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    assert batches[0] != batches[2]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("trial", range(20))
def test_every_epoch_covers_the_rows(trial: int, drop_last: bool) -> None:  # noqa: FBT001
    """For any sizes: full batches, equal counts, nothing doubled unless it pads, nothing lost."""
    rng = random.Random(trial)
    batch, groups = rng.randint(1, 5), rng.randint(1, 4)
    rows = rng.randint(batch * groups if drop_last else 1, 60)
    samplers = [
        _sampler(rows, batch, groups, rank, drop_last=drop_last, seed=trial)
        for rank in range(groups)
    ]
    for _ in range(2):
        epochs = [list(sampler) for sampler in samplers]
        assert {len(epoch) for epoch in epochs} == {len(samplers[0])}
        assert {len(one) for epoch in epochs for one in epoch} == {batch}
        seen = [index for epoch in epochs for one in epoch for index in one]
        assert set(seen) <= set(range(rows))
        if drop_last:
            assert len(seen) == len(set(seen)) == rows // (batch * groups) * batch * groups
        else:
            assert set(seen) == set(range(rows))
            assert 0 <= len(seen) - rows < batch * groups


def test_padding_takes_the_first_rows_again() -> None:
    """Without drop_last the permutation starts over to fill the last batch."""
    order = torch.randperm(5, generator=torch.Generator().manual_seed(0)).tolist()
    assert list(_sampler(5, 4, drop_last=False)) == [order[:4], [order[4], *order[:3]]]


def test_padding_wraps_more_than_once() -> None:
    """Two rows fill a batch of five."""
    first, second = torch.randperm(2, generator=torch.Generator().manual_seed(0)).tolist()
    assert list(_sampler(2, 5, drop_last=False)) == [[first, second, first, second, first]]


def test_drop_first_row() -> None:
    """Row 0 is never taken when it is kept out."""
    seen = [i for batch in _sampler(9, 2, drop_first_row=True) for i in batch]
    assert sorted(seen) == list(range(1, 9))


def test_epochs_differ_and_are_reproducible() -> None:
    """Each pass has its own order, and a second run has the same ones."""
    first, second = _sampler(seed=5), _sampler(seed=5)
    runs = [[list(sampler) for _ in range(3)] for sampler in (first, second)]
    assert runs[0] == runs[1]
    assert len({str(epoch) for epoch in runs[0]}) == 3
    assert [one.epoch for one in runs[0][2]] == [2] * 10
    assert [one.position for one in runs[0][2]] == list(range(10))


def test_seeds_differ() -> None:
    """Neighbouring seeds and epochs do not share an order."""
    orders = {tuple(permutation(30, s, e).tolist()) for s in range(4) for e in range(4)}
    assert len(orders) == 16


def test_abandoned_pass_starts_over() -> None:
    """An iterator that is dropped half way does not use up the epoch."""
    sampler = _sampler()
    next(iter(sampler))
    assert list(sampler) == list(_sampler())


def test_exhausted_iterator_counts_once() -> None:
    """Asking an exhausted iterator again does not skip an epoch."""
    sampler = _sampler()
    iterator = iter(sampler)
    list(iterator)
    assert [next(iterator, None) for _ in range(3)] == [None] * 3
    assert sampler.epoch == 1


def test_set_epoch() -> None:
    """An epoch can be chosen."""
    sampler = _sampler()
    epochs = [list(sampler) for _ in range(3)]
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]


@pytest.mark.parametrize("position", [0, 1, 9, 10])
def test_state_restores_the_rest(position: int) -> None:
    """A new sampler with the state of an old one gives the batches that were left."""
    sampler = _sampler()
    list(sampler)
    iterator = iter(sampler)
    for _ in range(position):
        next(iterator)
    states = pickle.loads(pickle.dumps((sampler.state_dict(), iterator.state_dict())))
    restored = _sampler()
    restored.load_state_dict(states[0])
    other = iter(restored)
    other.load_state_dict(states[1])
    assert list(other) == list(iterator)
    assert list(restored) == list(sampler)


def test_changed_sizes_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """A state of another data set is used, with a warning that says what changed."""
    restored = _sampler(30)
    restored.load_state_dict(_sampler(20).state_dict())
    assert "dataset_size was 20 and is 30" in caplog.text
    caplog.clear()
    restored.load_state_dict(_sampler(30).state_dict() | {"epoch": 4})
    assert caplog.text == ""
    assert restored.epoch == 4


def test_position_beyond_a_smaller_data_set_ends_the_epoch() -> None:
    """A position that no longer exists goes on with the next epoch."""
    sampler = _sampler(4)
    iterator = iter(sampler)
    iterator.load_state_dict({"epoch": 0, "position": 9})
    assert list(iterator) == []
    assert sampler.epoch == 1


def test_resuming_in_an_epoch_lasts_until_its_end() -> None:
    """Iterators start at the place, also a second one; the next epoch starts at its beginning."""
    whole = list(DP_SP_BatchSampler(1, 5, 1, 1, 0))
    sampler = DP_SP_BatchSampler(1, 5, 1, 1, 0)
    sampler.resume_at(0, 3)
    assert list(iter(sampler)) == whole[3:]
    assert [batch.position for batch in sampler] == [0, 1, 2, 3, 4]
    sampler.resume_at(0, 5)
    next(iter(sampler), None)
    assert sampler.epoch == 1
    sampler.resume_at(2, 4)
    assert [next(iter(sampler)).position for _ in range(2)] == [4, 4]
    sampler.set_epoch(2)
    assert next(iter(sampler)).position == 0


def test_following_batch() -> None:
    """The batch after each one is known in advance, over the end of the epoch too."""
    sampler = _sampler()
    batches = [batch for _ in range(2) for batch in list(sampler)]
    following = [sampler.batch_after(batch) for batch in batches[:-1]]
    assert following == batches[1:]
    assert [b.epoch for b in following] == [b.epoch for b in batches[1:]]


def test_index_batch_is_a_list_that_travels() -> None:
    """Indices are plain integers in a list and keep their epoch through a pickle."""
    batch = IndexBatch([3, 1], epoch=2, position=5)
    copy = pickle.loads(pickle.dumps(batch))
    assert copy == [3, 1]
    assert (copy.epoch, copy.position) == (2, 5)


def test_too_small_data_set_is_an_error_at_once() -> None:
    """Fewer rows than one batch per group name both numbers and what to change."""
    with pytest.raises(ValueError, match=r"7 rows, fewer than one batch of 8 .*train_batch_size 2"):
        _sampler(7, 2, 4)
    assert len(_sampler(8, 2, 4)) == 1
    assert len(_sampler(7, 2, 4, drop_last=False)) == 1
    with pytest.raises(ConfigError, match="0 rows"):
        _sampler(0, drop_last=False)
    with pytest.raises(ConfigError, match="0 rows"):
        _sampler(1, drop_last=False, drop_first_row=True)


@pytest.mark.parametrize("name", ["batch", "groups", "sp_world_size"])
def test_sizes_must_be_positive(name: str) -> None:
    """Zero is refused by name."""
    with pytest.raises(ConfigError, match="must be at least 1, got 0"):
        _sampler(**{name: 0})


def test_rank_outside_the_groups() -> None:
    """A rank that no group holds would silently get nothing."""
    with pytest.raises(ConfigError, match=r"rank 4 .* is in group 2, but there are 2 groups"):
        _sampler(groups=2, rank=4, sp_world_size=2)


def test_hash_is_stable_and_even() -> None:
    """The hash is the same everywhere and spreads evenly over its range."""
    assert stable_hash(1, 2, 3) == 1517167407554927345
    shares = [stable_hash(0, 0, index) / 2**63 for index in range(4000)]
    assert max(shares) < 1
    for limit in (0.1, 0.5, 0.9):
        assert sum(share < limit for share in shares) / 4000 == pytest.approx(limit, abs=0.03)
