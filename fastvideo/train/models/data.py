"""The loader of the run, made from its ``training.data`` section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fastvideo import dataset
from fastvideo.distributed import get_sp_world_size, get_world_rank, get_world_size
from fastvideo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fastvideo.train.config import DistributedConfig, TrainingConfig

_SCHEMAS = {
    "t2v": "pyarrow_schema_t2v",
    "t2va": "pyarrow_schema_t2va",
    "text_only": "pyarrow_schema_text_only",
}


def build_training_dataloader(training_config: TrainingConfig, *, text_len: int) -> Any:  # noqa: ANN401
    """Returns the stateful loader of this rank's share of ``training.data.data_path``.

    Args:
        training_config: Its ``data`` section says what is read.
        text_len: Length that text embeddings are padded or cut to, in tokens.

    Raises:
        ConfigError: No data path is set, or the data type is unknown.
        ValueError: The data set is smaller than one batch per rank, or lacks a column.
    """
    data = training_config.data
    if not data.data_path:
        message = "training.data.data_path is empty; set it to a preprocessed parquet data set"
        raise ConfigError(message)
    if data.preprocessed_data_type not in _SCHEMAS:
        message = (
            f"training.data.preprocessed_data_type is {data.preprocessed_data_type!r}; expected "
            f"one of {', '.join(_SCHEMAS)}"
        )
        raise ConfigError(message)
    has_latents = data.preprocessed_data_type != "text_only"
    return dataset.build_parquet_dataloader(
        data.data_path,
        data.train_batch_size,
        parquet_schema=getattr(dataset, _SCHEMAS[data.preprocessed_data_type]),
        cfg_rate=data.training_cfg_rate,
        num_data_workers=data.dataloader_num_workers,
        text_padding_length=text_len,
        seed=data.seed,
        pin_memory=pins_batches(training_config.distributed),
        num_sp_groups=get_world_size() // get_sp_world_size(),
        sp_world_size=get_sp_world_size(),
        global_rank=get_world_rank(),
        required_columns=("vae_latent",) if has_latents else (),
    )


def pins_batches(distributed: DistributedConfig) -> bool:
    """Tells whether batches are in page-locked memory: if that is asked for, and there is CUDA.

    Args:
        distributed: The ``training.distributed`` section.
    """
    return distributed.pin_cpu_memory and torch.cuda.is_available()


def check_latent_shape(latents: Tensor, *, channels: int, patch: Sequence[int]) -> None:
    """Compares the latents of a batch with what the model can take.

    Args:
        latents: The column ``vae_latent`` of a batch, [B, C, T, H, W] if all is well.
        channels: C of the model.
        patch: Latent frames and pixels that the model takes as one token: T, H, W.

    Raises:
        DataError: Dimensions or C differ, or T, H or W is no multiple of ``patch``.
    """
    shape = tuple(latents.shape[1:])
    names = zip("THW", patch, strict=True)
    wanted = ", ".join(name if size == 1 else f"{name} ({size}·n)" for name, size in names)
    fits = len(shape) == len(patch) + 1 and shape[0] == channels
    if not fits or any(n < 1 or n % size for n, size in zip(shape[1:], patch, strict=True)):
        message = (
            f"column vae_latent: a row has the shape {list(shape)}; the model takes "
            f"[{channels}, {wanted}]. training.data.data_path was preprocessed for another model "
            f"or size: preprocess it with the model of models.student.init_from"
        )
        raise DataError(message)


def check_text_shape(embeddings: Tensor, *, width: int) -> None:
    """Compares the text embeddings of a batch with what the model can take.

    Args:
        embeddings: The column ``text_embedding`` of a batch, [B, L, D] if all is well.
        width: D of the model.

    Raises:
        DataError: Dimensions or D differ.
    """
    shape = tuple(embeddings.shape[1:])
    if len(shape) != 2 or shape[1] != width:  # noqa: PLR2004 - tokens and features
        message = (
            f"column text_embedding: a row has the shape {list(shape)}; the model takes "
            f"[L, {width}]. training.data.data_path was preprocessed with the text encoder of "
            f"another model: preprocess it with the model of models.student.init_from"
        )
        raise DataError(message)
