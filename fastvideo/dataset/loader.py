"""The training data loader: a parquet data set behind torchdata's stateful loader."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, final

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
else:
    _torchdata = import_extra("torchdata.stateful_dataloader", extra="train")
    StatefulDataLoader = _torchdata.StatefulDataLoader

T = TypeVar("T")


def build_parquet_dataloader(
    path: DataPath,
    batch_size: int,
    *,
    parquet_schema: pa.Schema,
    num_data_workers: int = 0,
    seed: int = 0,
    pin_memory: bool | None = None,
    required_columns: Sequence[str] = (),
    **options: Any,  # noqa: ANN401 - those of the data set
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
        num_data_workers: Threads that read the batches to come, two for each; 0 means 1. They are
            no processes: decompressing and copying leave the interpreter to others, and a batch
            needs not be handed over.
        seed: Seed of the order and of the rows that lose their text.
        pin_memory: Hand out tensors in pinned memory; where CUDA is available when None.
        required_columns: Tensors that the method needs, such as ``("vae_latent",)``.
        options: Further arguments of :class:`LatentsParquetMapStyleDataset`, such as
            ``num_sp_groups`` and ``global_rank``.

    Returns:
        The loader; its ``dataset`` is the :class:`LatentsParquetMapStyleDataset`.

    Raises:
        ConfigError: The data set is smaller than one batch per group (a ``ValueError``).
        DataError: A required tensor is not in the data set, or a file is damaged (a
            ``ValueError``).
        FileNotFoundError: There are no files.
    """
    dataset = LatentsParquetMapStyleDataset(
        path,
        batch_size,
        parquet_schema=parquet_schema,
        seed=seed,
        threads=max(1, num_data_workers),
        pin_memory=torch.cuda.is_available() and pin_memory is not False,
        **options,
    )
    check_columns(dataset, required_columns)
    return stateful_loader(
        dataset,
        dataset.sampler,
        seed=seed,
        pin_memory=pin_memory,
    )


@final
class ResumableDataLoader(StatefulDataLoader[T]):  # type: ignore[misc] # torchdata has no types
    """torchdata's stateful loader, which also takes the states of loaders with worker processes."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where a saved loader was, whatever its number of workers."""
        if self.num_workers == 0 and "_snapshot" in state_dict:
            state_dict = without_workers(state_dict)
        super().load_state_dict(state_dict)


def without_workers(state: dict[str, Any]) -> dict[str, Any]:
    """Returns what a loader without worker processes would have saved at the same place.

    Args:
        state: The state of a loader with worker processes, as torchdata makes it.
    """
    snapshot, behind = state["_snapshot"], state["_steps_since_snapshot"]
    main, finished = snapshot["_main_snapshot"], state["_iterator_finished"]
    iterator, sampler = dict(main["_sampler_iter_state"]), dict(main["_index_sampler_state"])
    iterator["position"] += behind
    # Such a loader leaves it to the next iterator to count the epoch that has ended.
    sampler["epoch"] = iterator["epoch"] + int(finished)
    return {
        "_index_sampler_state": sampler,
        "_sampler_iter_state": iterator,
        "_sampler_iter_yielded": main["_sampler_iter_yielded"] + behind,
        "_num_yielded": snapshot["_snapshot_step"] + behind,
        "_IterableDataset_len_called": main["_IterableDataset_len_called"],
        "_shared_seed": main["_shared_seed"],
        "fetcher_state": None,
        "dataset_state": None,
        "_iterator_finished": finished,
    }


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
        num_data_workers: Worker processes, for a data set that has no threads of its own.
        seed: Seed of the loader's own random numbers.
        pin_memory: Hand out tensors in pinned memory; where CUDA is available when None.
    """
    with warnings.catch_warnings():
        # torchdata 0.11 still makes a call that torch 2.13 deprecates; nobody here can act on it.
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
        return ResumableDataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=_identity,
            num_workers=num_data_workers,
            pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
            persistent_workers=num_data_workers > 0,
            worker_init_fn=outlive_first_sigterm,
            # A generator of its own: the loader draws a seed per epoch, which would otherwise
            # move the global random state of the training.
            generator=torch.Generator().manual_seed(seed),
        )


def _identity(batch: T) -> T:
    return batch


def outlive_first_sigterm(worker: int) -> None:
    """Lets this worker process go on after one SIGTERM of others than its parent.

    Schedulers that end a job send SIGTERM to all of its processes at once. The run then finishes
    its step and saves, for which it may still need batches; its end ends the workers.

    Args:
        worker: Number of the worker.
    """
    del worker
    parent = multiprocessing.parent_process()
    if parent is None or not hasattr(signal, "sigwaitinfo"):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    thread = threading.Thread(target=_await_sigterm, args=(parent.pid,), daemon=True)
    thread.start()


def _await_sigterm(parent: int) -> None:
    """Ends this process on the parent's first SIGTERM, or on anybody's second."""
    senders: list[int] = []
    while parent not in senders and len(senders) < 2:  # noqa: PLR2004 - see above
        senders.append(signal.sigwaitinfo({signal.SIGTERM}).si_pid)
    os._exit(0)


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
