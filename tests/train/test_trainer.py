"""The training loop: order of regions and hooks, metrics, accumulation, errors."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from toy_loop import (
    ONE_STEP,
    BrokenOnPurposeError,
    ManagedMethod,
    ToyMethod,
    batches,
    inside,
    lines,
    run,
)

from fastvideo.errors import ConfigError, DataError
from fastvideo.profiler import RecordingSink, attach, detach
from fastvideo.train.callbacks import Callback
from fastvideo.train.config import TrainingConfig
from fastvideo.train.nonfinite import NonFiniteLossError
from fastvideo.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def sink() -> Iterator[RecordingSink]:
    """Hears of every region of the test."""
    recording = RecordingSink()
    attach(recording)
    yield recording
    detach(recording)


@pytest.fixture
def config(tmp_path: Path) -> TrainingConfig:
    """Logs to a file in a folder of the test."""
    config = TrainingConfig()
    config.checkpoint.output_dir = str(tmp_path)
    config.tracker.trackers = ["jsonl"]
    return config


def test_regions_of_a_run_come_in_the_documented_order(
    config: TrainingConfig, sink: RecordingSink
) -> None:
    """Every step opens its regions in order, and nothing else is entered."""
    run(config, ToyMethod(), 2)
    assert sink.events == [
        ("enter", "training_train"),
        *ONE_STEP,
        *ONE_STEP,
        ("exit", "training_train"),
    ]


def test_accumulation_repeats_dataloader_forward_and_backward(
    config: TrainingConfig, sink: RecordingSink
) -> None:
    """With three rounds the three inner regions repeat before one optimizer region."""
    config.loop.gradient_accumulation_steps = 3
    run(config, ToyMethod(), 1)
    rounds = ("training_dataloader", "training_forward", "training_backward")
    assert sink.events == [
        ("enter", "training_train"),
        ("enter", "training_train_one_step"),
        *inside(*rounds * 3),
        *inside("training_optimizer", "training_callbacks"),
        ("exit", "training_train_one_step"),
        ("exit", "training_train"),
    ]


def test_managed_methods_open_step_and_callbacks_only(
    config: TrainingConfig, sink: RecordingSink
) -> None:
    """A managed step has no dataloader, forward, backward or optimizer region."""
    run(config, ManagedMethod(), 1)
    assert sink.events == [
        ("enter", "training_train"),
        ("enter", "training_train_one_step"),
        *inside("training_callbacks"),
        ("exit", "training_train_one_step"),
        ("exit", "training_train"),
    ]


@pytest.mark.parametrize(
    ("hook", "region"),
    [
        ("single_train_step", "training_forward"),
        ("backward", "training_backward"),
        ("optimizers_schedulers_step", "training_optimizer"),
    ],
)
def test_an_exception_unwinds_all_regions(
    config: TrainingConfig, sink: RecordingSink, hook: str, region: str
) -> None:
    """The exception passes unchanged, and the regions around it close innermost first."""
    method = ToyMethod()

    def fail(*args: object, **kwargs: object) -> None:
        raise BrokenOnPurposeError

    setattr(method, hook, fail)
    with pytest.raises(BrokenOnPurposeError):
        run(config, method, 2)
    assert sink.events[-3:] == [
        ("exit", region),
        ("exit", "training_train_one_step"),
        ("exit", "training_train"),
    ]
    assert sink.errors[-3:] == [BrokenOnPurposeError] * 3


def test_steps_carry_their_number_and_kind(config: TrainingConfig, sink: RecordingSink) -> None:
    """The step region has the attributes step and, if the method says, step_kind."""
    method = ToyMethod()
    method.step_kind = lambda step: "generator" if step == 2 else "critic"
    run(config, method, 2)
    assert [a for a in sink.attributes if a] == [
        {"step": 1, "step_kind": "critic"},
        {"step": 2, "step_kind": "generator"},
    ]


def test_steps_of_methods_without_kinds_carry_the_number_only(
    config: TrainingConfig, sink: RecordingSink
) -> None:
    """A method without step_kind adds no such attribute; numbers go on from the start step."""
    run(config, ToyMethod(), 6, start_step=4)
    assert [a for a in sink.attributes if a] == [{"step": 5}, {"step": 6}]


def test_hooks_are_called_in_the_documented_order(config: TrainingConfig) -> None:
    """Callbacks see start, baseline validation, each step, validation after it, and the end."""
    _, recording = run(config, ToyMethod(), 2)
    assert recording.calls == [
        ("train_start", 0),
        ("validation_begin", 0),
        ("before_optimizer", 1),
        ("step_end", 1),
        ("validation_begin", 1),
        ("validation_end", 1),
        ("before_optimizer", 2),
        ("step_end", 2),
        ("validation_begin", 2),
        ("validation_end", 2),
        ("train_end", 2),
    ]


def test_the_method_is_called_in_the_documented_order(config: TrainingConfig) -> None:
    """Gradients are dropped once before the first step and after each optimizer step."""
    method = ToyMethod()
    run(config, method, 1)
    assert method.calls == [
        ("set_tracker",),
        ("on_train_start",),
        ("zero_grad", 0),
        ("forward", 1, [1.0, 1.0]),
        ("backward", 1),
        ("step", 1),
        ("zero_grad", 1),
    ]


def test_managed_methods_skip_the_optimizer_hook_and_are_not_divided(
    config: TrainingConfig,
) -> None:
    """Losses of a managed step are logged as returned, without a dataloader time."""
    config.loop.gradient_accumulation_steps = 4
    method = ManagedMethod()
    _, recording = run(config, method, 1)
    assert ("before_optimizer", 1) not in recording.calls
    assert [call[2] for call in method.calls if call[0] == "forward"] == [[1.0, 1.0], [2.0, 2.0]]
    (record,) = lines(config)
    assert record["reward"] == 3.0
    assert set(record) == {
        "step",
        "total_loss",
        "reward",
        "lr/student",
        "step_time_sec",
        "vsa_sparsity",
    }


def test_each_step_logs_one_object_with_all_scalars(config: TrainingConfig) -> None:
    """Losses, metrics, rates, times and what callbacks log come as one object per step."""
    callbacks = {"grad_clip": {"max_grad_norm": 1.0}, "ema": {"decay": 0.5}}
    _, recording = run(config, ToyMethod(lr=0.1), 3, callback_configs=callbacks)
    records = lines(config)
    assert [record["step"] for record in records] == [1, 2, 3]
    assert set(records[0]) == {
        "step",
        "total_loss",
        "batch_mean",
        "grad_norm/student",
        "ema/decay",
        "lr/student",
        "step_time_sec",
        "dataloader_time_sec",
        "vsa_sparsity",
    }
    assert [record["lr/student"] for record in records] == pytest.approx([0.1, 0.05, 0.025])
    assert [record["batch_mean"] for record in records] == [1.0, 2.0, 3.0]
    assert [s["total_loss"] for s in recording.scalars] == [r["total_loss"] for r in records]
    assert all(0.0 <= r["dataloader_time_sec"] <= r["step_time_sec"] for r in records)


def test_losses_and_metrics_are_means_over_the_rounds(config: TrainingConfig) -> None:
    """With accumulation each scalar is the mean of its rounds."""
    config.loop.gradient_accumulation_steps = 2
    method = ToyMethod(lr=0.0)
    expected = [
        float(((method.student.transformer(b) - 2 * b) ** 2).mean().detach()) for b in batches(2)
    ]
    run(config, method, 1, loader=batches(2))
    (record,) = lines(config)
    assert record["total_loss"] == pytest.approx(sum(expected) / 2, rel=1e-6)
    assert record["batch_mean"] == 1.5


def test_accumulated_steps_equal_one_step_on_the_joint_batch(config: TrainingConfig) -> None:
    """Two rounds of one sample move the weights as one round of two samples does."""
    config.loop.gradient_accumulation_steps = 2
    accumulated = ToyMethod()
    run(config, accumulated, 1, loader=batches(2))
    config.loop.gradient_accumulation_steps = 1
    joint = ToyMethod()
    run(config, joint, 1, loader=[torch.cat(batches(2))])
    torch.testing.assert_close(
        accumulated.student.transformer.weight, joint.student.transformer.weight
    )


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_step_reads_the_device_once(
    config: TrainingConfig, monkeypatch: pytest.MonkeyPatch, accumulation: int
) -> None:
    """All scalars of a step, gradient norms included, come in one transfer."""
    import fastvideo.train.metrics as module  # noqa: PLC0415 - patched below

    reads: list[int] = []
    original = module._read

    def counting(tensors: Any) -> list[float]:
        reads.append(len(tensors))
        return original(tensors)

    def refuse(self: torch.Tensor) -> float:
        raise BrokenOnPurposeError

    monkeypatch.setattr(module, "_read", counting)
    monkeypatch.setattr(torch.Tensor, "item", refuse)
    monkeypatch.setattr(torch.Tensor, "__float__", refuse)
    monkeypatch.setattr(torch.Tensor, "__bool__", refuse)
    config.loop.gradient_accumulation_steps = accumulation
    config.tracker.trackers = ["jsonl"]
    run(config, ToyMethod(), 2, callback_configs={"grad_clip": {}, "ema": {}})
    assert reads == [2 * accumulation + 1] * 2


@pytest.mark.parametrize(
    ("losses", "metrics", "error", "words"),
    [
        ({}, {"total_loss": 1.0}, ValueError, "total_loss"),
        ({}, {"step_time_sec": 1.0}, ValueError, "step_time_sec"),
        ({}, {"dataloader_time_sec": 1.0}, ValueError, "dataloader_time_sec"),
        ({}, {"x": torch.zeros(2)}, ValueError, "'x' must be a scalar.*shape"),
        ({"y": torch.zeros(2, 3)}, {}, ValueError, r"'y' must be a scalar.*\(2, 3\)"),
        ({}, {"x": "text"}, TypeError, "'x'.*str"),
        ({"y": None}, {}, TypeError, "'y'.*NoneType"),
    ],
)
def test_unusable_scalars_are_refused(
    config: TrainingConfig, losses: Any, metrics: Any, error: type[Exception], words: str
) -> None:
    """Collisions, tensors that are no scalars, and other types end the run by name."""
    method = ToyMethod()
    method.extra_losses, method.extra_metrics = losses, metrics
    with pytest.raises(error, match=words):
        run(config, method, 1)


def test_a_nonfinite_loss_ends_the_run_by_default(config: TrainingConfig) -> None:
    """The error names step and loss, and the step is logged before it is raised."""
    method = ToyMethod()
    method.loss_scale = lambda step: math.nan if step == 2 else 1.0
    with pytest.raises(NonFiniteLossError, match=r"step 2.*total_loss = nan.*nonfinite_loss"):
        run(config, method, 3)
    records = lines(config)
    assert [record["step"] for record in records] == [1, 2]
    assert records[1]["total_loss"] == "NaN"


def test_skip_leaves_the_weights_alone(
    config: TrainingConfig, sink: RecordingSink, caplog: pytest.LogCaptureFixture
) -> None:
    """A skipped step keeps weights, scheduler and EMA, drops gradients, and keeps its regions."""
    config.nonfinite_loss = "skip"
    method = ToyMethod()
    method.loss_scale = lambda step: math.inf if step == 2 else 1.0
    seen: list[torch.Tensor] = []
    config.tracker.trackers = ["jsonl"]

    class Weights(Callback):
        def on_training_step_end(self, method: Any, loss_dict: Any, iteration: int = 0) -> None:
            seen.append(method.student.transformer.weight.detach().clone())
            assert method.student.transformer.weight.grad is None

    trainer = Trainer(config, callback_configs={"grad_clip": {}, "ema": {"decay": 0.5}})
    trainer.callbacks._callbacks["weights"] = Weights()
    trainer.run(method, dataloader=batches(), max_steps=3)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    records = lines(config)
    assert [record.get("optimizer_step_skipped") for record in records] == [None, 1.0, None]
    assert [record.get("nonfinite_loss") for record in records] == [None, 1.0, None]
    assert ["ema/decay" in record for record in records] == [True, False, True]
    assert [record["lr/student"] for record in records] == pytest.approx([0.1, 0.05, 0.05])
    assert sink.events == [
        ("enter", "training_train"),
        *ONE_STEP * 3,
        ("exit", "training_train"),
    ]
    assert "step 2: not finite: total_loss = inf; the optimizer step is left out" in caplog.text


def test_warn_goes_on_and_thins_out_its_warnings(
    config: TrainingConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Every bad step is marked in the metrics; the log has the 1st, 2nd, 4th and 8th."""
    config.nonfinite_loss = "warn"
    method = ToyMethod()
    method.loss_scale = lambda step: math.nan
    run(config, method, 9)
    assert [record["nonfinite_loss"] for record in lines(config)] == [1.0] * 9
    warned = [r.message for r in caplog.records if "not finite" in r.message]
    assert [message.partition(":")[0] for message in warned] == [
        "step 1",
        "step 2",
        "step 4",
        "step 8",
    ]


def test_managed_methods_cannot_skip(
    config: TrainingConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """For a method that steps by itself, skip is said to mean warn."""
    config.nonfinite_loss = "skip"
    method = ManagedMethod()
    method.loss_scale = lambda step: math.nan
    run(config, method, 1)
    assert "'skip' means 'warn' here: ManagedMethod" in caplog.text
    (record,) = lines(config)
    assert record["nonfinite_loss"] == 1.0
    assert "optimizer_step_skipped" not in record


def test_an_unknown_nonfinite_policy_is_refused(config: TrainingConfig) -> None:
    """The error lists what is possible."""
    config.nonfinite_loss = "ignore"
    with pytest.raises(ConfigError, match="'ignore'; expected one of raise, skip, warn"):
        run(config, ToyMethod(), 1)


def test_the_loader_is_iterated_again_when_exhausted(config: TrainingConfig) -> None:
    """Seven steps over three batches go round more than twice."""
    method = ToyMethod()
    run(config, method, 7)
    seen = [call[2][0] for call in method.calls if call[0] == "forward"]
    assert seen == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]


def test_an_empty_loader_is_a_clear_error(config: TrainingConfig) -> None:
    """A loader without batches ends the run, naming the settings to look at."""

    class Empty:
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    with pytest.raises(DataError, match=r"yields no batch.*data_path"):
        run(config, ToyMethod(), 1, loader=Empty())


def test_nothing_is_done_beyond_the_last_step(
    config: TrainingConfig, sink: RecordingSink, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is already complete enters no step and still ends properly."""
    caplog.set_level("INFO", "fastvideo")
    _, recording = run(config, ToyMethod(), 3, start_step=3)
    assert sink.events == inside("training_train")
    assert recording.calls[-1] == ("train_end", 3)
    assert "no steps to do: 3 of 3 are done" in caplog.text


class FakeTracker:
    """A tracker that remembers what reaches it."""

    active = True

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.finished: list[int] = []

    def log(self, metrics: Any, step: int) -> None:
        self.logged.append((step, dict(metrics)))

    def finish(self, exit_code: int = 0) -> None:
        self.finished.append(exit_code)


def with_fake_tracker(config: TrainingConfig) -> tuple[Trainer, FakeTracker]:
    """Returns a trainer whose step tracker logs to a fake."""
    config.tracker.trackers = ["none"]
    trainer = Trainer(config)
    fake = FakeTracker()
    trainer.tracker._tracker = fake
    return trainer, fake


def test_the_tracker_is_finished_with_the_outcome(config: TrainingConfig) -> None:
    """Exit code 0 after a good run, 1 after an exception."""
    trainer, good = with_fake_tracker(config)
    trainer.run(ToyMethod(), dataloader=batches(), max_steps=1)
    trainer, bad = with_fake_tracker(config)
    method = ToyMethod()
    method.extra_metrics = {"total_loss": 0.0}
    with pytest.raises(ValueError, match="total_loss"):
        trainer.run(method, dataloader=batches(), max_steps=1)
    assert (good.finished, bad.finished) == ([0], [1])


def test_an_interrupt_finishes_the_tracker_too(config: TrainingConfig) -> None:
    """KeyboardInterrupt passes through after the tracker was closed with 1."""
    trainer, fake = with_fake_tracker(config)
    method = ToyMethod()

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    method.optimizers_schedulers_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        trainer.run(method, dataloader=batches(), max_steps=1)
    assert fake.finished == [1]


def test_steps_are_logged_in_order_with_method_validation_behind(config: TrainingConfig) -> None:
    """What a method returns from its validation hook is logged at its step, in step order."""
    trainer, fake = with_fake_tracker(config)
    method = ToyMethod()
    method.on_validation_begin = lambda step: {"own": step} if step != 1 else {}
    trainer.run(method, dataloader=batches(), max_steps=2)
    assert [step for step, _ in fake.logged] == [0, 1, 2, 2]
    assert fake.logged[0][1] == {"own": 0}
    assert fake.logged[-1][1] == {"own": 2}
    assert all(a <= b for (a, _), (b, _) in pairwise(fake.logged))


def test_what_a_method_logs_in_a_step_joins_the_step(config: TrainingConfig) -> None:
    """Scalars logged through method.tracker during a step are part of its one object."""
    method = ToyMethod()
    original = method.single_train_step

    def logging_step(batch: torch.Tensor, iteration: int) -> Any:
        method.tracker.log({"on_device": torch.tensor(4.0), "plain": 5}, iteration)
        return original(batch, iteration)

    method.single_train_step = logging_step
    run(config, method, 1)
    (record,) = lines(config)
    assert (record["on_device"], record["plain"]) == (4.0, 5)


def test_a_rate_that_is_a_tensor_is_logged_as_it_was_used(config: TrainingConfig) -> None:
    """A capturable optimizer keeps its rate in a tensor, which the scheduler changes in place."""
    method = ToyMethod()
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam(method.student.transformer.parameters(), lr=rate)
    method._optimizer_dict = {"student": optimizer}

    def step(iteration: int) -> None:
        optimizer.step()
        rate.mul_(0.5)

    method.optimizers_schedulers_step = step
    run(config, method, 2)
    assert [record["lr/student"] for record in lines(config)] == pytest.approx([0.1, 0.05])


def test_the_batch_and_graph_are_freed_before_the_optimizer_runs(config: TrainingConfig) -> None:
    """When the optimizer steps, nothing of the trainer holds the last batch any more."""
    import weakref  # noqa: PLC0415 - this test only

    method = ToyMethod()
    alive: list[bool] = []
    references: list[weakref.ref[torch.Tensor]] = []
    forward, step = method.single_train_step, method.optimizers_schedulers_step

    def watching_forward(batch: torch.Tensor, iteration: int) -> Any:
        references.append(weakref.ref(batch))
        return forward(batch, iteration)

    def watching_step(iteration: int) -> None:
        alive.append(references[-1]() is not None)
        step(iteration)

    method.single_train_step = watching_forward
    method.optimizers_schedulers_step = watching_step

    class Loader:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return (batch.clone() for batch in batches())

    run(config, method, 2, loader=Loader())
    assert alive == [False, False]


def test_zero_accumulation_rounds_are_refused(config: TrainingConfig) -> None:
    """The error names the setting."""
    config.loop.gradient_accumulation_steps = 0
    with pytest.raises(ConfigError, match=r"training\.loop\.gradient_accumulation_steps"):
        run(config, ToyMethod(), 1)
