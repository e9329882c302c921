"""Tensors as bytes in a parquet row, and back into a batch without intermediate copies."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastvideo.dataset.schema import tensor_column_parts
from fastvideo.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastvideo.dataset.batch_memory import BatchMemory

# How each dtype name is stored. NumPy has no bfloat16: its two bytes travel as an integer.
_STORAGE: dict[str, str] = {
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "float64": "<f8",
    "uint8": "|u1",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "bool": "|b1",
}
_FLOATING = frozenset({"float32", "float16", "bfloat16", "float64"})


def tensor_record(name: str, tensor: torch.Tensor | np.ndarray[Any, Any]) -> dict[str, object]:
    """Returns the three column values that store ``tensor`` as it is, without conversion.

    Args:
        name: Name of the tensor in the schema, such as ``"vae_latent"``.
        tensor: Any device, any layout; bfloat16 is stored as its two bytes.

    Raises:
        DataError: The dtype cannot be stored.
    """
    if isinstance(tensor, np.ndarray):
        dtype, array = tensor.dtype.name, tensor
    else:
        dtype = str(tensor.dtype).removeprefix("torch.")
        plain = tensor.detach().cpu().contiguous()
        array = (plain.view(torch.int16) if dtype == "bfloat16" else plain).numpy()
    if dtype not in _STORAGE:
        message = f"{name}: dtype {dtype!r} cannot be stored; expected one of {sorted(_STORAGE)}"
        raise DataError(message)
    data, shape, kind = tensor_column_parts(name)
    little_endian = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return {data: little_endian.tobytes(), shape: list(array.shape), kind: dtype}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of one row, still as the bytes of the file.

    Attributes:
        field: Name of the tensor in the schema.
        data: The bytes or an Arrow buffer; empty for a tensor without elements.
        shape: Shape; ``(0,)`` for an empty tensor whose row gives no empty shape.
        dtype: Name of the stored dtype.
        source: File and row, for messages.
    """

    field: str
    data: Any
    shape: tuple[int, ...]
    dtype: str
    source: str

    @classmethod
    def checked(
        cls,
        *,
        field: str,
        data: Any,  # noqa: ANN401 - Arrow ships no types
        shape: Sequence[int] | None,
        dtype: str | None,
        source: str,
    ) -> StoredTensor:
        """Builds one from the values of a row after checking that they fit together.

        Zero bytes are a tensor without elements, whatever the shape, as a caption without text has.

        Raises:
            DataError: The bytes are null, the dtype is unknown, or the number of bytes is not the
                shape's; the message names the source and the field.
        """
        if data is None:
            message = (
                f"{source}: {field}_bytes is null; expected the bytes of a tensor (zero bytes for "
                f"one without elements). Write the row again, or leave it out of the data set"
            )
            raise DataError(message)
        name = (dtype or "float32").removeprefix("torch.")
        if name not in _STORAGE:
            message = f"{source}: {field}_dtype is {dtype!r}; expected one of {', '.join(_STORAGE)}"
            raise DataError(message)
        size = len(memoryview(data))
        full_shape = tuple(shape or ())
        if size == 0 and prod(full_shape) != 0:
            full_shape = (0,)
        expected = prod(full_shape) * np.dtype(_STORAGE[name]).itemsize
        if size != expected:
            message = (
                f"{source}: {field} has {size} bytes; shape {list(full_shape)} of {name} "
                f"takes {expected}: the row was written with another shape or dtype"
            )
            raise DataError(message)
        return cls(field=field, data=data, shape=full_shape, dtype=name, source=source)

    @property
    def is_empty(self) -> bool:
        """Whether the tensor has no elements."""
        return prod(self.shape) == 0

    def copy_rows_into(self, out: np.ndarray[Any, Any], *, rows: int | None = None) -> None:
        """Writes the tensor, or its first ``rows`` rows, into ``out`` with one copy.

        Args:
            out: Writable, of the tensor's shape (or its first ``rows`` rows); float32 for
                floating dtypes, the stored dtype otherwise.
            rows: How many entries of the first axis to copy; all when None.
        """
        if self.is_empty:
            return
        array = np.frombuffer(self.data, dtype=_STORAGE[self.dtype]).reshape(self.shape)
        if rows is not None:
            array = array[:rows]
        if self.dtype == "bfloat16":
            # A bfloat16 is the upper half of the float32 with the same value.
            np.left_shift(array, 16, out=out.view("<u4"), dtype="<u4")
        else:
            np.copyto(out, array, casting="same_kind")


def batch_dtype(tensors: Sequence[StoredTensor]) -> str:
    """Returns the dtype of the batch of ``tensors``: float32 for floats, else the stored one.

    Raises:
        DataError: The rows mix integer and other dtypes.
    """
    dtypes = {"float32" if t.dtype in _FLOATING else t.dtype for t in tensors}
    if len(dtypes) > 1:
        message = (
            f"{tensors[0].field} has different dtypes in one batch: "
            f"{', '.join(sorted({t.dtype for t in tensors}))}"
        )
        raise DataError(message)
    return dtypes.pop()


def stack_tensors(tensors: Sequence[StoredTensor], memory: BatchMemory) -> torch.Tensor:
    """Returns ``tensors`` stacked along a new first axis.

    Floating dtypes become float32; integers and booleans stay as they are.

    Args:
        tensors: One per row.
        memory: Where the result is made.

    Raises:
        DataError: The shapes differ; the message names the field, the shapes and the rows.
    """
    first = tensors[0]
    for other in tensors[1:]:
        if other.shape != first.shape:
            message = (
                f"{first.field} has different shapes in one batch: {list(first.shape)} in "
                f"{first.source} and {list(other.shape)} in {other.source}; preprocess the data "
                f"set with one size, or use a batch size of 1"
            )
            raise DataError(message)
    batch = memory.tensor((len(tensors), *first.shape), _STORAGE[batch_dtype(tensors)])
    array = batch.numpy()
    for number, tensor in enumerate(tensors):
        tensor.copy_rows_into(array[number, ...])
    return batch
