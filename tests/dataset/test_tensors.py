"""Tensors survive the way into a row and back, whatever their dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastvideo.dataset.batch_memory import BatchMemory
from fastvideo.dataset.tensors import StoredTensor, stack_tensors, tensor_record
from fastvideo.errors import DataError


def _stored(record: dict[str, object], name: str = "x", source: str = "f row 0") -> StoredTensor:
    return StoredTensor.checked(
        field=name,
        data=record[f"{name}_bytes"],
        shape=record[f"{name}_shape"],
        dtype=record[f"{name}_dtype"],
        source=source,
    )


_SPECIAL = [0.0, -0.0, 1.5, -3.25, 65504.0, 2.0**-14, float("inf"), float("-inf")]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str
)
def test_floats_arrive_as_float32_with_their_value(dtype: torch.dtype) -> None:
    """Every floating dtype is honoured and becomes the float32 of the same value."""
    tensor = torch.tensor(_SPECIAL, dtype=dtype).reshape(2, 2, 2)
    record = tensor_record("x", tensor)
    assert record["x_dtype"] == str(dtype).removeprefix("torch.")
    assert len(record["x_bytes"]) == 8 * dtype.itemsize
    batch = stack_tensors([_stored(record), _stored(record)], BatchMemory())
    assert batch.dtype == torch.float32
    assert torch.equal(batch, torch.stack([tensor.float()] * 2))


def test_every_bfloat16_is_exact() -> None:
    """All 65536 bit patterns of bfloat16 widen to the float32 torch gives."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    tensor = bits.view(torch.bfloat16)
    batch = stack_tensors([_stored(tensor_record("x", tensor))], BatchMemory())[0]
    assert torch.equal(batch.view(torch.int32), tensor.float().view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.int16, torch.bool], ids=str)
def test_integers_keep_their_dtype(dtype: torch.dtype) -> None:
    """Pixels and timesteps are not turned into floats."""
    tensor = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    batch = stack_tensors([_stored(tensor_record("x", tensor))], BatchMemory())
    assert batch.dtype == dtype
    assert torch.equal(batch[0], tensor)


def test_layout_of_the_tensor_does_not_matter() -> None:
    """A transposed tensor and a big-endian array are stored in C order, little endian."""
    tensor = torch.arange(6.0).reshape(2, 3)
    expected = tensor.t().contiguous().numpy().astype("<f4").tobytes()
    assert tensor_record("x", tensor.t())["x_bytes"] == expected
    assert tensor_record("x", tensor.t().numpy().astype(">f4"))["x_bytes"] == expected


def test_arrays_and_tensors_agree() -> None:
    """A NumPy array is stored like the tensor of the same values."""
    array = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    assert tensor_record("x", array) == tensor_record("x", torch.from_numpy(array))


def test_scalar_tensor_is_stacked() -> None:
    """A tensor without axes becomes one entry of the batch."""
    records = [tensor_record("x", torch.tensor(value)) for value in (1.5, 2.5)]
    assert stack_tensors([_stored(r) for r in records], BatchMemory()).tolist() == [1.5, 2.5]


@pytest.mark.parametrize("shape", [None, [], [0, 5], [4, 2]])
def test_no_bytes_give_a_tensor_without_elements(shape: list[int] | None) -> None:
    """A caption without text is stored as zero bytes, with or without a shape."""
    stored = StoredTensor.checked(field="x", data=b"", shape=shape, dtype=None, source="f")
    assert stored.is_empty
    assert stored.shape == ((0, 5) if shape == [0, 5] else (0,))


def test_null_is_not_taken_for_an_empty_tensor() -> None:
    """A null is a damaged row: it is refused with its source and column, whatever its shape."""
    for shape in (None, [], [4, 2]):
        with pytest.raises(DataError, match=r"f\.parquet row 3: x_bytes is null"):
            StoredTensor.checked(
                field="x", data=None, shape=shape, dtype=None, source="f.parquet row 3"
            )


def test_wrong_number_of_bytes_names_row_and_field() -> None:
    """Bytes that do not fit shape and dtype are an error, not a wrong tensor."""
    record = tensor_record("x", torch.zeros(2, 3)) | {"x_dtype": "float16"}
    with pytest.raises(DataError, match=r"a\.parquet row 7: x has 24 bytes; shape \[2, 3\] of"):
        _stored(record, source="a.parquet row 7")


def test_unknown_dtypes_are_refused() -> None:
    """Neither writing nor reading guesses at a dtype it does not know."""
    with pytest.raises(DataError, match="x: dtype 'complex64' cannot be stored"):
        tensor_record("x", torch.zeros(1, dtype=torch.complex64))
    with pytest.raises(DataError, match="x_dtype is 'float8'"):
        StoredTensor.checked(field="x", data=b"a", shape=[1], dtype="float8", source="f")


def test_different_shapes_name_field_shapes_and_rows() -> None:
    """A batch of different shapes says which rows do not fit together."""
    rows = [
        _stored(tensor_record("x", torch.zeros(shape)), source=source)
        for shape, source in (((2, 3), "a row 1"), ((2, 4), "b row 2"))
    ]
    with pytest.raises(
        ValueError, match=r"x has different shapes.*\[2, 3\] in a row 1 and \[2, 4\] in b row 2"
    ):
        stack_tensors(rows, BatchMemory())


def test_integers_and_floats_do_not_mix() -> None:
    """One batch cannot hold a column as pixels and as floats."""
    rows = [_stored(tensor_record("x", torch.zeros(2, dtype=d))) for d in (torch.uint8, torch.half)]
    with pytest.raises(DataError, match="x has different dtypes in one batch: float16, uint8"):
        stack_tensors(rows, BatchMemory())


def test_float_dtypes_mix() -> None:
    """Rows of different floating dtypes make one float32 batch."""
    dtypes = (torch.bfloat16, torch.float64, torch.float32)
    rows = [_stored(tensor_record("x", torch.full((2,), 0.5, dtype=d))) for d in dtypes]
    assert torch.equal(stack_tensors(rows, BatchMemory()), torch.full((3, 2), 0.5))
