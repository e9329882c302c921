"""One step of a denoising loop, as everything that watches loops sees it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fastvideo.hooks.activation_trace import trace_step
from fastvideo.profiler import profiler_region

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOP: Final = "denoising"
"""Name of these loops in activation traces."""


@contextmanager
def denoising_step(index: int) -> Iterator[None]:
    """Marks the body as one step of a denoising loop, all its transformer calls included.

    Args:
        index: The step, from 0.
    """
    with (
        profiler_region("inference_denoising_step", denoising_step=index),
        trace_step(index, loop=LOOP),
    ):
        yield
