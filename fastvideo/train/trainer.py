"""The training loop: what happens in which order, from the first hook to the last."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from fastvideo.distributed import get_local_torch_device, get_world_rank, get_world_size
from fastvideo.errors import ConfigError
from fastvideo.hooks.activation_trace import attach_activation_trace, detach_activation_trace
from fastvideo.logger import init_logger
from fastvideo.profiler import profiler_region
from fastvideo.train.callbacks import CallbackDict
from fastvideo.train.data_stream import DataStream, explaining_workers
from fastvideo.train.nonfinite import NonFiniteGuard
from fastvideo.train.progress import make_progress
from fastvideo.train.step import StepRunner, StepSettings
from fastvideo.train.trackers import StepTracker, build_tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from fastvideo.train.config import TrainingConfig
    from fastvideo.train.methods.base import TrainingMethod

logger = init_logger(__name__)


class CheckpointManager(Protocol):
    """What the trainer asks of something that saves and restores runs."""

    def maybe_resume(self, *, resume_from_checkpoint: str) -> int | None:
        """Restores a checkpoint and returns its step; None if there is none."""
        ...

    def load_rng_snapshot(self, resume_from_checkpoint: str) -> None:
        """Restores the random state, after everything else that draws from it is made."""
        ...

    def maybe_save(self, step: int) -> None:
        """Saves if it is time to."""
        ...

    def save_final(self, step: int) -> None:
        """Saves the end of the run, and waits for what is being saved."""
        ...

    def close(self) -> None:
        """Lets what is being saved end, after an error."""
        ...


class StopRequest(Protocol):
    """What the trainer asks of something that may end a run early."""

    def awaited(self) -> AbstractContextManager[None]:
        """Is entered while the run can be ended between two steps."""
        ...

    def begin_step(self) -> None:
        """Is called on all ranks before a step."""
        ...

    def agreed(self) -> bool:
        """Tells after a step whether to stop; the same on all ranks."""
        ...

    def leave(self, step: int) -> None:
        """Ends the run, by an exception, when it has been saved."""
        ...


class Trainer:
    """Runs a method's training loop.

    Args:
        training_config: The ``training`` section.
        config: The whole resolved configuration, for the trackers to show.
        callback_configs: The ``callbacks`` section.

    Attributes:
        tracker: Where scalars are logged; real on global rank 0 only.
        callbacks: The run's callbacks.

    Raises:
        ConfigError: A tracker or callback cannot be built from its settings.
    """

    def __init__(
        self,
        training_config: TrainingConfig,
        *,
        config: Mapping[str, Any] | None = None,
        callback_configs: Mapping[str, Any] | None = None,
    ) -> None:
        self.training_config = training_config
        self.global_rank = get_world_rank()
        self.world_size = get_world_size()
        self.callbacks = CallbackDict(callback_configs, training_config)
        self.tracker = StepTracker(build_tracker(training_config, config=config))

    def run(
        self,
        method: TrainingMethod,
        *,
        dataloader: Iterable[Any],
        max_steps: int,
        start_step: int = 0,
        checkpoint_manager: CheckpointManager | None = None,
        stop_request: StopRequest | None = None,
        on_restored: Callable[[], object] | None = None,
    ) -> None:
        """Trains from ``start_step + 1`` to ``max_steps`` and closes the trackers.

        Args:
            method: The training method.
            dataloader: Its batches; iterated again when exhausted.
            max_steps: The last step.
            start_step: The last step that is done already.
            checkpoint_manager: Restores and saves; None for a run without checkpoints.
            stop_request: Ends the run early, after a step that is saved first; None never does.
            on_restored: Is called once a checkpoint is restored or there is none to restore,
                before the first step; never where the checkpoint is refused.

        Raises:
            NonFiniteLossError: A loss is NaN or infinite and ``training.nonfinite_loss`` is
                ``raise``. Other exceptions of the method, the callbacks and the loader pass
                unchanged; trackers are then closed with exit code 1.
        """
        with (
            profiler_region("training_train"),
            _activations_traced(method),
            explaining_workers(),
        ):
            try:
                first = self._prepare(method, start_step, checkpoint_manager, on_restored)
                runner = self._make_runner(method, dataloader, checkpoint_manager)
                steps = range(first + 1, max_steps + 1)
                with nullcontext() if stop_request is None else stop_request.awaited():
                    self._loop(runner, method, steps, checkpoint_manager, stop_request)
                    self.callbacks.on_train_end(method, iteration=max_steps)
                    if checkpoint_manager is not None:
                        checkpoint_manager.save_final(max_steps)
            except BaseException as error:
                if checkpoint_manager is not None and isinstance(error, Exception):
                    checkpoint_manager.close()
                self.tracker.finish(exit_code=1)
                raise
            self.tracker.finish()

    def _prepare(
        self,
        method: TrainingMethod,
        start_step: int,
        manager: CheckpointManager | None,
        on_restored: Callable[[], object] | None = None,
    ) -> int:
        """Starts method and callbacks, restores a checkpoint; returns the last step done."""
        method.set_tracker(self.tracker)
        method.on_train_start()
        self.callbacks.on_train_start(method, iteration=start_step)
        if manager is not None:
            resume_from = self.training_config.checkpoint.resume_from_checkpoint
            if resume_from:
                method.seed_optimizer_state_for_resume()
            resumed = manager.maybe_resume(resume_from_checkpoint=resume_from)
            if resumed is not None:
                start_step = int(resumed)
        if on_restored is not None:
            on_restored()
        self.callbacks.on_validation_begin(method, iteration=start_step)
        self._validate_method(method, start_step)
        method.optimizers_zero_grad(start_step)
        return start_step

    def _make_runner(
        self,
        method: TrainingMethod,
        dataloader: Iterable[Any],
        manager: CheckpointManager | None,
    ) -> StepRunner:
        config = self.training_config
        stream = DataStream(dataloader)
        if manager is not None and config.checkpoint.resume_from_checkpoint:
            manager.load_rng_snapshot(config.checkpoint.resume_from_checkpoint)
        policy = config.nonfinite_loss
        if policy == "skip" and method.manages_optimization():
            logger.warning(
                "training.nonfinite_loss 'skip' means 'warn' here: %s steps its optimizers itself",
                type(method).__name__,
            )
            policy = "warn"
        return StepRunner(
            method,
            stream,
            callbacks=self.callbacks,
            tracker=self.tracker,
            guard=NonFiniteGuard(
                policy,
                rank=self.global_rank,
                world_size=self.world_size,
                device=get_local_torch_device(),
            ),
            settings=StepSettings(
                accumulation_rounds=_accumulation_rounds(config),
                constants={"vsa_sparsity": float(config.vsa_sparsity)},
                samples=_accumulation_rounds(config) * config.data.train_batch_size,
                reduce_every_round=config.distributed.reduce_every_round,
            ),
        )

    def _loop(
        self,
        runner: StepRunner,
        method: TrainingMethod,
        steps: range,
        manager: CheckpointManager | None,
        stop: StopRequest | None,
    ) -> None:
        if not steps:
            logger.info("no steps to do: %d of %d are done", steps.start - 1, steps.stop - 1)
            return
        start = perf_counter()
        callbacks = self.callbacks
        with make_progress(steps, enabled=self.global_rank == 0) as progress:
            for step in steps:
                if stop is not None:
                    stop.begin_step()
                scalars = runner.run(step)
                progress.update(step, scalars)
                if manager is not None:
                    manager.maybe_save(step)
                if stop is not None and stop.agreed():
                    if manager is not None:
                        manager.save_final(step)
                    stop.leave(step)
                callbacks.on_validation_begin(method, iteration=step)
                self._validate_method(method, step)
                callbacks.on_validation_end(method, iteration=step)
        logger.info(
            "finished %d step%s in %.1f s, the last one is step %d",
            len(steps),
            "" if len(steps) == 1 else "s",
            perf_counter() - start,
            steps[-1],
        )

    def _validate_method(self, method: TrainingMethod, step: int) -> None:
        """Logs what the method itself has to say about a step, if anything."""
        hook = getattr(method, "on_validation_begin", None)
        metrics = hook(step) if hook is not None else None
        if metrics:
            self.tracker.log(metrics, step)


@contextmanager
def _activations_traced(method: TrainingMethod) -> Iterator[None]:
    """Traces the activations of every role meanwhile, if the environment asks for it."""
    roles = getattr(method, "role_modules", {})
    traces = [
        attach_activation_trace(modules["transformer"], role=role)
        for role, modules in roles.items()
    ]
    try:
        yield
    finally:
        for trace in traces:
            detach_activation_trace(trace)


def _accumulation_rounds(config: TrainingConfig) -> int:
    rounds = int(config.loop.gradient_accumulation_steps)
    if rounds < 1:
        message = f"training.loop.gradient_accumulation_steps must be at least 1, got {rounds}"
        raise ConfigError(message)
    return rounds
