"""The training data loader: a parquet data set behind torchdata's stateful loader."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fastvideo.dataset.arrow import pa, pq, unreadable
from fastvideo.dataset.parquet_dataset import LatentsParquetMapStyleDataset
from fastvideo.dataset.schema import tensor_column_parts, tensor_columns
from fastvideo.errors import DataError, import_extra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import Dataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    from fastvideo.dataset.file_list import DataPath
    from fastvideo.dataset.sampler import DP_SP_BatchSampler

T = TypeVar("T")


def build_parquet_dataloader(  # noqa: PLR0913 - all keyword-only but two
    path: DataPath,
    batch_size: int,
    *,
    parquet_schema: pa.Schema,
    cfg_rate: float = 0.0,
    num_data_workers: int = 0,
    text_padding_length: int = 512,
    seed: int = 0,
    drop_last: bool = True,
    drop_first_row: bool = False,
    num_sp_groups: int = 1,
    sp_world_size: int = 1,
    global_rank: int = 0,
    local_rank: int = 0,  # noqa: ARG001 - the file lock settles which rank counts the rows
    pin_memory: bool | None = None,
    required_columns: Sequence[str] = (),
) -> StatefulDataLoader:
    """Builds the loader of one rank.

    Iterating it gives one epoch of the batches that :class:`LatentsParquetMapStyleDataset`
    describes; the next iterator gives the next epoch, in another order. ``state_dict()`` holds
    epoch and position: a loader of the same arguments that loads it goes on with exactly the
    batches that were left. A state taken after the last batch of an epoch resumes with an
    iterator that is empty, then goes on with the next epoch.

    Args:
        path: A directory, ``"a:2,b:1"``, a list, or a mapping from path to repeat.
        batch_size: Rows per batch and data-parallel group.
        parquet_schema: One of the schemas of :mod:`fastvideo.dataset.schema`.
        cfg_rate: Probability that a row loses its text.
        num_data_workers: Worker processes; without any, one thread reads one batch ahead.
        text_padding_length: Tokens per text embedding in a batch.
        seed: Seed of the order and of the rows that lose their text.
        drop_last: Leave out rows that do not fill a batch in every group.
        drop_first_row: Never take row 0.
        num_sp_groups: Data-parallel groups.
        sp_world_size: Ranks that share a sample.
        global_rank: Rank of this process.
        local_rank: Rank of this process on its machine; taken for symmetry with launchers, and
            not needed, since whichever rank comes first lists the files for its machine.
        pin_memory: Hand out tensors in pinned memory; where CUDA is available when None.
        required_columns: Tensors that the method needs, such as ``("vae_latent",)``.

    Returns:
        The loader; its ``dataset`` is the :class:`LatentsParquetMapStyleDataset`.

    Raises:
        ConfigError: The data set is smaller than one batch per group (a ``ValueError``).
        DataError: A required tensor is not in the data set, or a file is damaged (a
            ``ValueError``).
        FileNotFoundError: There are no files.
    """
    import_extra("torchdata.stateful_dataloader", extra="train")
    dataset = LatentsParquetMapStyleDataset(
        path,
        batch_size,
        parquet_schema=parquet_schema,
        cfg_rate=cfg_rate,
        seed=seed,
        drop_last=drop_last,
        drop_first_row=drop_first_row,
        text_padding_length=text_padding_length,
        num_sp_groups=num_sp_groups,
        sp_world_size=sp_world_size,
        global_rank=global_rank,
        read_ahead=num_data_workers == 0,
    )
    check_columns(dataset, required_columns)
    return stateful_loader(
        dataset,
        dataset.sampler,
        num_data_workers=num_data_workers,
        seed=seed,
        pin_memory=pin_memory,
    )


def stateful_loader(
    dataset: Dataset[Any],
    sampler: DP_SP_BatchSampler,
    *,
    num_data_workers: int = 0,
    seed: int = 0,
    pin_memory: bool | None = None,
) -> StatefulDataLoader:
    """Puts torchdata's stateful loader in front of a data set that is asked for whole batches.

    Args:
        dataset: Its ``__getitems__`` returns a batch.
        sampler: Which rows make which batch.
        num_data_workers: Worker processes.
        seed: Seed of the loader's own random numbers.
        pin_memory: Hand out tensors in pinned memory; where CUDA is available when None.
    """
    stateful = import_extra("torchdata.stateful_dataloader", extra="train")
    with warnings.catch_warnings():
        # torchdata 0.11 still makes a call that torch 2.13 deprecates; nobody here can act on it.
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
        loader: StatefulDataLoader = stateful.StatefulDataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=_identity,
            num_workers=num_data_workers,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            persistent_workers=num_data_workers > 0,
            # A generator of its own: the loader draws a seed per epoch, which would otherwise
            # move the global random state of the training.
            generator=torch.Generator().manual_seed(seed),
        )
    return loader


def _identity(batch: T) -> T:
    return batch


def check_columns(dataset: LatentsParquetMapStyleDataset, required: Sequence[str]) -> None:
    """Checks the first file of the data set for the tensors of its schema and ``required``.

    Raises:
        DataError: One is missing, with what is there and what to do.
    """
    declared = tensor_columns(dataset.parquet_schema)
    for name in required:
        if name not in declared:
            message = (
                f"{name} not found: the method needs it, but the chosen schema has only "
                f"{', '.join(declared)}; set training.data.preprocessed_data_type to t2v and "
                f"training.data.data_path to a data set with videos"
            )
            raise DataError(message)
    file = dataset.parquet_files[0]
    try:
        present = set(pq.read_schema(file).names)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error
    for name in declared:
        if not present.issuperset(tensor_column_parts(name)):
            message = (
                f"{name} not found in {file}, which has the columns "
                f"{', '.join(sorted(present))}; training.data.preprocessed_data_type and "
                f"training.data.data_path do not belong together"
            )
            raise DataError(message)
