"""Saves a run every so many steps, and brings it back to where it was.

All ranks call every method, in the same order; what one of them finds is told to all, so that
none waits for another one that has given up.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

from fastvideo.distributed import RankGroup, get_local_rank, get_world_group
from fastvideo.errors import FastVideoError, counted
from fastvideo.logger import init_logger
from fastvideo.profiler import profiler_region
from fastvideo.train.checkpoint import storage
from fastvideo.train.checkpoint.checksums import check_metadata, check_step, verify_checksums
from fastvideo.train.checkpoint.data_position import data_state, restore_data_state
from fastvideo.train.checkpoint.directory import (
    NONFINITE,
    begin_directory,
    check_writable,
    complete_directory,
    free_space,
    is_finite,
    keep_newest,
    remove_directory,
    remove_leftovers,
    telling_of_files,
)
from fastvideo.train.checkpoint.errors import CheckpointError, CheckpointWriteError
from fastvideo.train.checkpoint.finite import describe_nonfinite, nonfinite_names
from fastvideo.train.checkpoint.fit import CALLBACKS
from fastvideo.train.checkpoint.layout import (
    DCP,
    LATEST,
    checkpoint_step,
    list_checkpoints,
    rank_file_name,
    resolve_checkpoint,
    what_is_missing,
)
from fastvideo.train.checkpoint.origin import (
    METHOD,
    RESUME_KEY,
    MethodNames,
    describe_method,
    misfit_message,
    refuse_mixing,
    refuse_other_method,
    refuse_starting_among,
)
from fastvideo.train.checkpoint.plain import from_plain, read_plain, to_plain, write_plain
from fastvideo.train.checkpoint.rng import random_state, reseed_new_rank, restore_random_state
from fastvideo.train.checkpoint.state import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from fastvideo.train.callbacks import CallbackDict
    from fastvideo.train.methods.base import TrainingMethod

logger = init_logger(__name__)

_NAMES_KEPT: Final = 20
_RANK_KEYS: Final = {"step", "rank", "world_size", "rng", "data", "method", CALLBACKS}
_PACKAGES: Final = ("fastvideo", "torch", "diffusers")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When and how a run is saved.

    Attributes:
        save_steps: Save every so many steps, and at the end; 0 never saves.
        keep_last: Checkpoints that are kept, the newest; 0 keeps all.
        async_save: Write in a thread while the training goes on, from a copy in host memory.
    """

    save_steps: int = 0
    keep_last: int = 0
    async_save: bool = False


@dataclass(frozen=True, slots=True)
class _Written:
    """What the ranks say of what they write.

    Attributes:
        checksums: Those of the ranks' files, by name.
        nonfinite: Names of tensors that are NaN or infinite somewhere.
    """

    checksums: dict[str, str]
    nonfinite: list[str]


@dataclass(slots=True)
class _Pending:
    """A save that a thread is busy with.

    Attributes:
        step: The step that is saved.
        path: Where it is written.
        future: Done when the ranks have written.
        written: What is known of it already.
        error: What went wrong on this rank, once :attr:`thread` has ended.
        thread: Waits for the others, and completes the checkpoint on the first rank.
    """

    step: int
    path: Path
    future: Future[Any]
    written: _Written
    error: str = ""
    thread: threading.Thread | None = None


@dataclass(slots=True)
class _Resumed:
    """What a run was resumed from.

    Attributes:
        step: Its step.
        rng: The random state of this rank; None if the saved run did not have this rank.
    """

    step: int
    rng: Mapping[str, Any] | None = field(default=None)


class CheckpointManager:
    """Saves and restores one run.

    Args:
        method: The training method.
        dataloader: The loader that the run iterates over.
        output_dir: Directory of the run, which all ranks see.
        config: When to save.
        callbacks: The run's callbacks.
        raw_config: The run file with its overrides, for the record.

    Raises:
        CheckpointWriteError: Checkpoints are to be saved, and the directory cannot be written to.
    """

    def __init__(
        self,
        method: TrainingMethod,
        dataloader: Any,  # noqa: ANN401 - any loader will do
        output_dir: str | Path,
        *,
        config: CheckpointConfig | None = None,
        callbacks: CallbackDict | None = None,
        raw_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config or CheckpointConfig()
        self.output_dir = Path(output_dir).expanduser()
        self._method = method
        self._loader = dataloader
        self._state = RunState(method, callbacks)
        self._raw_config = raw_config
        self._ranks = get_world_group()
        self._writers = self._ranks
        self._writer: storage.CheckpointWriter | None = None
        self._last_saved = -1
        self._tidied = False
        self._pending: _Pending | None = None
        self._resumed: _Resumed | None = None
        if self.config.save_steps > 0:
            self._on_first_rank(lambda: check_writable(self.output_dir))
            if self.config.async_save:
                self._writers = _group_of_its_own(self._ranks)

    # -- Saving ----------------------------------------------------------------------------------

    def maybe_save(self, step: int) -> None:
        """Saves if it is time to.

        A save that fails because of the disk is an error in the log, and the run goes on: it can
        still succeed next time, and ending would lose more.

        Args:
            step: The step that has just ended.
        """
        if self.config.save_steps <= 0 or step % self.config.save_steps or step == self._last_saved:
            return
        try:
            self._save(step)
        except CheckpointWriteError as error:
            self._say(f"step {step} was not saved: {error}{free_space(self.output_dir)}")

    def save_final(self, step: int) -> None:
        """Saves the end of the run, unless that is done, and waits until it is on the disk.

        Args:
            step: The last step.

        Raises:
            CheckpointError: It cannot be saved.
        """
        if self.config.save_steps <= 0:
            return
        if step > self._last_saved:
            self._save(step)
        if self._pending is not None:
            with profiler_region("training_save_checkpoint", step=self._pending.step):
                self._finish_pending()

    def close(self, timeout_s: float = 60.0) -> None:
        """Gives a save that is under way the time to end, when the run ends with an error.

        Args:
            timeout_s: How long at most.
        """
        pending, self._pending = self._pending, None
        if pending is not None and pending.thread is not None:
            pending.thread.join(timeout_s)

    def _save(self, step: int) -> None:
        with profiler_region("training_save_checkpoint", step=step):
            if self._pending is not None:
                try:
                    self._finish_pending()
                except CheckpointWriteError as error:
                    self._say(str(error))
            path = self._on_first_rank(lambda: self._begin(step))
            try:
                self._write(path, step)
            except FastVideoError:
                self._on_first_rank(lambda: remove_directory(path))
                raise
            self._last_saved = step

    def _begin(self, step: int) -> Path:
        if not self._tidied:
            remove_leftovers(self.output_dir)
            self._tidied = True
        return begin_directory(self.output_dir, step)

    def _write(self, path: Path, step: int) -> None:
        tensors = self._state.tensors()
        constants = self._state.constants()
        nonfinite = nonfinite_names({n: t for n, t in tensors.items() if n not in constants})
        sums, found = zip(
            *self._from_all_ranks(lambda: (self._write_rank_file(path, step), nonfinite)),
            strict=True,
        )
        names = [rank_file_name(rank) for rank in range(len(sums))]
        written = _Written(
            dict(zip(names, sums, strict=True)), sorted({n for f in found for n in f})
        )
        if self.config.async_save:
            self._write_later(tensors, path, step, written)
            return
        storage.save_tensors(tensors, path / DCP, self._ranks)
        self._on_first_rank(lambda: self._complete(path, step, written))

    def _write_rank_file(self, path: Path, step: int) -> str:
        if not path.is_dir():
            message = (
                f"training.checkpoint.output_dir: rank {self._ranks.rank} does not see {path}, "
                "which rank 0 has made; it must be on a file system that all nodes share"
            )
            raise CheckpointError(message)
        content = {
            "step": step,
            "rank": self._ranks.rank,
            "world_size": self._ranks.world_size,
            "rng": random_state(self._method.cuda_generator),
            "data": data_state(self._loader),
            **self._state.plain(),
        }
        plain = to_plain(content, where="the run's state")
        file = path / rank_file_name(self._ranks.rank)
        with telling_of_files("cannot write", file):
            return write_plain(file, plain)

    def _complete(self, path: Path, step: int, written: _Written) -> None:
        metadata: dict[str, Any] = {
            "config": self._raw_config,
            METHOD: describe_method(self._method, self._state.roles(), self._state.optimizers()),
            "world_size": self._ranks.world_size,
            "versions": _versions(),
        }
        if written.nonfinite:
            metadata[NONFINITE] = written.nonfinite[:_NAMES_KEPT]
        checkpoint = complete_directory(path, step, metadata, written.checksums)
        keep_newest(self.output_dir, self.config.keep_last, always=checkpoint)
        logger.info("saved %s", checkpoint)
        if written.nonfinite:
            good = _newest_finite(self.output_dir)
            logger.warning(
                "%s: %s; %s",
                *(checkpoint, describe_nonfinite(written.nonfinite)),
                f"{good.name} is the newest without, and stays"
                if good
                else "there is none without",
            )

    def _write_later(
        self, tensors: dict[str, torch.Tensor], path: Path, step: int, written: _Written
    ) -> None:
        if self._writer is None:
            self._writer = storage.CheckpointWriter(path / DCP)
        future = storage.save_tensors_later(tensors, path / DCP, self._writers, self._writer)
        pending = _Pending(step, path, future, written)
        pending.thread = threading.Thread(
            target=self._complete_later, args=(pending,), name="complete-checkpoint", daemon=True
        )
        pending.thread.start()
        self._pending = pending

    def _complete_later(self, pending: _Pending) -> None:
        """Runs in a thread. The save ends with all ranks' files, so the first rank may go on."""
        try:
            storage.finished_save(pending.future, pending.path / DCP)
            if self._ranks.is_first_rank:
                self._complete(pending.path, pending.step, pending.written)
        except CheckpointError as error:
            pending.error = str(error)
        except Exception as error:  # nobody looks at a thread's exceptions
            logger.exception("saving step %d failed", pending.step)
            pending.error = f"{type(error).__name__}: {error}"

    def _finish_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None or pending.thread is None:
            return
        pending.thread.join()
        errors = [text for text in self._ranks.all_gather_object(pending.error) if text]
        if not errors:
            return
        self._on_first_rank(lambda: remove_directory(pending.path))
        message = f"step {pending.step} was not saved: {errors[0]}{free_space(self.output_dir)}"
        raise CheckpointWriteError(message)

    def _say(self, message: str) -> None:
        if self._ranks.is_first_rank:
            logger.error("%s", message)

    # -- Resuming --------------------------------------------------------------------------------

    def maybe_resume(self, *, resume_from_checkpoint: str) -> int | None:
        """Restores everything but the random state.

        Args:
            resume_from_checkpoint: "", ``latest``, or a directory; see
                :func:`fastvideo.train.checkpoint.layout.resolve_checkpoint`.

        Returns:
            The step of the checkpoint; None if there is nothing to resume from.

        Raises:
            FileNotFoundError: There is no such checkpoint.
            ConfigError: (a `ValueError`) The directory holds none.
            CheckpointError: It is damaged, or belongs to another run.
        """
        checkpoint: Path | None = self._on_first_rank(
            lambda: resolve_checkpoint(resume_from_checkpoint, self.output_dir)
        )
        if self.config.save_steps > 0 and resume_from_checkpoint != LATEST:
            self._on_first_rank(lambda: self._look_at_output_dir(checkpoint))
        if not resume_from_checkpoint:
            return None
        if checkpoint is None:
            if self._ranks.is_first_rank:
                logger.info(
                    "resume_from_checkpoint is %s: no checkpoint in %s, starting afresh",
                    *(LATEST, self.output_dir),
                )
            return None
        step = _step(checkpoint)
        self._on_first_rank(lambda: check_metadata(checkpoint))
        self._on_all_ranks(lambda: self._verify_checksums(checkpoint))
        index, tensors = self._fitting(checkpoint)
        own = self._on_all_ranks(lambda: self._read_rank_file(checkpoint))
        self._on_all_ranks(lambda: self._verify(checkpoint, index))
        overridden = self._state.overridden_settings(own)
        storage.load_tensors(tensors, checkpoint / DCP, self._ranks)
        self._on_all_ranks(lambda: self._restore(checkpoint, tensors, own))
        restore_data_state(self._loader, own["data"], same_ranks=self._same_ranks(own), step=step)
        is_own = own["rank"] == self._ranks.rank
        self._resumed = _Resumed(step, own["rng"] if is_own else None)
        self._last_saved = step
        if self._ranks.is_first_rank:
            logger.info("going on after step %d from %s", step, checkpoint)
            self._warn_of_nonfinite(checkpoint)
            self._warn_of_settings(checkpoint, overridden)
            self._warn_of_others(checkpoint, own)
        return step

    def load_rng_snapshot(self, resume_from_checkpoint: str) -> None:
        """Restores the random state; call it when everything is made that draws from it.

        Args:
            resume_from_checkpoint: As for :meth:`maybe_resume`, which must have been called.
        """
        del resume_from_checkpoint
        if self._resumed is None:
            return
        generator = self._method.cuda_generator
        if self._resumed.rng is not None:
            restore_random_state(self._resumed.rng, generator)
            return
        seed = int(self._method.training_config.data.seed)
        reseed_new_rank(generator, seed=seed, rank=self._ranks.rank, step=self._resumed.step)

    def _read_rank_file(self, checkpoint: Path) -> dict[str, Any]:
        """Reads this rank's file; that of rank 0 where the saved run had fewer ranks."""
        path = checkpoint / rank_file_name(self._ranks.rank)
        if not path.exists() and self._ranks.rank > 0:
            first = read_plain(checkpoint / rank_file_name(0))
            if self._ranks.rank >= int(first.get("world_size", 0)):
                return dict(from_plain(first))
        content = read_plain(path)
        missing = sorted(_RANK_KEYS - content.keys())
        if missing:
            message = f"{path} is no file of a rank: it has no {', '.join(missing)}"
            raise CheckpointError(message)
        check_step(checkpoint, content["step"], path.name)
        return dict(from_plain(content))

    def _look_at_output_dir(self, resumed: Path | None) -> None:
        """Refuses to save among checkpoints that this run does not go on from."""
        names = MethodNames.of(self._method, self._raw_config)
        newest = refuse_mixing(self.output_dir, names)
        refuse_starting_among(self.output_dir, newest, resumed)

    def _fitting(self, checkpoint: Path) -> tuple[Any, dict[str, torch.Tensor]]:
        """Returns a checkpoint's index and the tensors to read, if it belongs to this run."""
        names = MethodNames.of(self._method, self._raw_config)
        origin = self._on_first_rank(lambda: refuse_other_method(checkpoint, names))
        index = self._on_all_ranks(lambda: storage.read_index(checkpoint / DCP))
        with _naming_misfits(checkpoint):
            tensors, notes = self._on_all_ranks(
                lambda: self._state.wanted(index.state_dict_metadata, origin)
            )
        if self._ranks.is_first_rank:
            for note in notes:
                logger.warning("%s: %s", checkpoint, note)
        return index, tensors

    def _verify_checksums(self, checkpoint: Path) -> None:
        verify_checksums(checkpoint, part=self._ranks.rank, parts=self._ranks.world_size)

    def _verify(self, checkpoint: Path, index: Any) -> None:  # noqa: ANN401 - torch's index
        ranks = self._ranks
        storage.verify_files(checkpoint / DCP, index, part=ranks.rank, parts=ranks.world_size)

    def _restore(
        self, checkpoint: Path, tensors: dict[str, torch.Tensor], own: Mapping[str, Any]
    ) -> None:
        with _naming_misfits(checkpoint):
            self._state.restore(tensors, own)

    def _warn_of_nonfinite(self, checkpoint: Path) -> None:
        if is_finite(checkpoint):
            return
        good = _newest_finite(checkpoint.parent)
        advice = "there is none without"
        if good is not None:
            advice = f"to go on from the newest without, set --{RESUME_KEY} {good}"
        logger.warning(
            "%s held NaN or infinite values when it was saved; %s", checkpoint.name, advice
        )

    def _warn_of_settings(self, checkpoint: Path, overridden: list[str]) -> None:
        if overridden:
            logger.warning(
                "the optimizers go on with the settings of %s, and those of the run file have no "
                "effect: %s",
                *(checkpoint.name, "; ".join(overridden)),
            )

    def _same_ranks(self, own: Mapping[str, Any]) -> bool:
        return int(own["world_size"]) == self._ranks.world_size

    def _warn_of_others(self, checkpoint: Path, own: Mapping[str, Any]) -> None:
        if not self._same_ranks(own):
            logger.warning(
                "%s was saved by %s, and this run has %d: weights, optimizer and place in the data "
                "are those of the saved run, but batches and noise are dealt out to the ranks "
                "in another way, so losses differ from those of a run that was not stopped",
                *(checkpoint.name, counted(own["world_size"], "rank"), self._ranks.world_size),
            )
        whole = [one for one in list_checkpoints(checkpoint.parent) if not what_is_missing(one)]
        newest = max(whole, key=_step, default=checkpoint)
        if _step(newest) > _step(checkpoint):
            logger.warning(
                "%s is newer than the %s that this run goes on from, and 'latest' would take it; "
                "move it away if it is not wanted",
                *(newest.name, checkpoint.name),
            )

    # -- Agreement -------------------------------------------------------------------------------

    def _on_first_rank(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - what `work` returns
        """Lets rank 0 work and returns its result, or raises its error, on all ranks."""
        result: tuple[Any, FastVideoError | None] = (None, None)
        if self._ranks.is_first_rank:
            result = _attempt(work)
        value, error = self._ranks.broadcast_object(result)
        if error is not None:
            raise error
        return value

    def _on_all_ranks(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - as above
        """Lets all ranks work; the first error of any is raised on all."""
        value, error = _attempt(work)
        errors = [e for e in self._ranks.all_gather_object(error) if e is not None]
        if errors:
            raise error or errors[0]
        return value

    def _from_all_ranks(self, work: Callable[[], Any]) -> list[Any]:
        """Lets all ranks work; returns what they return, in their order, or raises likewise."""
        value, error = _attempt(work)
        results = self._ranks.all_gather_object((value, error))
        errors = [e for _, e in results if e is not None]
        if errors:
            raise error or errors[0]
        return [v for v, _ in results]


def _step(checkpoint: Path) -> int:
    return checkpoint_step(checkpoint) or 0


@contextmanager
def _naming_misfits(checkpoint: Path) -> Iterator[None]:
    """Adds to an error which checkpoint does not fit, and what to do."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(misfit_message(checkpoint, str(error))) from error


def _newest_finite(output_dir: Path) -> Path | None:
    newest_first = reversed(list_checkpoints(output_dir))
    return next((one for one in newest_first if is_finite(one) and not what_is_missing(one)), None)


def _attempt(work: Callable[[], Any]) -> tuple[Any, FastVideoError | None]:
    try:
        return work(), None
    except FastVideoError as error:
        return None, error


def _group_of_its_own(ranks: RankGroup) -> RankGroup:
    """Returns the same ranks with a process group that a thread may use beside the training."""
    if ranks.process_group is None:
        return ranks
    return RankGroup(
        rank=ranks.rank,
        local_rank=get_local_rank(),
        ranks=ranks.ranks,
        device=torch.device("cpu"),
        process_group=dist.new_group(backend="gloo"),
    )


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
