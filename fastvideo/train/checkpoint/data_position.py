"""Where a run is in its data set, in terms that another number of ranks understands too.

The order of the rows in an epoch depends on the seed alone, and the ranks together read it from
front to back. So the position is the number of rows that the global batch has passed, whatever
the number of ranks, the batch size or the number of loader workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastvideo.errors import counted
from fastvideo.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = init_logger(__name__)

_STATE: Final = "state"
_SAMPLER: Final = "sampler"
_EPOCH: Final = "epoch"
_POSITION: Final = "position"
_CONTENT: Final = "content"


def data_state(loader: Any) -> dict[str, Any]:  # noqa: ANN401 - any loader will do
    """Returns where a loader is; empty for one that cannot say.

    Args:
        loader: The run's loader, which is being iterated over.
    """
    if not callable(getattr(loader, "state_dict", None)):
        return {}
    state = loader.state_dict()
    result: dict[str, Any] = {_STATE: state}
    content = _content(loader)
    if content is not None:
        result[_CONTENT] = content
    sampler = _resumable_sampler(loader)
    iterator = _find(state, "_sampler_iter_state")
    if sampler is not None and iterator is not None:
        behind = _find(state, "_steps_since_snapshot") or 0
        result[_SAMPLER] = {
            **sampler.state_dict(),
            _EPOCH: iterator[_EPOCH],
            _POSITION: iterator[_POSITION] + behind,
        }
    return result


def restore_data_state(
    loader: Any,  # noqa: ANN401 - any loader will do
    saved: Mapping[str, Any],
    *,
    same_ranks: bool,
    step: int,
) -> None:
    """Makes a loader go on where a saved one was; says so where that cannot be.

    Args:
        loader: The run's loader, which has not been iterated over.
        saved: What :func:`data_state` returned.
        same_ranks: Whether the saved run had as many ranks as this one.
        step: The step that is resumed from, for messages.
    """
    _compare_content(_content(loader), saved.get(_CONTENT), step=step)
    sampler = _resumable_sampler(loader)
    if sampler is not None and _SAMPLER in saved:
        _go_to(sampler, saved[_SAMPLER])
    elif _STATE in saved and same_ranks and callable(getattr(loader, "load_state_dict", None)):
        loader.load_state_dict(saved[_STATE])
    else:
        why = "cannot say where it is" if not saved else "cannot go to the saved place"
        if saved and not same_ranks:
            why = "knows its place only for the number of ranks it was saved with"
        logger.warning(
            "the data starts from its beginning after step %d: the data loader (%s) %s",
            *(step, type(loader).__name__, why),
        )


def _go_to(sampler: Any, saved: Mapping[str, int]) -> None:  # noqa: ANN401 - found by its methods
    now: dict[str, int] = sampler.state_dict()
    rows = saved[_POSITION] * saved["batch_size"] * saved["num_sp_groups"]
    global_batch = now["batch_size"] * now["num_sp_groups"]
    position, again = divmod(rows, global_batch)
    sampler.resume_at(saved[_EPOCH], position)
    if again:
        logger.warning(
            "%s of the data set will be read a second time in this epoch: the saved run had taken "
            "%d in batches of %d, and this one takes %d at once",
            *(
                counted(again, "row"),
                rows,
                saved["batch_size"] * saved["num_sp_groups"],
                global_batch,
            ),
        )
    if saved["seed"] != now["seed"]:
        logger.warning(
            "training.data.seed was %d and is %d: rows of this epoch may repeat or be left out",
            *(saved["seed"], now["seed"]),
        )


def _content(loader: object) -> dict[str, Any] | None:
    """Returns what tells the loader's data set from others, if that can say it."""
    content = getattr(getattr(loader, "dataset", None), "content", None)
    if isinstance(content, dict):
        return content
    sampler = _resumable_sampler(loader)
    return None if sampler is None else {"rows": sampler.state_dict()["dataset_size"]}


def _compare_content(
    now: Mapping[str, Any] | None, saved: Mapping[str, Any] | None, *, step: int
) -> None:
    """Warns of a data set that has changed since the run was saved."""
    if now is None or saved is None or now == saved:
        return
    counts = [
        f"{name} were {saved[name]} and are {now[name]}"
        for name in ("files", "rows")
        if name in saved and saved[name] != now.get(name)
    ]
    logger.warning(
        "training.data.data_path is not the data set of step %d any more (%s): rows of this epoch "
        "may repeat or be left out, and losses are not comparable. Name the old one if that "
        "matters",
        step,
        "; ".join(counts) or "as many files and rows, but other names or sizes",
    )


def _resumable_sampler(loader: object) -> Any:  # noqa: ANN401 - found by its methods
    sampler = getattr(loader, "batch_sampler", None)
    return sampler if callable(getattr(sampler, "resume_at", None)) else None


def _find(state: object, key: str) -> Any:  # noqa: ANN401 - whatever is there
    """Returns the first value of a key in nested mappings; where it is depends on the workers."""
    if not isinstance(state, dict):
        return None
    if state.get(key) is not None:
        return state[key]
    return next((v for item in state.values() if (v := _find(item, key)) is not None), None)
