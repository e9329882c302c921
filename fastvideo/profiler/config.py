"""What kernel tracing records: read from the environment once, then never changed."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastvideo import envs
from fastvideo.errors import ConfigError, did_you_mean
from fastvideo.logger import init_logger
from fastvideo.profiler.region import list_profiler_regions
from fastvideo.profiler.registry import PREFIX

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

logger = init_logger(__name__)

DEFAULT_MAX_SEGMENTS: Final = 200
DEFAULT_MIN_FREE_BYTES: Final = 2 * 1024**3
MAX_RANK: Final = 99_999

_DIR: Final = "FASTVIDEO_TORCH_PROFILER_DIR"
_REGIONS: Final = "FASTVIDEO_TORCH_PROFILE_REGIONS"
_STEPS: Final = "FASTVIDEO_TORCH_PROFILE_STEPS"
_RANKS: Final = "FASTVIDEO_TORCH_PROFILE_RANKS"


@dataclass(frozen=True, slots=True)
class TorchProfilerConfig:
    """Which regions, steps and ranks are traced, and how.

    Attributes:
        regions: Selected regions; any spelling is accepted, the long form is kept.
        record_shapes: Record the input shapes of operators.
        profile_memory: Record allocations and frees.
        with_stack: Record Python stacks.
        with_flops: Estimate floating point operations.
        steps: Ranges of steps, both ends included; empty: every step, and work outside steps.
        ranks: Ranks that trace; None: all of them.
        max_segments: Segments one process begins before it stops tracing.
        min_free_bytes: Free space of the trace directory's disk below which tracing stops.
    """

    regions: AbstractSet[str]
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    steps: tuple[tuple[int, int], ...] = ()
    ranks: frozenset[int] | None = None
    max_segments: int = DEFAULT_MAX_SEGMENTS
    min_free_bytes: int = DEFAULT_MIN_FREE_BYTES

    def __post_init__(self) -> None:
        given: object = self.regions
        if isinstance(given, str):
            message = f"regions={given!r} is text; expected a set of names, such as {{'x'}}"
            raise TypeError(message)
        object.__setattr__(self, "regions", frozenset(_long_form(name) for name in self.regions))

    @classmethod
    def from_env(cls) -> TorchProfilerConfig:
        """Builds the configuration from the ``FASTVIDEO_TORCH_PROFILE*`` variables.

        Returns:
            The configuration. Regions registered later than this call are unknown to it.

        Raises:
            ValueError: No selected region is registered, or a variable cannot be parsed; the
                message names the variable.
        """
        return cls(
            regions=parse_regions(envs.FASTVIDEO_TORCH_PROFILE_REGIONS),
            record_shapes=envs.FASTVIDEO_TORCH_PROFILER_RECORD_SHAPES,
            profile_memory=envs.FASTVIDEO_TORCH_PROFILER_WITH_PROFILE_MEMORY,
            with_stack=envs.FASTVIDEO_TORCH_PROFILER_WITH_STACK,
            with_flops=envs.FASTVIDEO_TORCH_PROFILER_WITH_FLOPS,
            steps=parse_steps(envs.FASTVIDEO_TORCH_PROFILE_STEPS),
            ranks=parse_ranks(envs.FASTVIDEO_TORCH_PROFILE_RANKS),
            max_segments=envs.FASTVIDEO_TORCH_PROFILER_MAX_SEGMENTS,
        )

    @property
    def options(self) -> dict[str, bool]:
        """Keyword arguments of ``torch.profiler.profile`` that this configuration switches."""
        return {
            "record_shapes": self.record_shapes,
            "profile_memory": self.profile_memory,
            "with_stack": self.with_stack,
            "with_flops": self.with_flops,
        }

    def selects_region(self, name: str) -> bool:
        """Tells whether the region called ``name`` (short or long form) is selected."""
        return _long_form(name) in self.regions

    def selects_step(self, step: int | None) -> bool:
        """Tells whether ``step`` is in the window; without a window everything is.

        Args:
            step: The current step, or None outside of steps.
        """
        if not self.steps:
            return True
        return step is not None and any(first <= step <= last for first, last in self.steps)

    def selects_rank(self, rank: int) -> bool:
        """Tells whether the process of this global rank traces."""
        return self.ranks is None or rank in self.ranks


def parse_regions(text: str) -> frozenset[str]:
    """Reads a comma-separated list of regions; case, blanks and the prefix are optional.

    A name that is not registered is reported and left out.

    Returns:
        Long names of the registered regions in ``text``.

    Raises:
        ValueError: Nothing in ``text`` is a registered region.
    """
    known = {region.name.casefold(): region.name for region in list_profiler_regions()}
    listing = ", ".join(region.short_name for region in list_profiler_regions())
    asked = _parts(text)
    found: set[str] = set()
    for name in asked:
        short = name.casefold().removeprefix(PREFIX)
        region = known.get(PREFIX + short)
        if region is not None:
            found.add(region)
            continue
        hint = did_you_mean(short, [long.removeprefix(PREFIX) for long in known])
        logger.warning(
            "%s names the region %r, which is not registered and is ignored.%s Regions: %s",
            _REGIONS,
            name,
            hint,
            listing,
        )
    if found:
        return frozenset(found)
    if asked:
        wrong = f"{_REGIONS}={text!r} selects no registered region"
    else:
        wrong = f"{_REGIONS} is {repr(text) if text else 'not set'}, but {_DIR} turns tracing on"
    indent = "    "
    regions = textwrap.fill(listing, 88, initial_indent=indent, subsequent_indent=indent)
    message = f"{wrong}; name one or more of these regions, separated by commas:\n{regions}"
    raise ConfigError(message)


def parse_steps(text: str) -> tuple[tuple[int, int], ...]:
    """Reads a step window such as ``10-12,100``.

    Returns:
        Ranges with both ends included, in order; empty for empty text.

    Raises:
        ValueError: A part is neither a step nor a range of steps.
    """
    return tuple(sorted(_range(part, _STEPS) for part in _parts(text)))


def parse_ranks(text: str) -> frozenset[int] | None:
    """Reads a rank filter such as ``0,3`` or ``0-7,16``; ``all`` and empty text mean all.

    Returns:
        The ranks, or None for all.

    Raises:
        ValueError: A part is neither a rank nor a range of ranks, or is beyond all ranks.
    """
    parts = _parts(text)
    if not parts or [part.casefold() for part in parts] == ["all"]:
        return None
    ranges = [_range(part, _RANKS) for part in parts]
    highest = max(last for _, last in ranges)
    if highest > MAX_RANK:
        message = (
            f"{_RANKS}={text!r} goes up to rank {highest}; no run has ranks above {MAX_RANK}, "
            "and 'all' selects all there are"
        )
        raise ConfigError(message)
    return frozenset(rank for first, last in ranges for rank in range(first, last + 1))


def _parts(text: str) -> list[str]:
    return [part for part in ("".join(part.split()) for part in text.split(",")) if part]


def _range(part: str, variable: str) -> tuple[int, int]:
    first, dash, last = part.partition("-")
    ends = (first, last) if dash else (first, first)
    if not all(end.isascii() and end.isdigit() for end in ends) or int(ends[0]) > int(ends[1]):
        extra = ", or 'all'" if variable == _RANKS else ""
        message = (
            f"{variable} contains {part!r}; expected whole numbers and ranges with the smaller "
            f"end first, such as '10-12,100'{extra}"
        )
        raise ConfigError(message)
    return int(ends[0]), int(ends[1])


def _long_form(name: str) -> str:
    return PREFIX + name.strip().removeprefix(PREFIX)
