"""PyArrow as the data set modules use it, with one clear error when it is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo.errors import import_extra

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
else:
    pa = import_extra("pyarrow", extra="train")
    pq = import_extra("pyarrow.parquet", extra="train")

__all__ = ["pa", "pq"]
