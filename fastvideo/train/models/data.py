"""The loader of the run, made from its ``training.data`` section."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastvideo import dataset
from fastvideo.distributed import get_local_rank, get_sp_world_size, get_world_rank, get_world_size
from fastvideo.errors import ConfigError

if TYPE_CHECKING:
    from fastvideo.train.config import TrainingConfig

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
        num_sp_groups=get_world_size() // get_sp_world_size(),
        sp_world_size=get_sp_world_size(),
        global_rank=get_world_rank(),
        local_rank=get_local_rank(),
        required_columns=("vae_latent",) if has_latents else (),
    )
