"""Pipelines of the Wan family."""

from __future__ import annotations

__all__: list[str] = []
