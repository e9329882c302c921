"""Records hold what the schemas promise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import torch

from fastvideo.dataset import (
    basic_t2v_record_creator,
    i2v_record_creator,
    ode_text_only_record_creator,
    pyarrow_schema_i2v,
    pyarrow_schema_ode_trajectory_text_only,
    pyarrow_schema_t2v,
    pyarrow_schema_text_only,
    records_to_table,
    text_only_record_creator,
)
from fastvideo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastvideo.dataset import VideoBatch


def test_t2v_record(videos: Callable[..., VideoBatch]) -> None:
    """A video becomes one row; frames are latent frames and the duration follows from fps."""
    record = basic_t2v_record_creator(videos(2))[1]
    assert record["id"] == record["file_name"] == "clip001"
    assert record["caption"] == "caption 1"
    assert record["media_type"] == "video"
    assert (record["width"], record["height"]) == (64, 48)
    assert record["vae_latent_shape"] == [4, 3, 2, 2]
    assert record["text_embedding_shape"] == [2, 5]
    assert record["num_frames"] == 3
    assert record["duration_sec"] == 3 / 8.0


def test_t2v_records_fit_the_schema(videos: Callable[..., VideoBatch]) -> None:
    """The table has exactly the columns of the schema."""
    table = records_to_table(basic_t2v_record_creator(videos(3)), pyarrow_schema_t2v)
    assert table.schema == pyarrow_schema_t2v
    assert table.column("id").to_pylist() == ["clip000", "clip001", "clip002"]


def test_unequal_sequences_are_named(videos: Callable[..., VideoBatch]) -> None:
    """A batch with too few captions says so."""
    with pytest.raises(DataError, match="2 videos needs 2 values of 'prompt', got 1"):
        basic_t2v_record_creator(replace(videos(2), prompt=["one"]))


def test_i2v_record_adds_the_first_frame(videos: Callable[..., VideoBatch]) -> None:
    """An image-to-video row carries features, latent and pixels of the first frame."""
    batch = replace(
        videos(2),
        clip_feature=torch.zeros(2, 7, 6),
        first_frame_latent=torch.zeros(2, 4, 1, 2, 2),
        pil_image=torch.zeros(2, 3, 16, 16, dtype=torch.uint8),
    )
    table = records_to_table(i2v_record_creator(batch), pyarrow_schema_i2v)
    row = table.slice(1, 1).to_pylist()[0]
    assert row["clip_feature_shape"] == [7, 6]
    assert row["pil_image_dtype"] == "uint8"
    with pytest.raises(DataError, match="as many 'clip_feature', got 0"):
        i2v_record_creator(videos(2))


def test_text_only_record() -> None:
    """A caption's id is text_ and its name."""
    record = text_only_record_creator("a1", torch.ones(3, 5), "a cat")
    assert record["id"] == "text_a1"
    assert record["caption"] == "a cat"
    assert records_to_table([record], pyarrow_schema_text_only).num_rows == 1


def test_ode_record() -> None:
    """A trajectory row fits its schema and keeps integer timesteps."""
    record = ode_text_only_record_creator(
        "a1",
        torch.ones(3, 5),
        "a cat",
        trajectory_latents=torch.zeros(2, 4, 1, 2, 2),
        trajectory_timesteps=torch.tensor([999, 500]),
    )
    table = records_to_table([record], pyarrow_schema_ode_trajectory_text_only)
    assert table.column("trajectory_timesteps_dtype").to_pylist() == ["int64"]


def test_missing_and_extra_columns_are_named() -> None:
    """A record that does not fit is an error instead of nulls or lost values."""
    record = text_only_record_creator("a", torch.ones(1, 5), "x")
    del record["caption"]
    record["captoin"] = "x"
    expected = r"record 1 .* missing \['caption'\], extra \['captoin'\]"
    good = text_only_record_creator("a", torch.ones(1, 5), "x")
    with pytest.raises(DataError, match=expected):
        records_to_table([good, record], pyarrow_schema_text_only)


def test_wrong_type_names_the_column() -> None:
    """A number as a caption is named, not stored."""
    record = text_only_record_creator("a", torch.ones(1, 5), "x") | {"caption": 5}
    with pytest.raises(DataError, match="column 'caption' needs values of type string"):
        records_to_table([record], pyarrow_schema_text_only)


def test_no_records_make_an_empty_table() -> None:
    """An empty list gives a table of the schema without rows."""
    table = records_to_table([], pyarrow_schema_t2v)
    assert table.num_rows == 0
    assert isinstance(table, pa.Table)
