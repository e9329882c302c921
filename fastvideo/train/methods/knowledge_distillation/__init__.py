"""Knowledge distillation: learning a teacher's trajectories by heart."""

from __future__ import annotations

from fastvideo.train.methods.knowledge_distillation.kd import KDMethod

__all__ = ["KDMethod"]
