"""Training methods: how losses come from models and batches, and which optimizers step."""

from __future__ import annotations

from fastvideo.train.methods.base import TrainingMethod

__all__ = ["TrainingMethod"]
