"""Model plugins: what a training method needs of a model family."""

from __future__ import annotations

from fastvideo.train.models.base import ModelBase
from fastvideo.train.models.batch import TrainingBatch

__all__ = ["ModelBase", "TrainingBatch"]
