"""Trajectories in batches: what is in them, where a loader goes on, what does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fastvideo.errors import ConfigError, DataError
from fastvideo.train.config import DataConfig
from fastvideo.train.methods.knowledge_distillation.trajectory_cache import (
    TrajectoryCache,
    trimmed_text,
)
from fastvideo.train.methods.knowledge_distillation.trajectory_dataset import (
    TrajectoryDataset,
    trajectory_loader,
)

if TYPE_CHECKING:
    from pathlib import Path

STEPS = [1000.0, 750.0, 500.0]


def _sample(row: int, height: int = 2) -> dict[str, Any]:
    """States [3, T, C, H, W] that are full of the row and the step; three tokens of four."""
    steps = torch.arange(3.0).reshape(3, 1, 1, 1, 1)
    return {
        "trajectory_latents": (10 * row + steps).expand(3, 2, 4, height, 2),
        "trajectory_timesteps": torch.tensor(STEPS),
        "real": torch.full((2, 4, height, 2), float(row)),
        "text_embedding": torch.full((3, 5), 0.5 + row),
        "text_attention_mask": torch.tensor([1.0, 1.0, 1.0, 0.0]),
        "caption": f"row {row}",
    }


@pytest.fixture
def cache(tmp_path: Path) -> TrajectoryCache:
    """Eight trajectories."""
    made = TrajectoryCache(tmp_path)
    made.prepare({"total_samples": 8})
    for row in range(8):
        made.write(row, _sample(row))
    return made


def test_a_batch_has_the_students_states_and_padded_text(cache: TrajectoryCache) -> None:
    """In float32, in the order of the student's timesteps."""
    batch = TrajectoryDataset(cache, 8, [999, 500]).__getitems__([3, 1])
    assert batch["trajectory_latents"].shape == (2, 2, 2, 4, 2, 2)
    assert batch["trajectory_latents"][:, :, 0, 0, 0, 0].tolist() == [[30.0, 32.0], [10.0, 12.0]]
    assert batch["trajectory_timesteps"].tolist() == [[1000.0, 500.0]] * 2
    assert batch["real"][:, 0, 0, 0, 0].tolist() == [3.0, 1.0]
    assert batch["text_embedding"].shape == (2, 4, 5)
    assert batch["text_embedding"][0, :, 0].tolist() == [3.5, 3.5, 3.5, 0.0]
    assert batch["text_attention_mask"].tolist() == [[1.0, 1.0, 1.0, 0.0]] * 2
    assert batch["caption_text"] == ["row 3", "row 1"]
    assert batch["info_list"][1]["prompt"] == "row 1"
    assert all(v.dtype == torch.float32 for v in batch.values() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_in_the_middle_of_an_epoch(cache: TrajectoryCache, workers: int) -> None:
    """With the rows that were left, and then with the next epoch."""
    data = DataConfig(seed=3, dataloader_num_workers=workers)

    def loader() -> Any:
        return trajectory_loader(TrajectoryDataset(cache, 8, [500]), data, group=1, num_groups=2)

    def rows(batches: Any) -> list[str]:
        return [batch["caption_text"][0] for batch in batches]

    whole = loader()
    expected = rows(whole)[2:] + rows(whole)
    first = loader()
    iterator = iter(first)
    next(iterator), next(iterator)
    second = loader()
    second.load_state_dict(first.state_dict())
    assert rows(second) + rows(second) == expected
    assert len(set(expected[2:])) == 4


def test_shapes_that_differ_in_a_batch_are_an_error(cache: TrajectoryCache) -> None:
    """The message names rows and shapes."""
    cache.write(5, _sample(5, height=3))
    with pytest.raises(DataError, match=r"different shapes in one batch, rows \[4, 5\]"):
        TrajectoryDataset(cache, 8, [500]).__getitems__([4, 5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"real": None}, "it lacks real"),
        ({"real": torch.zeros(2, 4, 3, 2)}, "its shapes do not fit"),
        ({"trajectory_timesteps": torch.zeros(2)}, "its shapes do not fit"),
    ],
)
def test_a_file_that_is_no_sample_is_an_error(
    cache: TrajectoryCache, change: dict[str, Any], message: str
) -> None:
    """The message names it and says what to do."""
    sample = {name: value for name, value in (_sample(0) | change).items() if value is not None}
    torch.save(sample, cache.sample_path(0))
    with pytest.raises(DataError, match=rf"00000000\.pt cannot be used: {message}.*Delete it"):
        cache.read(0)


def test_code_in_a_file_is_not_executed(cache: TrajectoryCache, tmp_path: Path) -> None:
    """A pickle that would write a file when it is read does not."""

    class Trap:
        def __reduce__(self) -> Any:
            return (open, (str(tmp_path / "trapped"), "w"))

    torch.save({"real": Trap()}, cache.sample_path(0))
    with pytest.raises(DataError, match="cannot be used"):
        cache.read(0)
    assert not (tmp_path / "trapped").exists()


def test_a_cache_of_another_program_can_be_read(cache: TrajectoryCache) -> None:
    """Float32, padded text, no checksums, no caption."""
    foreign = _sample(2)
    foreign["text_embedding"] = torch.cat([foreign["text_embedding"], torch.zeros(1, 5)])
    del foreign["caption"]
    foreign = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in foreign.items()}
    torch.save(foreign, cache.sample_path(2))
    batch = TrajectoryDataset(cache, 8, [500])[2]
    assert batch["text_embedding"].shape == (1, 4, 5)
    assert batch["caption_text"] == [""]


def test_metadata_that_cannot_be_read_is_an_error(cache: TrajectoryCache) -> None:
    """And so is a directory that cannot be written to; a moved data set is not."""
    cache.prepare({"total_samples": 8, "source_data_path": "elsewhere"})
    (cache.root / "metadata.json").write_text("{")
    with pytest.raises(ConfigError, match=r"metadata\.json cannot be read"):
        cache.prepare({"total_samples": 8})
    (cache.root / "metadata.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds no mapping"):
        cache.prepare({"total_samples": 8})
    unwritable = TrajectoryCache(cache.sample_path(0) / "below")
    with pytest.raises(ConfigError, match=r"method\.teacher_path_cache: cannot write to"):
        unwritable.prepare({})
    with pytest.raises(DataError, match="cannot write"):
        unwritable.write(0, _sample(0))


def test_text_is_trimmed_behind_its_last_token() -> None:
    """Padding is what is masked and zero; a prompt without tokens has no rows."""
    text = torch.tensor([[1.0], [0.0], [2.0], [0.0], [0.0]])
    assert trimmed_text(text, torch.tensor([1.0, 1, 0, 0, 0])).shape == (3, 1)
    assert trimmed_text(text, torch.tensor([1.0, 1, 1, 1, 0])).shape == (4, 1)
    assert trimmed_text(torch.zeros(5, 1), torch.zeros(5)).shape == (0, 1)
