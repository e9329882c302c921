"""Memory is used again when nothing refers to it, and not before."""

from __future__ import annotations

import gc
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fastvideo.dataset.batch_memory import BatchMemory


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", torch.float32),
        ("<f4", torch.float32),
        ("|u1", torch.uint8),
        ("<i8", torch.int64),
    ],
)
def test_tensors_have_the_shape_and_dtype(dtype: str, expected: torch.dtype) -> None:
    """Also without elements, and when filled from NumPy."""
    memory = BatchMemory()
    tensor = memory.tensor((2, 3), dtype)
    assert (tensor.shape, tensor.dtype) == ((2, 3), expected)
    tensor.numpy()[:] = [[1, 2, 3], [4, 5, 6]]
    assert tensor.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert memory.tensor((0, 3), dtype).shape == (0, 3)


@pytest.mark.parametrize(
    "kept",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[1:],
        lambda tensor: tensor.detach().view(-1),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: (tensor * torch.ones(4, 5, requires_grad=True)).sum(),
    ],
    ids=["tensor", "slice", "view", "array", "storage", "graph"],
)
def test_memory_is_used_again_when_nothing_refers_to_it(kept: object) -> None:
    """Whatever shares the storage of a tensor, or needs it for a gradient, keeps its memory."""
    assert callable(kept)
    memory = BatchMemory()
    tensor = memory.tensor((4, 5), "float32")
    address = tensor.data_ptr()
    reference = kept(tensor)
    del tensor
    gc.collect()
    assert memory.free_bytes == 0
    assert memory.tensor((4, 5), "float32").data_ptr() != address
    del reference
    gc.collect()
    assert address in {memory.tensor((20,), "float32").data_ptr() for _ in range(2)}


def test_only_memory_of_the_same_size_is_used() -> None:
    """And only so many free blocks are kept: the oldest go first."""
    memory = BatchMemory()
    for elements in range(1, 41):
        memory.tensor((elements,), "|u1")
    assert memory.free_bytes == sum(range(25, 41))
    held = memory.tensor((30,), "|u1")
    assert memory.free_bytes == sum(range(25, 41)) - 30
    del held
    assert memory.free_bytes == sum(range(25, 41))


def test_pickled_memory_is_empty() -> None:
    """A data set that travels to another process does not take free memory along."""
    memory = BatchMemory()
    memory.tensor((1000,), "float32")
    assert len(pickle.dumps(memory)) < 500
    assert pickle.loads(pickle.dumps(memory)).free_bytes == 0


def test_threads_never_share_memory() -> None:
    """Many threads that take and release tensors of a few sizes find what they wrote."""
    memory = BatchMemory()

    def work(number: int) -> bool:
        draws = random.Random(number)
        held: list[tuple[torch.Tensor, int]] = []
        for turn in range(500):
            tensor = memory.tensor((draws.choice([1, 100, 3000]),), "<i8")
            tensor.numpy().fill(mark := number * 1000 + turn)
            held.append((tensor, mark))
            if len(held) > 4 and not all((t == m).all() for t, m in held):
                return False
            held = held[-draws.randrange(1, 6) :]
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_memory() -> None:
    """Where there is a GPU, tensors can lie where it copies by itself."""
    tensor = BatchMemory(pin_memory=True).tensor((2, 3), "float32")
    assert tensor.is_pinned()
    assert tensor.pin_memory().data_ptr() == tensor.data_ptr()
