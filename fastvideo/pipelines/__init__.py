"""Inference: stages that make a video out of a prompt, and pipelines made of them."""

from __future__ import annotations

__all__: list[str] = []
