"""The parquet schemas of preprocessed data sets.

A tensor takes three columns: ``<name>_bytes`` (C order, little endian), ``<name>_shape`` and
``<name>_dtype`` (``float32``, ``float16``, ``bfloat16``, ``float64`` or an integer type).
"""

from __future__ import annotations

from fastvideo.dataset.arrow import pa

_TENSOR_SUFFIXES = ("_bytes", "_shape", "_dtype")


def tensor_fields(name: str) -> list[pa.Field]:
    """Returns the three Arrow fields that hold the tensor called ``name``."""
    types = (pa.binary(), pa.list_(pa.int64()), pa.string())
    return [
        pa.field(f"{name}{suffix}", type_)
        for suffix, type_ in zip(_TENSOR_SUFFIXES, types, strict=True)
    ]


def tensor_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Returns the names of the tensors of ``schema``, in its order and without suffixes."""
    names = set(schema.names)
    stems = (name.removesuffix("_bytes") for name in schema.names if name.endswith("_bytes"))
    return tuple(stem for stem in stems if names.issuperset(stem + s for s in _TENSOR_SUFFIXES))


def tensor_column_parts(name: str) -> tuple[str, str, str]:
    """Returns the column names for bytes, shape and dtype of the tensor called ``name``."""
    return (f"{name}_bytes", f"{name}_shape", f"{name}_dtype")


def scalar_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Returns the names of the columns of ``schema`` that belong to no tensor, in its order."""
    parts = {part for name in tensor_columns(schema) for part in tensor_column_parts(name)}
    return tuple(name for name in schema.names if name not in parts)


_ID = [pa.field("id", pa.string())]
_TEXT = tensor_fields("text_embedding")
_SOURCE = [pa.field(name, pa.string()) for name in ("file_name", "caption", "media_type")]
_VIDEO = [
    *[pa.field(name, pa.int64()) for name in ("width", "height", "num_frames")],
    *[pa.field(name, pa.float64()) for name in ("duration_sec", "fps")],
]
_T2V = [*_ID, *tensor_fields("vae_latent"), *_TEXT, *_SOURCE, *_VIDEO]

pyarrow_schema_t2v = pa.schema(_T2V)
"""Videos with captions: ``vae_latent`` [C, T, H, W] and ``text_embedding`` [L, D]."""

pyarrow_schema_text_only = pa.schema([*_ID, *_TEXT, pa.field("caption", pa.string())])
"""Captions alone: ``text_embedding`` [L, D]."""

pyarrow_schema_i2v = pa.schema(
    [
        *_T2V,
        *tensor_fields("clip_feature"),
        *tensor_fields("first_frame_latent"),
        *tensor_fields("pil_image"),
    ]
)
"""Text-to-video plus the first frame: its CLIP features, its latent and its pixels."""

pyarrow_schema_t2va = pa.schema(
    [*_T2V, *tensor_fields("audio_latent"), pa.field("audio_sample_rate", pa.int64())]
)
"""Text-to-video plus sound: ``audio_latent`` and its sample rate in hertz."""

pyarrow_schema_ode_trajectory_text_only = pa.schema(
    [
        *_ID,
        *_TEXT,
        *tensor_fields("trajectory_latents"),
        *tensor_fields("trajectory_timesteps"),
        *_SOURCE,
    ]
)
"""Captions with the latents and timesteps of a teacher's sampling trajectory."""
