"""Making the trajectories that a cache lacks, on all ranks together."""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from fastvideo.errors import ConfigError, FastVideoError
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fastvideo.distributed import RankGroup
    from fastvideo.train.methods.knowledge_distillation.trajectory_cache import (
        Sample,
        TrajectoryCache,
    )

T = TypeVar("T")

logger = init_logger(__name__)

_REPORT_EVERY_S: Final = 30.0
_VISIBLE_WITHIN_S: Final = 90.0


def complete_cache(
    cache: TrajectoryCache,
    make: Callable[[int], Sample],
    *,
    metadata: Mapping[str, Any],
    timesteps: Sequence[float],
    group: RankGroup,
    in_step: bool,
) -> None:
    """Makes every trajectory that is missing or damaged; every rank must call it.

    The missing rows are dealt out to the ranks, each of which makes and writes its own. A row's
    trajectory does not depend on which rank makes it, so a run that was killed goes on with any
    number of ranks.

    Args:
        cache: Where they go.
        make: Makes the trajectory of a row.
        metadata: What they are made with; its ``total_samples`` is their number.
        timesteps: Those of a trajectory.
        group: The ranks, which share the directory.
        in_step: All ranks must call ``make`` equally often, as they must if the teacher's weights
            are sharded over them: ranks without a row then repeat one for company.

    Raises:
        ConfigError: The directory cannot be used, or not all ranks see it.
        DataError: A trajectory cannot be written.
    """
    total = int(metadata["total_samples"])
    on_first_rank(group, lambda: cache.prepare(metadata))
    on_first_rank(group, cache.remove_leftovers)
    missing = _to_make(cache, total, timesteps, group)
    if missing:
        _make_all(cache, make, missing, group, in_step=in_step)
        group.barrier()
    on_first_rank(group, lambda: cache.mark_complete(total))
    lacking = [rank for rank, sees in enumerate(_who_sees(cache, total, group)) if not sees]
    if lacking:
        ranks = "rank" if len(lacking) == 1 else "ranks"
        message = (
            f"method.teacher_path_cache: {ranks} {', '.join(map(str, lacking))} cannot see all of "
            f"{cache.root}; it must be on a file system that all nodes share"
        )
        raise ConfigError(message)


def on_first_rank(group: RankGroup, work: Callable[[], T]) -> T:
    """Does some work on the first rank of a group, and returns or raises its outcome on all."""
    result: T | None = None
    error: FastVideoError | None = None
    if group.is_first_rank:
        try:
            result = work()
        except FastVideoError as raised:
            error = raised
    result, error = group.broadcast_object((result, error))
    if error is not None:
        raise error
    return cast(T, result)


def _to_make(
    cache: TrajectoryCache, total: int, timesteps: Sequence[float], group: RankGroup
) -> list[int]:
    """Returns the rows without a usable file; each rank looks at its share of the others."""
    missing: list[int] = on_first_rank(group, lambda: cache.missing(total))
    absent = set(missing)
    present = [index for index in range(total) if index not in absent]
    damaged = []
    for index in present[group.rank_in_group :: group.world_size]:
        problem = cache.problem_of(index, timesteps)
        if problem:
            logger.warning("%s; it is made anew", problem)
            damaged.append(index)
    return sorted(absent.union(*group.all_gather_object(damaged)))


def _make_all(
    cache: TrajectoryCache,
    make: Callable[[int], Sample],
    missing: Sequence[int],
    group: RankGroup,
    *,
    in_step: bool,
) -> None:
    count, first = len(missing), group.rank_in_group
    if group.is_first_rank:
        logger.info("the teacher makes %d trajectories for %s", count, cache.root)
    reported = start = monotonic()
    for done in range(0, count, group.world_size):
        own = done + first
        if own < count:
            cache.write(missing[own], make(missing[own]))
        elif in_step:
            make(missing[done])
        now = monotonic()
        if group.is_first_rank and now - reported >= _REPORT_EVERY_S:
            reported = now
            made = min(count, done + group.world_size)
            logger.info(
                "%d of %d trajectories, %.1f s each on each rank",
                *(made, count, (now - start) * group.world_size / made),
            )


def _who_sees(cache: TrajectoryCache, total: int, group: RankGroup) -> list[bool]:
    """Tells for each rank whether it sees all files; network file systems may be a minute late."""
    deadline = monotonic() + _VISIBLE_WITHIN_S
    while not (sees := cache.is_complete(total)) and monotonic() < deadline:
        sleep(1.0)
    return group.all_gather_object(sees)
