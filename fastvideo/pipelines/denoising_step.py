"""One step of a denoising loop, as everything that watches loops sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo.profiler import profiler_region

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def denoising_step(index: int) -> AbstractContextManager[object, bool | None]:
    """Marks the body as one step of a denoising loop, all its transformer calls included.

    Args:
        index: The step, from 0.
    """
    return profiler_region("inference_denoising_step", denoising_step=index)
