"""One training step: its regions in their order, its scalars, its single look at the device."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final

from fastvideo.distributed import GradientReduction
from fastvideo.distributed.collective_wait import drain_collectives
from fastvideo.hooks.activation_trace import trace_step
from fastvideo.observability import active as active_telemetry
from fastvideo.profiler import profiler_region
from fastvideo.train.metrics import StepScalars, learning_rates
from fastvideo.train.nonfinite import AGREEMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from fastvideo.train.callbacks import CallbackDict
    from fastvideo.train.data_stream import DataStream
    from fastvideo.train.methods.base import TrainingMethod
    from fastvideo.train.nonfinite import NonFiniteGuard
    from fastvideo.train.trackers import StepTracker

STEP_SKIPPED: Final = "optimizer_step_skipped"
"""Scalar of a step whose optimizer step was left out; absent from all others."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What a step needs to know of the configuration.

    Attributes:
        accumulation_rounds: Forward and backward passes per optimizer step.
        constants: Scalars that are logged with every step.
        samples: Samples of one optimizer step in this process.
        reduce_every_round: Reduce gradients over shards in all rounds, for less memory.
    """

    accumulation_rounds: int
    constants: Mapping[str, float]
    samples: int = 0
    reduce_every_round: bool = False


class StepRunner:
    """Runs the steps of one method.

    Args:
        method: The training method.
        stream: Where batches come from.
        callbacks: What else happens in a step.
        tracker: Where its scalars go.
        guard: What happens when a loss is not finite.
        settings: The rest.
    """

    def __init__(
        self,
        method: TrainingMethod,
        stream: DataStream,
        *,
        callbacks: CallbackDict,
        tracker: StepTracker,
        guard: NonFiniteGuard,
        settings: StepSettings,
    ) -> None:
        self._method = method
        self._stream = stream
        self._callbacks = callbacks
        self._tracker = tracker
        self._guard = guard
        self._rounds = settings.accumulation_rounds
        self._reduction: GradientReduction | None = None
        if self._rounds > 1:
            self._reduction = GradientReduction(method, every_round=settings.reduce_every_round)
        self._constants = settings.constants
        self._samples = settings.samples
        self._telemetry = active_telemetry()
        self._step_kind: Callable[[int], str] | None = getattr(method, "step_kind", None)
        self._train = self._managed if method.manages_optimization() else self._ordinary

    def run(self, step: int) -> dict[str, float]:
        """Runs one step, and logs it.

        Args:
            step: The step, counted from 1.

        Returns:
            The step's scalars by name.

        Raises:
            NonFiniteLossError: A loss is NaN or infinite and the guard's policy is ``raise``.
        """
        tracker = self._tracker
        with self._region(step), trace_step(step):
            tracker.begin(step)
            try:
                scalars = self._train(step)
                with profiler_region("training_callbacks"):
                    self._callbacks.on_training_step_end(self._method, scalars, iteration=step)
            except BaseException:
                tracker.abandon()
                raise
            tracker.end()
        return scalars

    def _region(self, step: int) -> AbstractContextManager[object, bool | None]:
        if self._step_kind is None:
            return profiler_region("training_train_one_step", step=step)
        kind = self._step_kind(step)
        return profiler_region("training_train_one_step", step=step, step_kind=kind)

    def _ordinary(self, step: int) -> dict[str, float]:
        start = perf_counter()
        scalars = StepScalars()
        waited = 0.0
        for number in range(self._rounds):
            if self._reduction is not None:
                self._reduction.before_backward(last=number == self._rounds - 1)
            waited += self._round(scalars, step)
        self._guard.begin_agreement(scalars.losses.values())
        skipped = self._guard.policy == "skip" and self._judge(scalars, step)
        for name, rate in learning_rates(self._method).items():
            scalars.add(name, rate)
        self._optimize(step, skipped=skipped)
        scalars.add("dataloader_time_sec", waited)
        if skipped:
            scalars.add("nonfinite_loss", 1.0)
            scalars.add(STEP_SKIPPED, 1.0)
        return self._conclude(scalars, step, start)

    def _managed(self, step: int) -> dict[str, float]:
        """Lets the method sample, step and measure by itself; its loss is not divided."""
        start = perf_counter()
        scalars = StepScalars()
        loss_map, _, metrics = self._method.managed_train_step(self._stream, step)
        scalars.add_round(loss_map, metrics)
        self._guard.begin_agreement(scalars.losses.values())
        for name, rate in learning_rates(self._method).items():
            scalars.add(name, rate)
        return self._conclude(scalars, step, start)

    def _round(self, scalars: StepScalars, step: int) -> float:
        """Runs one forward and backward pass; returns the seconds spent waiting for its batch.

        The batch and the graph are freed on return, before the optimizer needs memory.
        """
        method = self._method
        with profiler_region("training_dataloader"):
            start = perf_counter()
            batch = next(self._stream)
            waited = perf_counter() - start
        with profiler_region("training_forward"):
            loss_map, outputs, metrics = method.single_train_step(batch, step)
        scalars.add_round(loss_map, metrics)
        with profiler_region("training_backward"):
            method.backward(loss_map, outputs, grad_accum_rounds=self._rounds)
        return waited

    def _optimize(self, step: int, *, skipped: bool) -> None:
        method = self._method
        with profiler_region("training_optimizer"):
            if not skipped:
                self._callbacks.on_before_optimizer_step(method, iteration=step)
                method.optimizers_schedulers_step(step)
            method.optimizers_zero_grad(step)

    def _conclude(self, scalars: StepScalars, step: int, start: float) -> dict[str, float]:
        """Reads the scalars from the device, logs them, and looks whether they are finite."""
        scalars.fetch([*self._guard.agreement(), *self._tracker.take_deferred()])
        elapsed = perf_counter() - start
        total = scalars.take_extra(AGREEMENT)
        values = scalars.means()
        values["step_time_sec"] = elapsed
        values.update(self._constants)
        self._tracker.log(values, step)
        if self._telemetry is not None:
            losses = scalars.losses.keys()
            self._telemetry.record_step(values, losses=losses, samples=self._samples)
            drain_collectives()
        if self._guard.policy != "skip" and self._guard.judge(scalars.losses, total, step):
            values["nonfinite_loss"] = 1.0
            self._tracker.log({"nonfinite_loss": 1.0}, step)
        return values

    def _judge(self, scalars: StepScalars, step: int) -> bool:
        """Reads the losses before the optimizer step; tells whether one is not finite."""
        scalars.fetch(self._guard.agreement())
        return self._guard.judge(scalars.losses, scalars.take_extra(AGREEMENT), step)
