"""Batches hold what the file holds, padded, masked and with text dropped as promised."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import torch

from fastvideo.dataset import (
    LatentsParquetMapStyleDataset,
    basic_t2v_record_creator,
    i2v_record_creator,
    pyarrow_schema_i2v,
    pyarrow_schema_t2v,
    pyarrow_schema_text_only,
    records_to_table,
    text_only_record_creator,
)
from fastvideo.dataset.sampler import IndexBatch
from fastvideo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from fastvideo.dataset import VideoBatch


def _dataset(path: Path, **kwargs: object) -> LatentsParquetMapStyleDataset:
    options = {"parquet_schema": pyarrow_schema_t2v, "text_padding_length": 3} | kwargs
    return LatentsParquetMapStyleDataset(str(path), 1, **options)


def _write(path: Path, records: list[dict[str, object]], schema: pa.Schema) -> Path:
    pq.write_table(records_to_table(records, schema), path)
    return path


def test_batch(t2v_dataset: Callable[..., Path]) -> None:
    """A batch has latents, padded and cropped text, its mask, the captions and the rest."""
    batch = _dataset(t2v_dataset(10)).__getitems__([7, 0])
    assert set(batch) == {
        *["vae_latent", "text_embedding", "text_attention_mask"],
        *["info_list", "caption_text"],
    }
    assert batch["vae_latent"].shape == (2, 4, 3, 2, 2)
    assert batch["vae_latent"].unique().tolist() == [0.0, 7.0]
    assert batch["text_embedding"].shape == (2, 3, 5)
    assert torch.equal(batch["text_embedding"][0], torch.full((3, 5), 8.0))
    assert torch.equal(batch["text_embedding"][1, :, 0], torch.tensor([1.0, 0.0, 0.0]))
    assert batch["text_attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["text_attention_mask"].dtype == torch.float32
    assert batch["caption_text"] == ["caption 7", "caption 0"]
    assert batch["info_list"][0] == {
        "id": "clip007",
        "file_name": "clip007",
        "caption": "caption 7",
        "prompt": "caption 7",
        "media_type": "video",
        "width": 64,
        "height": 48,
        "num_frames": 3,
        "duration_sec": 0.375,
        "fps": 8.0,
    }


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str
)
def test_stored_dtype_is_honoured(t2v_dataset: Callable[..., Path], dtype: torch.dtype) -> None:
    """Whatever floating dtype the file stores, the batch holds its values in float32."""
    batch = _dataset(t2v_dataset(3, dtype=dtype)).__getitems__([2])
    assert torch.equal(batch["vae_latent"], torch.full((1, 4, 3, 2, 2), 2.0))
    assert torch.equal(batch["text_embedding"], torch.full((1, 3, 5), 3.0))
    assert batch["text_embedding"].dtype == torch.float32


def test_batches_own_their_memory(t2v_dataset: Callable[..., Path]) -> None:
    """Changing a batch in place does not change what is read next."""
    dataset = _dataset(t2v_dataset(2))
    dataset.__getitems__([1])["vae_latent"].fill_(9.0)
    assert dataset.__getitems__([1])["vae_latent"].unique().tolist() == [1.0]


def test_single_item(t2v_dataset: Callable[..., Path]) -> None:
    """One index gives a batch of one; the length counts repeats."""
    root = t2v_dataset(5)
    dataset = LatentsParquetMapStyleDataset(
        {str(root): 2}, 1, parquet_schema=pyarrow_schema_t2v, text_padding_length=3
    )
    assert len(dataset) == 10
    assert dataset[6]["caption_text"] == ["caption 2"]  # clips 0-3, 0-3 again, then 4, 4
    assert sorted(dataset[i]["caption_text"][0] for i in range(10)) == sorted(
        f"caption {i}" for i in [*range(5), *range(5)]
    )


def test_public_attributes(t2v_dataset: Callable[..., Path]) -> None:
    """Methods that look into the data set find what they look for."""
    root = t2v_dataset(5)
    dataset = _dataset(root, cfg_rate=0.5, seed=3)
    assert dataset.path == str(root)
    assert len(dataset.parquet_files) == len(dataset.lengths) == 2
    assert sum(dataset.lengths) == 5
    assert dataset.parquet_schema is pyarrow_schema_t2v
    assert (dataset.text_padding_length, dataset.cfg_rate, dataset.seed) == (3, 0.5, 3)
    assert len(dataset.sampler) == 5


# --- text


def test_text_only_data_set(tmp_path: Path) -> None:
    """A data set of captions has batches without latents."""
    records = [text_only_record_creator(str(i), torch.ones(2, 5), f"c{i}") for i in range(3)]
    path = _write(tmp_path / "a.parquet", records, pyarrow_schema_text_only)
    batch = _dataset(path, parquet_schema=pyarrow_schema_text_only).__getitems__([2])
    assert "vae_latent" not in batch
    assert batch["info_list"] == [{"id": "text_2", "caption": "c2", "prompt": "c2"}]


def test_empty_text(tmp_path: Path, videos: Callable[..., VideoBatch]) -> None:
    """Rows without text are zeros under a zero mask, next to rows with text and alone."""
    records = basic_t2v_record_creator(videos(3))
    empty = {"text_embedding_bytes": b"", "text_embedding_shape": []}
    records[0] |= empty
    records[1] |= empty | {"caption": None}
    dataset = _dataset(_write(tmp_path / "a.parquet", records, pyarrow_schema_t2v))
    batch = dataset.__getitems__([0, 1, 2])
    assert batch["text_embedding"].shape == (3, 3, 5)
    assert batch["text_attention_mask"].sum(1).tolist() == [0, 0, 3]
    assert batch["text_embedding"][:2].abs().sum() == 0
    assert batch["caption_text"] == ["caption 0", "", "caption 2"]
    alone = dataset.__getitems__([0])
    assert alone["text_embedding"].shape == (1, 3, 5)
    assert not alone["text_embedding"].any()
    assert not alone["text_attention_mask"].any()


def test_a_data_set_without_any_text_is_refused(
    tmp_path: Path, videos: Callable[..., VideoBatch]
) -> None:
    """Where no row tells the size of an embedding, the message names file, row and column."""
    records = basic_t2v_record_creator(videos(2))
    for record in records:
        record |= {"text_embedding_bytes": b"", "text_embedding_shape": []}
    dataset = _dataset(_write(tmp_path / "a.parquet", records, pyarrow_schema_t2v))
    with pytest.raises(DataError, match=r"a\.parquet row 0: text_embedding is empty, as in all 2"):
        dataset.__getitems__([1])


@pytest.mark.parametrize("column", ["text_embedding_bytes", "vae_latent_bytes"])
@pytest.mark.parametrize("indices", [[1], [0, 1]])
def test_nulls_are_refused_at_any_batch_size(
    tmp_path: Path, videos: Callable[..., VideoBatch], column: str, indices: list[int]
) -> None:
    """A null never passes for an empty prompt; the message names file, row and column."""
    records = basic_t2v_record_creator(videos(2))
    records[1] |= {column: None}
    dataset = _dataset(_write(tmp_path / "a.parquet", records, pyarrow_schema_t2v))
    with pytest.raises(DataError, match=rf"a\.parquet row 1: {column} is null"):
        dataset.__getitems__(indices)


def test_a_video_without_latents_is_refused(
    tmp_path: Path, videos: Callable[..., VideoBatch]
) -> None:
    """Zero bytes are an empty caption, but no video."""
    records = basic_t2v_record_creator(videos(2))
    records[1] |= {"vae_latent_bytes": b"", "vae_latent_shape": []}
    dataset = _dataset(_write(tmp_path / "a.parquet", records, pyarrow_schema_t2v))
    with pytest.raises(DataError, match=r"a\.parquet row 1: vae_latent has no elements"):
        dataset.__getitems__([1])


def _dropped(dataset: LatentsParquetMapStyleDataset, epoch: int, rows: int) -> list[bool]:
    batch = dataset.__getitems__(IndexBatch(range(rows), epoch=epoch, position=0))
    assert batch["text_attention_mask"][:, 0].tolist() == [1.0] * rows  # the mask stays
    return [not embedding.any() for embedding in batch["text_embedding"]]


def test_text_is_dropped_afresh_in_every_epoch(t2v_dataset: Callable[..., Path]) -> None:
    """The rate is kept, the choice depends on epoch and seed, and repeating it is exact."""
    root = t2v_dataset(300, samples_per_file=300)
    dataset = _dataset(root, cfg_rate=0.3, seed=1)
    epochs = [_dropped(dataset, epoch, 300) for epoch in range(3)]
    for dropped in epochs:
        assert sum(dropped) / 300 == pytest.approx(0.3, abs=0.09)
    assert epochs[0] != epochs[1] != epochs[2]
    assert _dropped(_dataset(root, cfg_rate=0.3, seed=1), 1, 300) == epochs[1]
    assert _dropped(_dataset(root, cfg_rate=0.3, seed=2), 1, 300) != epochs[1]


def test_choice_does_not_depend_on_the_batch(t2v_dataset: Callable[..., Path]) -> None:
    """A row loses its text or not, whichever rows come with it."""
    dataset = _dataset(t2v_dataset(20), cfg_rate=0.5)
    together = _dropped(dataset, 0, 20)
    alone = [not dataset[index]["text_embedding"].any() for index in range(20)]
    assert alone == together


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0), (1.0, 20)])
def test_rates_at_the_ends(t2v_dataset: Callable[..., Path], rate: float, expected: int) -> None:
    """A rate of 0 drops nothing, a rate of 1 everything."""
    assert sum(_dropped(_dataset(t2v_dataset(20), cfg_rate=rate), 0, 20)) == expected


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"cfg_rate": 1.5}, r"training_cfg_rate must lie between 0 and 1, got 1\.5"),
        ({"cfg_rate": float("nan")}, "between 0 and 1, got nan"),
        ({"text_padding_length": 0}, "text_padding_length must be at least 1, got 0"),
    ],
)
def test_options_out_of_range(
    t2v_dataset: Callable[..., Path], option: dict[str, float], message: str
) -> None:
    """An option out of range is named with its value."""
    with pytest.raises(ConfigError, match=message):
        _dataset(t2v_dataset(2), **option)


# --- other columns, and columns that do not fit


def test_image_to_video_columns_are_stacked(
    tmp_path: Path, videos: Callable[..., VideoBatch]
) -> None:
    """Further tensors arrive stacked, pixels as integers; absent ones without elements."""
    batch = replace(
        videos(2),
        clip_feature=torch.ones(2, 7, 6).half(),
        first_frame_latent=torch.zeros(2, 4, 1, 2, 2),
        pil_image=torch.full((2, 3, 8, 8), 200, dtype=torch.uint8),
    )
    records = i2v_record_creator(batch)
    for record in records:
        record |= {"first_frame_latent_bytes": b""}
    path = _write(tmp_path / "a.parquet", records, pyarrow_schema_i2v)
    got = _dataset(path, parquet_schema=pyarrow_schema_i2v).__getitems__([0, 1])
    assert torch.equal(got["clip_feature"], torch.ones(2, 7, 6))
    assert got["pil_image"].dtype == torch.uint8
    assert got["pil_image"].unique().tolist() == [200]
    assert got["first_frame_latent"].shape == (2, 0)


def test_columns_beyond_the_schema_are_ignored(
    tmp_path: Path, videos: Callable[..., VideoBatch]
) -> None:
    """A file may hold more than the schema asks for, and lack scalars nobody needs."""
    table = records_to_table(basic_t2v_record_creator(videos(2)), pyarrow_schema_t2v)
    table = table.append_column("score", [[1.0, 2.0]]).drop_columns(["fps"])
    pq.write_table(table, tmp_path / "a.parquet")
    info = _dataset(tmp_path).__getitems__([1])["info_list"][0]
    assert "score" not in info
    assert "fps" not in info
    assert info["width"] == 64


def test_latents_of_different_shapes(tmp_path: Path, videos: Callable[..., VideoBatch]) -> None:
    """Two sizes in one batch name the field, both shapes and the files."""
    batch = replace(videos(2), latents=[torch.zeros(4, 3, 2, 2), torch.zeros(4, 3, 2, 4)])
    path = _write(tmp_path / "a.parquet", basic_t2v_record_creator(batch), pyarrow_schema_t2v)
    dataset = _dataset(path)
    message = (
        r"vae_latent has different shapes.*\[4, 3, 2, 2\] in .*a\.parquet row 0 and \[4, 3, 2, 4\]"
    )
    with pytest.raises(ValueError, match=message):
        dataset.__getitems__([0, 1])
    assert dataset[1]["vae_latent"].shape == (1, 4, 3, 2, 4)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (torch.zeros(2, 6), r"text_embedding has different sizes D .*\[1, 5\].*\[2, 6\].*row 1"),
        (torch.zeros(1, 2, 5), r"row 1: text_embedding must be \[L, D\], got \[1, 2, 5\]"),
    ],
)
def test_text_of_different_sizes(
    tmp_path: Path, videos: Callable[..., VideoBatch], second: torch.Tensor, message: str
) -> None:
    """Embeddings of two encoders, or of another rank, are named."""
    batch = replace(videos(2), prompt_embeds=[torch.zeros(1, 5), second])
    path = _write(tmp_path / "a.parquet", basic_t2v_record_creator(batch), pyarrow_schema_t2v)
    with pytest.raises(DataError, match=message):
        _dataset(path).__getitems__([0, 1])


def test_rows_with_wrong_bytes_are_named(tmp_path: Path, videos: Callable[..., VideoBatch]) -> None:
    """A row whose bytes do not fit its shape names file, row and field."""
    records = basic_t2v_record_creator(videos(2))
    records[1] |= {"vae_latent_shape": [4, 3, 2, 3]}
    dataset = _dataset(_write(tmp_path / "a.parquet", records, pyarrow_schema_t2v))
    with pytest.raises(DataError, match=r"a\.parquet row 1: vae_latent has 192 bytes"):
        dataset.__getitems__([1])


# --- processes and threads


def test_pickled_dataset_reads(t2v_dataset: Callable[..., Path]) -> None:
    """A used data set can be sent to a spawned worker."""
    dataset = _dataset(t2v_dataset(4), threads=1)
    first = dataset.__getitems__(IndexBatch([1], epoch=0, position=0))
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy.__getitems__([1])["vae_latent"], first["vae_latent"])


def test_reading_ahead_gives_the_same_batches(t2v_dataset: Callable[..., Path]) -> None:
    """With and without threads, over two epochs, every batch is the same."""
    root = t2v_dataset(9)
    plain, ahead = (_dataset(root, cfg_rate=0.5, threads=n) for n in (0, 3))
    for _ in range(2):
        for batch in plain.sampler:
            expected, got = plain.__getitems__(batch), ahead.__getitems__(batch)
            assert got["caption_text"] == expected["caption_text"]
            assert torch.equal(got["text_embedding"], expected["text_embedding"])
