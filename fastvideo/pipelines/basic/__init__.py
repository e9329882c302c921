"""Pipelines of model families."""

from __future__ import annotations

__all__: list[str] = []
