"""PyArrow as the data set modules use it, with one clear error when it is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo.errors import DataError, import_extra

if TYPE_CHECKING:
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = import_extra("pyarrow", extra="train")
    pq = import_extra("pyarrow.parquet", extra="train")

__all__ = ["pa", "pq", "unreadable"]


def unreadable(path: str | os.PathLike[str], error: Exception) -> DataError:
    """Returns the error that says which parquet file, or part of one, is damaged, and how."""
    return DataError(
        f"{path} cannot be read as parquet ({error}); write the file again, or remove it: then a "
        f"run that goes on says that its data set has changed"
    )
