"""The training loop with checkpoints: resuming, saving, and being told to stop."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from toy_loop import (
    RecordingManager,
    ToyMethod,
    batches,
    lines,
    run,
)

from fastvideo.train.config import TrainingConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path) -> TrainingConfig:
    """Logs to a file in a folder of the test."""
    config = TrainingConfig()
    config.checkpoint.output_dir = str(tmp_path)
    config.tracker.trackers = ["jsonl"]
    return config


def test_resuming_follows_the_documented_order(config: TrainingConfig) -> None:
    """Optimizer state, checkpoint, iterator, then random state; steps go on after the resumed."""
    config.checkpoint.resume_from_checkpoint = "latest"
    method = ToyMethod()

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            method.calls.append(("iter",))
            return iter(batches())

    manager = RecordingManager(method.calls, resumed=2)
    _, recording = run(config, method, 4, loader=Loader(), checkpoint_manager=manager)
    names = [call for call in method.calls if call[0] not in {"forward", "backward"}]
    assert names == [
        ("set_tracker",),
        ("on_train_start",),
        ("seed_optimizer_state",),
        ("maybe_resume", "latest"),
        ("zero_grad", 2),
        ("iter",),
        ("load_rng_snapshot", "latest"),
        ("step", 3),
        ("zero_grad", 3),
        ("maybe_save", 3),
        ("step", 4),
        ("zero_grad", 4),
        ("maybe_save", 4),
        ("save_final", 4),
    ]
    assert recording.calls[:2] == [("train_start", 0), ("validation_begin", 2)]


def test_a_fresh_run_with_a_manager_seeds_nothing(config: TrainingConfig) -> None:
    """Without a checkpoint to resume from, no optimizer state is made and no RNG restored."""
    method = ToyMethod()
    manager = RecordingManager(method.calls, resumed=None)
    run(config, method, 1, checkpoint_manager=manager)
    names = {call[0] for call in method.calls}
    assert "seed_optimizer_state" not in names
    assert "load_rng_snapshot" not in names
    assert ("maybe_resume", "") in method.calls
    assert [c for c in method.calls if c[0].startswith(("maybe_s", "save"))] == [
        ("maybe_save", 1),
        ("save_final", 1),
    ]


class StopAfter:
    """Asks for the end after a step."""

    def __init__(self, step: int, log: list[tuple[Any, ...]]) -> None:
        self.step = step
        self.begun = 0
        self.log = log

    @contextmanager
    def awaited(self) -> Iterator[None]:
        self.log.append(("awaited",))
        yield
        self.log.append(("over",))

    def begin_step(self) -> None:
        self.begun += 1

    def agreed(self) -> bool:
        return self.begun == self.step

    def leave(self, step: int) -> None:
        self.log.append(("leave", step))
        raise SystemExit(143)


def test_a_run_that_is_told_to_stop_is_saved_first(config: TrainingConfig) -> None:
    """After the step in hand; nothing else of the run's end happens."""
    method = ToyMethod()
    manager = RecordingManager(method.calls, resumed=None)
    stop = StopAfter(2, method.calls)
    with pytest.raises(SystemExit):
        run(config, method, 9, checkpoint_manager=manager, stop_request=stop)
    assert [c for c in method.calls if c[0] in {"step", "maybe_save", "save_final", "leave"}] == [
        ("step", 1),
        ("maybe_save", 1),
        ("step", 2),
        ("maybe_save", 2),
        ("save_final", 2),
        ("leave", 2),
    ]
    assert ("close",) not in method.calls
    assert [line["step"] for line in lines(config)] == [1, 2]


def test_the_request_is_awaited_until_the_last_save(config: TrainingConfig) -> None:
    """So a signal during it does not cut it off."""
    method = ToyMethod()
    manager = RecordingManager(method.calls, resumed=None)
    stop = StopAfter(9, method.calls)
    run(config, method, 1, checkpoint_manager=manager, stop_request=stop)
    names = [call[0] for call in method.calls]
    assert names.index("awaited") < names.index("step")
    assert names.index("over") > names.index("save_final")


def test_an_error_lets_a_save_end(config: TrainingConfig) -> None:
    """What a thread is writing is not lost; a signal does not wait for it."""
    method = ToyMethod()
    manager = RecordingManager(method.calls, resumed=None)
    with pytest.raises(ZeroDivisionError):
        run(config, _failing(method, ZeroDivisionError()), 1, checkpoint_manager=manager)
    assert method.calls[-1] == ("close",)
    method.calls.clear()
    with pytest.raises(SystemExit):
        run(config, _failing(method, SystemExit(143)), 1, checkpoint_manager=manager)
    assert ("close",) not in method.calls


def _failing(method: ToyMethod, error: BaseException) -> ToyMethod:
    def fail(*args: Any, **kwargs: Any) -> NoReturn:
        raise error

    method.single_train_step = fail
    return method
