"""Distillation by matching distributions."""

from __future__ import annotations

from fastvideo.train.methods.distribution_matching.dmd2 import DMD2Method

__all__ = ["DMD2Method"]
