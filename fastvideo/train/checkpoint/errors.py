"""What can go wrong with a checkpoint."""

from __future__ import annotations

from fastvideo.errors import FastVideoError


class CheckpointError(FastVideoError, RuntimeError):
    """A checkpoint cannot be written or read, or does not belong to the run."""


class CheckpointWriteError(CheckpointError):
    """The disk does not take a checkpoint; it may take the next one."""


class CheckpointNotFoundError(FastVideoError, FileNotFoundError):
    """There is no checkpoint where one was named."""
