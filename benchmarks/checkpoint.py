"""How long training stands still for a checkpoint: saved at once, and saved by a thread.

A model of some hundred megabytes with its Adam state and EMA is saved by the trainer's own
checkpoint manager, with and without ``async_save``, and by ``torch.save`` of the same tensors to
one file that is synced to the disk, in turn. What counts is the time until the next step could
begin. After a save by the thread, its end is waited for and not counted, which is the case of a
run whose steps between two checkpoints take longer than writing one; how long writing took in all
is printed as well.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from _harness import measure, parse_arguments, ratio, report
from torch import nn

from fastvideo.train.callbacks import CallbackDict
from fastvideo.train.checkpoint.manager import CheckpointConfig, CheckpointManager
from fastvideo.train.config import TrainingConfig
from fastvideo.train.methods.base import TrainingMethod

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS = 20
WIDTH = 1024
_MIB = 2**20


class Method(TrainingMethod):
    """A stack of linear layers with AdamW, nothing of which is ever trained."""

    def __init__(self) -> None:
        """Makes the layers and their optimizer's state."""
        model: Any = SimpleNamespace(
            transformer=nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))),
            trainable=True,
        )
        cfg = SimpleNamespace(training=TrainingConfig(), method={})
        super().__init__(cfg=cfg, role_models={"student": model})
        self._optimizer_dict = {"student": torch.optim.AdamW(model.transformer.parameters())}
        self.cuda_generator = torch.Generator()
        self.seed_optimizer_state_for_resume()

    def single_train_step(self, batch: Any, iteration: int) -> Any:  # noqa: ANN401
        """Is not called."""
        raise NotImplementedError

    def get_optimizers(self, iteration: int) -> list[Any]:
        """Returns none."""
        del iteration
        return []

    def get_lr_schedulers(self, iteration: int) -> list[Any]:
        """Returns none."""
        del iteration
        return []


class Saver:
    """One way of saving: what the training waits for, and what writing takes in all."""

    def __init__(self, save: Callable[[int], None], wait: Callable[[], None]) -> None:
        self._save = save
        self._wait = wait
        self._step = 0
        self.whole: list[float] = []

    def __call__(self) -> float:
        """Saves once; returns the seconds until a step could begin."""
        self._step += 1
        start = perf_counter()
        self._save(self._step)
        stall = perf_counter() - start
        self._wait()
        self.whole.append(perf_counter() - start)
        return stall


def _managed(method: Method, callbacks: CallbackDict, out: Path, *, async_save: bool) -> Saver:
    config = CheckpointConfig(save_steps=1, keep_last=1, async_save=async_save)
    manager = CheckpointManager(method, [], out, config=config, callbacks=callbacks)
    return Saver(manager.maybe_save, lambda: manager.close(600.0))


def _torch_save(tensors: dict[str, torch.Tensor], out: Path) -> Saver:
    def save(step: int) -> None:
        with (out / f"{step}.pt").open("wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())
        (out / f"{step - 1}.pt").unlink(missing_ok=True)

    return Saver(save, lambda: None)


def main() -> None:
    """Measures and prints."""
    arguments = parse_arguments(__doc__ or "", rounds=5)
    logging.getLogger("fastvideo").setLevel(logging.ERROR)
    method = Method()
    callbacks = CallbackDict({"ema": {}}, None)
    callbacks.on_train_start(method, iteration=0)
    folder = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix=".checkpoint-benchmark-"))
    try:
        (folder / "file").mkdir()
        cases: dict[str, Saver] = {
            "manager": _managed(method, callbacks, folder / "sync", async_save=False),
            "manager, async_save": _managed(method, callbacks, folder / "async", async_save=True),
        }
        manager = CheckpointManager(method, [], folder, callbacks=callbacks)
        tensors = manager._state.tensors()  # noqa: SLF001 - the same tensors for torch.save
        cases["torch.save"] = _torch_save(tensors, folder / "file")
        seconds = measure(dict(cases), rounds=arguments.rounds)
    finally:
        shutil.rmtree(folder)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    report(
        f"Stall of one checkpoint of {size / _MIB:.0f} MiB, against torch.save of the same tensors",
        [
            ratio(seconds, "manager", "torch.save"),
            ratio(seconds, "manager, async_save", "torch.save"),
        ],
        seconds=seconds,
        json_path=arguments.json,
        bytes=size,
        whole_seconds={name: saver.whole for name, saver in cases.items()},
    )
    for name, saver in cases.items():
        stall = sorted(seconds[name])[len(seconds[name]) // 2]
        whole = sorted(saver.whole)[len(saver.whole) // 2]
        print(f"{name}: {stall:.2f} s of stall, {whole:.2f} s until it was on the disk")


if __name__ == "__main__":
    main()
