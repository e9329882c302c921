"""The place in the data, for loaders with a sampler of ours, with a state, and with neither."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fastvideo.dataset import build_parquet_dataloader, pyarrow_schema_t2v
from fastvideo.train.checkpoint.data_position import data_state, restore_data_state
from fastvideo.train.data_stream import DataStream

ROWS = 8


def _loader(data: Path, *, ranks: int = 1, rank: int = 0, batch: int = 1, workers: int = 0) -> Any:
    return build_parquet_dataloader(
        str(data),
        batch,
        parquet_schema=pyarrow_schema_t2v,
        num_data_workers=workers,
        text_padding_length=4,
        seed=5,
        num_sp_groups=ranks,
        global_rank=rank,
    )


def _take(stream: DataStream, count: int) -> list[str]:
    return [name for _ in range(count) for name in next(stream)["caption_text"]]


def _resumed(data: Path, saved: dict[str, Any], *, same: bool = True, **options: Any) -> DataStream:
    loader = _loader(data, **options)
    restore_data_state(loader, saved, same_ranks=same, step=3)
    return DataStream(loader)


@pytest.mark.parametrize("taken", [3, ROWS, ROWS + 1])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 0), (0, 2)])
def test_the_rows_that_are_left_follow(data: Path, taken: int, before: int, after: int) -> None:
    """With other numbers of workers too; at the end of an epoch and after it; a second time."""
    whole = _take(DataStream(_loader(data)), 2 * ROWS)
    loader = _loader(data, workers=before)
    assert _take(DataStream(loader), taken) == whole[:taken]
    stream = _resumed(data, data_state(loader), workers=after)
    assert _take(stream, 2) == whole[taken : taken + 2]
    again = _resumed(data, data_state(stream._loader))
    assert _take(again, 4) == whole[taken + 2 : taken + 6]


def test_more_ranks_share_what_is_left(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two ranks take the fifth row on, in the order of one; an odd row comes twice, and is said."""
    caplog.set_level("WARNING", "fastvideo")
    whole = _take(DataStream(_loader(data)), ROWS)
    loader = _loader(data)
    _take(DataStream(loader), 4)
    state = data_state(loader)
    ranks = [_resumed(data, state, same=False, ranks=2, rank=rank) for rank in (0, 1)]
    taken = [_take(stream, 2) for stream in ranks]
    assert [taken[0][0], taken[1][0], taken[0][1], taken[1][1]] == whole[4:]
    assert caplog.text == ""
    odd = _resumed(data, state, same=False, batch=3)
    assert _take(odd, 1) == whole[3:6]
    assert "1 row of the data set will be read a second time" in caplog.text


def test_other_data_is_said(
    runs: Any, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on at the same place of another order."""
    caplog.set_level("WARNING", "fastvideo")
    loader = _loader(data)
    _take(DataStream(loader), 3)
    other = runs.tiny_runs.write_dataset(tmp_path / "other", rows=6)
    _take(_resumed(other, data_state(loader)), 3)
    assert "is not the data set of step 3 any more (rows were 8 and are 6): rows" in caplog.text


def test_a_data_set_of_the_same_size_is_told_apart(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the names and sizes of its files; a copy elsewhere is the same."""
    caplog.set_level("WARNING", "fastvideo")
    saved = data_state(_loader(data))
    copy = Path(shutil.copytree(data, tmp_path / "copy"))
    _resumed(copy, saved)
    assert not caplog.text
    (file,) = copy.rglob("*.parquet")
    file.rename(file.with_name("other.parquet"))
    _resumed(copy, saved)
    assert "step 3 any more (as many files and rows, but other names or sizes)" in caplog.text


class Stateful:
    """A loader that can say where it is, in its own way."""

    def __init__(self) -> None:
        self.loaded: Any = None

    def state_dict(self) -> dict[str, int]:
        return {"at": 3}

    def load_state_dict(self, state: Any) -> None:
        self.loaded = state


def test_loaders_with_a_state_get_it_back_on_as_many_ranks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it means for other numbers of ranks, only they would know."""
    caplog.set_level("WARNING", "fastvideo")
    saved = data_state(Stateful())
    loader = Stateful()
    restore_data_state(loader, saved, same_ranks=False, step=7)
    assert loader.loaded is None
    assert "from its beginning after step 7: the data loader (Stateful) knows its" in caplog.text
    restore_data_state(loader, saved, same_ranks=True, step=7)
    assert loader.loaded == {"at": 3}
    assert len(caplog.records) == 1


def test_loaders_without_a_state_start_from_the_beginning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And that is said."""
    caplog.set_level("WARNING", "fastvideo")
    assert data_state([1, 2]) == {}
    restore_data_state([1, 2], {}, same_ranks=True, step=7)
    restore_data_state([1, 2], {"state": {}}, same_ranks=True, step=7)
    assert "(list) cannot say where it is" in caplog.text
    assert "(list) cannot go to the saved place" in caplog.text
