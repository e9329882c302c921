"""Fine-tuning on data."""

from __future__ import annotations

from fastvideo.train.methods.fine_tuning.finetune import FineTuneMethod

__all__ = ["FineTuneMethod"]
