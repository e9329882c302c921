"""Memory for batches: that of batches which nobody uses any more, where there is some."""

from __future__ import annotations

import weakref
from collections import deque
from math import prod
from typing import Any, Final, final

import numpy as np
import torch

_MAX_FREE_BLOCKS: Final = 16


@final
class BatchMemory:
    """Makes tensors for batches; any number of threads may ask for some at once.

    A batch of video latents has many megabytes. The operating system hands out as much only after
    clearing it page by page, which takes as long as filling it, so memory is used again as soon as
    the last reference to a tensor, and to whatever shares its storage, is gone. Pinned memory is
    used again by torch.

    Args:
        pin_memory: Whether tensors lie in pinned memory, from which a GPU copies by itself.
    """

    def __init__(self, *, pin_memory: bool = False) -> None:
        self.pin_memory = pin_memory
        self._free: deque[np.ndarray[Any, Any]] = deque(maxlen=_MAX_FREE_BLOCKS)

    def __getstate__(self) -> dict[str, Any]:
        return {"pin_memory": self.pin_memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    @property
    def free_bytes(self) -> int:
        """Bytes that wait for the next tensor of their size; pinned ones are not counted."""
        return sum(block.nbytes for block in list(self._free))

    def tensor(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """Returns a tensor of undefined content.

        Args:
            shape: Shape.
            dtype: NumPy's name of its data type.
        """
        kind = np.dtype(dtype)
        if self.pin_memory:
            torch_kind = torch.from_numpy(np.empty(0, kind)).dtype
            return torch.empty(shape, dtype=torch_kind, pin_memory=True)
        block = self._block(prod(shape) * kind.itemsize)
        array = block.view(kind).reshape(shape)
        # The tensor refers to this array, as do all that share its storage, until they are gone.
        weakref.finalize(array, self._free.append, block).atexit = False
        return torch.from_numpy(array)

    def _block(self, size: int) -> np.ndarray[Any, Any]:
        """Returns memory that is free; each step is one that threads cannot come between."""
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:
                break
            if block.nbytes == size:
                return block
            self._free.append(block)
        return np.empty(size, np.uint8)
