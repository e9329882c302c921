"""The teacher's trajectories as a data set, in batches of what the student learns from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils.data import Dataset

from fastvideo.dataset.loader import stateful_loader
from fastvideo.dataset.sampler import DP_SP_BatchSampler
from fastvideo.errors import DataError
from fastvideo.train.methods.knowledge_distillation.kd_config import nearest_steps
from fastvideo.train.methods.knowledge_distillation.trajectory_cache import (
    CAPTION,
    TIMESTEPS,
    TrajectoryCache,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchdata.stateful_dataloader import StatefulDataLoader

    from fastvideo.train.config import DataConfig
    from fastvideo.train.methods.knowledge_distillation.trajectory_cache import Sample

Batch = dict[str, Any]


@final
class TrajectoryDataset(Dataset[Batch]):
    """A map-style data set that is asked for whole batches.

    A batch holds ``trajectory_latents`` [B, K, T, C, H, W], the states at the student's K
    timesteps; ``trajectory_timesteps`` [B, K], their own timesteps; ``real`` [B, T, C, H, W];
    ``text_embedding`` [B, L, D] and ``text_attention_mask`` [B, L], if the teacher was told a text;
    ``info_list`` and ``caption_text``. Tensors are float32.

    Files are opened when they are asked for, so the data set can be made before they are.

    Args:
        cache: The trajectories.
        total: Their number.
        timesteps: The student's timesteps.
    """

    def __init__(self, cache: TrajectoryCache, total: int, timesteps: Sequence[float]) -> None:
        self._cache = cache
        self._total = total
        self._timesteps = tuple(timesteps)

    def __len__(self) -> int:
        """Returns the number of trajectories."""
        return self._total

    def __getitem__(self, index: int) -> Batch:
        """Returns the batch that holds one trajectory alone."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Returns the batch of some trajectories.

        Raises:
            DataError: A file is missing or damaged, or the shapes differ.
        """
        samples = [self._read(index) for index in indices]
        batch: Batch = {}
        for name, value in samples[0].items():
            if not isinstance(value, torch.Tensor):
                continue
            tensors = [sample[name] for sample in samples]
            if any(tensor.shape != value.shape for tensor in tensors):
                shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
                message = (
                    f"{name} has different shapes in one batch, rows {list(indices)}: {shapes}"
                )
                raise DataError(message)
            batch[name] = torch.stack(tensors)
        captions = [sample[CAPTION] for sample in samples]
        batch["caption_text"] = captions
        batch["info_list"] = [{"caption": text, "prompt": text} for text in captions]
        return batch

    def _read(self, index: int) -> Sample:
        sample = self._cache.read(index)
        positions = nearest_steps(self._timesteps, sample[TIMESTEPS].tolist())
        return self._cache.read_states(index, positions, sample)


def trajectory_loader(
    dataset: TrajectoryDataset,
    data: DataConfig,
    *,
    group: int,
    num_groups: int,
    pin_memory: bool = False,
) -> StatefulDataLoader:
    """Returns the loader of one rank over trajectories, resumable like that of the data set.

    Args:
        dataset: The trajectories.
        data: Batch size, seed and number of workers.
        group: Data-parallel group of this rank.
        num_groups: Data-parallel groups.
        pin_memory: Hand out tensors in page-locked memory.

    Raises:
        ConfigError: There are fewer trajectories than one batch per group.
    """
    sampler = DP_SP_BatchSampler(
        batch_size=data.train_batch_size,
        dataset_size=len(dataset),
        num_sp_groups=num_groups,
        sp_world_size=1,
        global_rank=group,
        seed=data.seed,
    )
    return stateful_loader(
        dataset,
        sampler,
        num_data_workers=data.dataloader_num_workers,
        seed=data.seed,
        pin_memory=pin_memory,
    )
