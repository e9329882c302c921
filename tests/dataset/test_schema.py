"""The parquet schemas are a contract with data sets that exist."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fastvideo.dataset import (
    pyarrow_schema_i2v,
    pyarrow_schema_ode_trajectory_text_only,
    pyarrow_schema_t2v,
    pyarrow_schema_t2va,
    pyarrow_schema_text_only,
)
from fastvideo.dataset.schema import scalar_columns, tensor_column_parts, tensor_columns


def _triplet(name: str) -> list[str]:
    return [f"{name}_bytes", f"{name}_shape", f"{name}_dtype"]


_T2V_NAMES = [
    "id",
    *_triplet("vae_latent"),
    *_triplet("text_embedding"),
    *["file_name", "caption", "media_type"],
    *["width", "height", "num_frames", "duration_sec", "fps"],
]


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        (pyarrow_schema_t2v, _T2V_NAMES),
        (pyarrow_schema_text_only, ["id", *_triplet("text_embedding"), "caption"]),
        (
            pyarrow_schema_i2v,
            [
                *_T2V_NAMES,
                *_triplet("clip_feature"),
                *_triplet("first_frame_latent"),
                *_triplet("pil_image"),
            ],
        ),
        (pyarrow_schema_t2va, [*_T2V_NAMES, *_triplet("audio_latent"), "audio_sample_rate"]),
        (
            pyarrow_schema_ode_trajectory_text_only,
            [
                "id",
                *_triplet("text_embedding"),
                *_triplet("trajectory_latents"),
                *_triplet("trajectory_timesteps"),
                *["file_name", "caption", "media_type"],
            ],
        ),
    ],
)
def test_columns(schema: pa.Schema, names: list[str]) -> None:
    """Every schema has exactly the columns of the contract."""
    assert sorted(schema.names) == sorted(names)


def test_types() -> None:
    """Bytes, shapes and dtypes, integers, floats and text have the types of the contract."""
    types = {field.name: field.type for field in pyarrow_schema_t2va}
    assert types["vae_latent_bytes"] == pa.binary()
    assert types["vae_latent_shape"] == pa.list_(pa.int64())
    assert types["vae_latent_dtype"] == pa.string()
    assert types["num_frames"] == types["audio_sample_rate"] == pa.int64()
    assert types["fps"] == types["duration_sec"] == pa.float64()
    assert types["caption"] == pa.string()


def test_tensor_and_scalar_columns_share_the_schema() -> None:
    """Every column belongs to one tensor or is a scalar."""
    tensors = tensor_columns(pyarrow_schema_i2v)
    assert tensors == (
        "vae_latent",
        "text_embedding",
        "clip_feature",
        "first_frame_latent",
        "pil_image",
    )
    parts = [part for name in tensors for part in tensor_column_parts(name)]
    scalars = scalar_columns(pyarrow_schema_i2v)
    assert sorted([*parts, *scalars]) == sorted(pyarrow_schema_i2v.names)


def test_bytes_without_shape_are_no_tensor() -> None:
    """A column that merely ends in _bytes is a scalar."""
    schema = pa.schema([pa.field("thumbnail_bytes", pa.binary())])
    assert tensor_columns(schema) == ()
    assert scalar_columns(schema) == ("thumbnail_bytes",)
