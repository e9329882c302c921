"""This process's place among the ranks, asked for late because it may be known only late."""

from __future__ import annotations

import os

import torch.distributed


def current_rank() -> int:
    """Returns the global rank: of the process group, else of ``RANK``, else 0."""
    if _initialised():
        return int(torch.distributed.get_rank())
    return _number("RANK", 0)


def current_world_size() -> int:
    """Returns the number of ranks: of the process group, else of ``WORLD_SIZE``, else 1."""
    if _initialised():
        return int(torch.distributed.get_world_size())
    return max(1, _number("WORLD_SIZE", 1))


def _initialised() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isascii() and text.isdigit() else default
