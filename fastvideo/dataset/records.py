"""From preprocessed samples to rows of a parquet table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastvideo.dataset.arrow import pa
from fastvideo.dataset.tensors import tensor_record
from fastvideo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import torch

    Array = torch.Tensor | np.ndarray[Any, Any]

Record = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoBatch:
    """Preprocessed video samples, one entry per sample in every sequence.

    Attributes:
        video_file_name: Name of each clip; the id of its row.
        prompt: Caption of each clip.
        latents: [C, T, H, W] each, the mean of the VAE posterior, not normalised.
        prompt_embeds: [L, D] each, padding trimmed.
        width: Pixels.
        height: Pixels.
        fps: Frames per second.
        clip_feature: CLIP features of the first frame; image-to-video only.
        first_frame_latent: Latent of the first frame; image-to-video only.
        pil_image: Pixels of the first frame, uint8; image-to-video only.
    """

    video_file_name: Sequence[str]
    prompt: Sequence[str]
    latents: Sequence[Array] | Array
    prompt_embeds: Sequence[Array]
    width: Sequence[int]
    height: Sequence[int]
    fps: Sequence[float]
    clip_feature: Sequence[Array] | Array | None = None
    first_frame_latent: Sequence[Array] | Array | None = None
    pil_image: Sequence[Array] | Array | None = None


def basic_t2v_record_creator(batch: VideoBatch) -> list[Record]:
    """Returns one row of the text-to-video schema per sample.

    ``num_frames`` counts latent frames, the second axis of the latent, and ``duration_sec`` is
    that number over ``fps``.

    Args:
        batch: A :class:`VideoBatch`, or any object with its attributes.

    Raises:
        DataError: The sequences have different lengths.
    """
    columns = ("prompt", "latents", "prompt_embeds", "width", "height", "fps")
    size = len(batch.video_file_name)
    for name in columns:
        if len(getattr(batch, name)) != size:
            message = (
                f"a batch of {size} videos needs {size} values of {name!r}, "
                f"got {len(getattr(batch, name))}"
            )
            raise DataError(message)
    return [_t2v_record(batch, index) for index in range(size)]


def _t2v_record(batch: VideoBatch, index: int) -> Record:
    latent = batch.latents[index]
    name, fps = str(batch.video_file_name[index]), float(batch.fps[index])
    num_frames = int(latent.shape[1]) if latent.ndim > 1 else 0
    return {
        "id": name,
        **tensor_record("vae_latent", latent),
        **tensor_record("text_embedding", batch.prompt_embeds[index]),
        "file_name": name,
        "caption": batch.prompt[index],
        "media_type": "video",
        "width": int(batch.width[index]),
        "height": int(batch.height[index]),
        "num_frames": num_frames,
        "duration_sec": num_frames / fps if fps > 0 else 0.0,
        "fps": fps,
    }


def i2v_record_creator(batch: VideoBatch) -> list[Record]:
    """Returns one row of the image-to-video schema per sample.

    Raises:
        DataError: A sequence is missing or has another length.
    """
    records = basic_t2v_record_creator(batch)
    for name in ("clip_feature", "first_frame_latent", "pil_image"):
        values = getattr(batch, name)
        given = 0 if values is None else len(values)
        if given != len(records):
            message = f"a batch of {len(records)} videos needs as many {name!r}, got {given}"
            raise DataError(message)
        for record, value in zip(records, values, strict=True):
            record.update(tensor_record(name, value))
    return records


def text_only_record_creator(text_name: str, text_embedding: Array, caption: str) -> Record:
    """Returns a row of the text-only schema, with the id ``text_<text_name>``.

    Args:
        text_name: Identifies the caption within the data set.
        text_embedding: [L, D], padding trimmed.
        caption: The text itself.
    """
    return {
        "id": f"text_{text_name}",
        **tensor_record("text_embedding", text_embedding),
        "caption": caption,
    }


def ode_text_only_record_creator(
    text_name: str,
    text_embedding: Array,
    caption: str,
    *,
    trajectory_latents: Array,
    trajectory_timesteps: Array,
) -> Record:
    """Returns a row of the ODE trajectory schema.

    Args:
        text_name: Identifies the caption within the data set.
        text_embedding: [L, D], padding trimmed.
        caption: The text itself.
        trajectory_latents: The latents that a teacher's sampler went through.
        trajectory_timesteps: The timestep of each of them.
    """
    return {
        **text_only_record_creator(text_name, text_embedding, caption),
        **tensor_record("trajectory_latents", trajectory_latents),
        **tensor_record("trajectory_timesteps", trajectory_timesteps),
        "file_name": text_name,
        "media_type": "text",
    }


def records_to_table(records: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """Returns ``records`` as an Arrow table with exactly the columns of ``schema``.

    Raises:
        DataError: A record lacks a column, has one more, or holds a value of another type; the
            message names the record and the column.
    """
    names = set(schema.names)
    for number, record in enumerate(records):
        if record.keys() != names:
            missing, extra = sorted(names - record.keys()), sorted(record.keys() - names)
            message = f"record {number} does not fit the schema: missing {missing}, extra {extra}"
            raise DataError(message)
    arrays = [_column(records, field) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(records: Sequence[Mapping[str, object]], field: pa.Field) -> pa.Array:
    try:
        return pa.array([record[field.name] for record in records], type=field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        message = f"column {field.name!r} needs values of type {field.type}: {error}"
        raise DataError(message) from error
