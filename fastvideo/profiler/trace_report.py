"""What kernel tracing says at its start and at its end, once per run where that is possible."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import torch.distributed

from fastvideo.logger import init_logger
from fastvideo.profiler.ranks import current_rank, current_world_size
from fastvideo.profiler.registry import PREFIX
from fastvideo.profiler.trace_words import as_ranges, counted, ranges_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from fastvideo.profiler.config import TorchProfilerConfig

logger = init_logger(__name__)

_MAX_NAMES: Final = 3
_WRITTEN: Final = ("exported_ok", "exported_no_kernels", "exported_summary_failed")
_FAILED: Final = ("failed", "exported_failed")


def announce(directory: Path, config: TorchProfilerConfig) -> None:
    """Says on rank 0 what becomes a segment, and where, even where logging is not configured.

    Args:
        directory: Absolute directory of the traces.
        config: What is traced.
    """
    if current_rank() != 0:
        return
    unheard = not logger.isEnabledFor(logging.INFO) and not logger.hasHandlers()
    logger.log(
        logging.WARNING if unheard else logging.INFO,
        "kernel trace: each outermost %s becomes a segment in %s%s",
        _names(config.regions),
        directory,
        _limits(config),
    )


def warn_of_missing_ranks(config: TorchProfilerConfig, world_size: int | None = None) -> bool:
    """Says on rank 0 that the rank filter names ranks that the run does not have.

    Args:
        config: Has the filter.
        world_size: Number of ranks; None: as far as it is known by now.

    Returns:
        Whether it was known, so that nothing is left to be said.
    """
    if config.ranks is None or current_rank() != 0:
        return True
    if world_size is None:
        if not _world_size_is_known():
            return False
        world_size = current_world_size()
    missing = [rank for rank in config.ranks if rank >= world_size]
    if missing:
        logger.warning(
            "kernel trace: FASTVIDEO_TORCH_PROFILE_RANKS is %s, but the run has %s%s",
            ranges_text(as_ranges(config.ranks)),
            "rank 0 only" if world_size == 1 else f"ranks 0-{world_size - 1} only",
            ": nothing is traced" if len(missing) == len(config.ranks) else "",
        )
    return True


def warn_of_no_segment(
    config: TorchProfilerConfig, entered: Iterable[str], steps_seen: tuple[int, int] | None
) -> None:
    """Says why regions were entered and none of them was recorded.

    Args:
        config: What was to be traced.
        entered: Selected regions that were entered.
        steps_seen: First and last step that ran, or None.
    """
    if not config.steps:
        logger.warning(
            "kernel trace: no segment was recorded, though %s was entered; a region that is "
            "entered while a CUDA graph is captured opens none",
            _names(entered),
        )
        return
    window = ranges_text(config.steps)
    if steps_seen is None:
        seen = "no region said which step runs"
    else:
        first, last = steps_seen
        text = ranges_text([steps_seen])
        seen = f"step {text} was seen" if first == last else f"steps {text} were seen"
    inside = steps_seen is not None and any(
        first <= steps_seen[1] and steps_seen[0] <= last for first, last in config.steps
    )
    logger.warning(
        "kernel trace: no segment was recorded: %s, FASTVIDEO_TORCH_PROFILE_STEPS is %s%s",
        seen,
        window,
        f", and {_names(entered)} was entered outside of that window" if inside else "",
    )


def report_end(directory: Path, counters: Mapping[str, int]) -> None:
    """Says how many segments there are and what became of the others; nothing if there were none.

    Args:
        directory: Absolute directory of the traces.
        counters: Segments of this process by what became of them.
    """
    if not any(counters.values()):
        return
    written = sum(counters.get(name, 0) for name in _WRITTEN)
    exported = sum(count for name, count in counters.items() if name.startswith("exported_"))
    others = {
        "failed": sum(counters.get(name, 0) for name in _FAILED),
        "skipped": counters.get("skipped", 0),
        "still being exported": counters.get("recorded", 0) - exported,
    }
    rest = "".join(f", {count} {what}" for what, count in others.items() if count > 0)
    rank = f" of rank {current_rank()}" if current_world_size() > 1 else ""
    logger.info("kernel trace: %s%s in %s%s", counted(written, "segment"), rank, directory, rest)


def _names(regions: Iterable[str]) -> str:
    names = sorted(name.removeprefix(PREFIX) for name in regions)
    if len(names) == 1:
        return names[0]
    more = len(names) - _MAX_NAMES
    if more <= 1:
        return f"of {', '.join(names)}"
    return f"of {', '.join(names[:_MAX_NAMES])} and {more} more"


def _limits(config: TorchProfilerConfig) -> str:
    limits = []
    if config.steps:
        limits.append(f"steps {ranges_text(config.steps)}")
    if config.ranks is not None:
        limits.append(f"ranks {ranges_text(as_ranges(config.ranks))}")
    return f" ({'; '.join(limits)})" if limits else ""


def _world_size_is_known() -> bool:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return True
    return os.environ.get("WORLD_SIZE", "").strip().isdigit()
