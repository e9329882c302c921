"""Batches of latents and text embeddings from a preprocessed data set.

Shape letters: B batch, C channels, T latent frames, H and W latent height and width, L tokens,
D embedding size.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from torch.utils.data import Dataset, get_worker_info

from fastvideo.dataset.batch_memory import BatchMemory
from fastvideo.dataset.file_list import DataPath, get_parquet_files_and_length
from fastvideo.dataset.read_ahead import ReadAhead
from fastvideo.dataset.row_groups import Row, RowGroupReader
from fastvideo.dataset.sampler import DP_SP_BatchSampler, IndexBatch, stable_hash
from fastvideo.dataset.schema import scalar_columns, tensor_column_parts, tensor_columns
from fastvideo.dataset.tensors import StoredTensor, stack_tensors
from fastvideo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from fastvideo.dataset.arrow import pa

Batch = dict[str, Any]

_TEXT = "text_embedding"
_LATENT = "vae_latent"
_HASH_BITS = 63
_SIZED_FILES = 64


@final
class LatentsParquetMapStyleDataset(Dataset[Batch]):
    """A map-style data set that is asked for whole batches.

    A batch is a dict:

    * each tensor of the schema under its name, such as ``vae_latent`` [B, C, T, H, W]; floating
      types arrive as float32 whatever the file stores, integers as they are;
    * ``text_embedding`` [B, text_padding_length, D] float32, zero-padded or cropped, and
      ``text_attention_mask`` [B, text_padding_length] float32, 1 for tokens and 0 for padding;
    * ``info_list``: per row a dict of the other columns, plus ``prompt``, its caption;
    * ``caption_text``: the captions.

    A row loses its text (its embedding is all zeros, its mask stays) with probability
    ``cfg_rate``. That is decided by the seed, the epoch and the index, so it is another choice in
    every epoch and the same one after a resume, in any process.

    Args:
        path: See :func:`fastvideo.dataset.file_list.parse_data_path_specs`.
        batch_size: Rows per batch and data-parallel group.
        parquet_schema: One of the schemas of :mod:`fastvideo.dataset.schema`.
        cfg_rate: Probability from 0 to 1 that a row loses its text.
        seed: Seed of the order and of that decision.
        drop_last: See :class:`DP_SP_BatchSampler`.
        drop_first_row: See :class:`DP_SP_BatchSampler`.
        text_padding_length: Tokens per embedding in a batch.
        num_sp_groups: Data-parallel groups.
        sp_world_size: Ranks that share a sample.
        global_rank: Rank of this process.
        cache_bytes: Bound on the decoded row groups that each reading thread keeps.
        threads: Threads that read the batches to come, while they are asked for in the sampler's
            order. Without any, a batch is read by the thread and in the process that asks for it.
        pin_memory: Make batches in pinned memory.

    Attributes:
        parquet_files: Absolute names of the files, sorted.
        lengths: Rows of each file.
        sampler: The batch sampler that goes with this data set.

    Raises:
        ConfigError: The data set is smaller than one batch, or an argument is out of range.
        DataError: A file is damaged.
        FileNotFoundError: There are no files.
    """

    def __init__(  # noqa: PLR0913 - all keyword-only but two
        self,
        path: DataPath,
        batch_size: int,
        *,
        parquet_schema: pa.Schema,
        cfg_rate: float = 0.0,
        seed: int = 0,
        drop_last: bool = True,
        drop_first_row: bool = False,
        text_padding_length: int = 512,
        num_sp_groups: int = 1,
        sp_world_size: int = 1,
        global_rank: int = 0,
        cache_bytes: int = 256 * 2**20,
        threads: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        if not 0.0 <= cfg_rate <= 1.0:
            message = f"training.data.training_cfg_rate must lie between 0 and 1, got {cfg_rate}"
            raise ConfigError(message)
        if text_padding_length < 1:
            message = f"text_padding_length must be at least 1, got {text_padding_length}"
            raise ConfigError(message)
        self.path = path
        self.batch_size = batch_size
        self.parquet_schema = parquet_schema
        self.cfg_rate = cfg_rate
        self.seed = seed
        self.text_padding_length = text_padding_length
        self.parquet_files, self.lengths = get_parquet_files_and_length(path)
        self.sampler = DP_SP_BatchSampler(
            batch_size=batch_size,
            dataset_size=sum(self.lengths),
            num_sp_groups=num_sp_groups,
            sp_world_size=sp_world_size,
            global_rank=global_rank,
            drop_last=drop_last,
            drop_first_row=drop_first_row,
            seed=seed,
        )
        self._tensors = tensor_columns(parquet_schema)
        self._scalars = scalar_columns(parquet_schema)
        self._reader = RowGroupReader(
            self.parquet_files,
            self.lengths,
            needed=[part for name in self._tensors for part in tensor_column_parts(name)],
            wanted=parquet_schema.names,
            cache_bytes=cache_bytes,
        )
        self._memory = BatchMemory(pin_memory=pin_memory)
        self._ahead = (
            ReadAhead(self._load, self.sampler.batch_after, threads=threads) if threads else None
        )

    def __len__(self) -> int:
        """Returns the number of rows, repeats included."""
        return sum(self.lengths)

    @cached_property
    def content(self) -> dict[str, int | str]:
        """What tells this data set from another one, wherever it lies.

        ``files`` and ``rows`` are their numbers; ``digest`` depends on the names of the files below
        the directory they share, their rows in order, and the sizes of some of them.
        """
        root = os.path.commonpath([os.path.dirname(file) for file in self.parquet_files])  # noqa: PTH120
        names = [os.path.relpath(file, root) for file in self.parquet_files]
        some = self.parquet_files[:: -(-len(names) // _SIZED_FILES)]
        sizes = [os.stat(file).st_size for file in some]  # noqa: PTH116 - names of files are texts
        digest = hashlib.sha256(json.dumps([names, self.lengths, sizes]).encode())
        return {"files": len(names), "rows": len(self), "digest": digest.hexdigest()[:32]}

    def __getitem__(self, index: int) -> Batch:
        """Returns the batch that holds row ``index`` alone."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Returns the batch of the rows ``indices``.

        Args:
            indices: Row numbers; an :class:`IndexBatch` says which epoch they belong to,
                otherwise it is the sampler's.

        Raises:
            DataError: A file is damaged, or rows have different shapes (a ``ValueError``).
            IndexError: There is no such row.
        """
        if not isinstance(indices, IndexBatch):
            return self._load(IndexBatch(indices, epoch=self.sampler.epoch, position=0))
        if self._ahead is None or get_worker_info() is not None:
            return self._load(indices)
        return self._ahead.fetch(indices)

    def _load(self, indices: IndexBatch) -> Batch:
        rows = [self._reader.row(index) for index in indices]
        batch: Batch = {}
        for name in self._tensors:
            if name != _TEXT:
                tensors = [row.tensor(name) for row in rows]
                if name == _LATENT:
                    _check_latents(tensors)
                batch[name] = stack_tensors(tensors, self._memory)
        if _TEXT in self._tensors:
            embeddings = [row.tensor(_TEXT) for row in rows]
            width = 0 if any(e.shape[-1] for e in embeddings) else self._text_width
            batch[_TEXT], batch["text_attention_mask"] = pad_text(
                embeddings, self.text_padding_length, self._memory, width=width
            )
            for number, index in enumerate(indices):
                if self._drops_text(indices.epoch, index):
                    batch[_TEXT].numpy()[number] = 0.0
        batch["info_list"] = [self._info(row) for row in rows]
        batch["caption_text"] = [info["prompt"] for info in batch["info_list"]]
        return batch

    @cached_property
    def _text_width(self) -> int:
        """D of the first row that says it, for batches in which no row has a text.

        Raises:
            DataError: No row says it.
        """
        for index in range(len(self)):
            width = self._reader.row(index).tensor(_TEXT).shape[-1]
            if width:
                return width
        message = (
            f"{self.parquet_files[0]} row 0: {_TEXT} is empty, as in all {len(self)} rows of the "
            f"data set, and none has a shape [0, D] that tells the size of an embedding"
        )
        raise DataError(message)

    def _drops_text(self, epoch: int, index: int) -> bool:
        if self.cfg_rate == 0.0:
            return False
        return stable_hash(self.seed, epoch, index) < self.cfg_rate * 2.0**_HASH_BITS

    def _info(self, row: Row) -> dict[str, Any]:
        info = {name: row.scalar(name) for name in self._scalars if row.has(name)}
        return info | {"prompt": info.get("caption") or ""}


def pad_text(
    tensors: Sequence[StoredTensor], length: int, memory: BatchMemory, *, width: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns text embeddings of different lengths as one batch.

    Args:
        tensors: [L, D] each; one without elements counts as no tokens.
        length: Tokens in the batch; longer embeddings are cropped.
        memory: Where the results are made.
        width: D where no tensor says it.

    Returns:
        The embeddings [B, length, D] float32, zero-padded, and the mask [B, length] float32, 1
        for tokens.

    Raises:
        DataError: The embeddings are no matrices, or differ in D; the message names field,
            shapes and rows.
    """
    filled = [tensor for tensor in tensors if not tensor.is_empty]
    for tensor in filled:
        _check_text_shape(tensor, filled[0])
    width = filled[0].shape[1] if filled else max(width, *(t.shape[-1] for t in tensors))
    embeddings = memory.tensor((len(tensors), length, width), "float32")
    mask = memory.tensor((len(tensors), length), "float32")
    for row, tensor in enumerate(tensors):
        tokens = 0 if tensor.is_empty else min(tensor.shape[0], length)
        # NumPy fills batches: torch would start threads of its own for it beside each reader.
        embedding, present = embeddings.numpy()[row], mask.numpy()[row]
        tensor.copy_rows_into(embedding[:tokens], rows=tokens)
        embedding[tokens:] = 0.0
        present[:tokens], present[tokens:] = 1.0, 0.0
    return embeddings, mask


def _check_latents(tensors: Sequence[StoredTensor]) -> None:
    for tensor in tensors:
        if tensor.is_empty:
            message = (
                f"{tensor.source}: {tensor.field} has no elements (shape {list(tensor.shape)}); "
                f"expected the latents [C, T, H, W] of a video. Leave the row out of the data set"
            )
            raise DataError(message)


def _check_text_shape(tensor: StoredTensor, first: StoredTensor) -> None:
    if len(tensor.shape) != 2:  # noqa: PLR2004 - tokens and features
        message = f"{tensor.source}: {tensor.field} must be [L, D], got {list(tensor.shape)}"
        raise DataError(message)
    if tensor.shape[1] != first.shape[-1]:
        message = (
            f"{tensor.field} has different sizes D in one batch: {list(first.shape)} in "
            f"{first.source} and {list(tensor.shape)} in {tensor.source}; the data set mixes "
            f"text encoders"
        )
        raise DataError(message)
