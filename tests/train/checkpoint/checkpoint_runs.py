"""Runs of the tiny Wan model that are saved, stopped and resumed.

As a script, started by torchrun with a data set and a folder, two ranks do all scenarios below
and rank 0 writes what came out as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from fastvideo.distributed import (
    cleanup_dist_env_and_memory,
    get_world_group,
    maybe_init_distributed_environment_and_model_parallel,
)
from fastvideo.train.checkpoint import lock
from fastvideo.train.checkpoint.errors import CheckpointError
from fastvideo.train.checkpoint.lock import OutputLock, output_dir_held
from fastvideo.train.checkpoint.manager import CheckpointConfig, CheckpointManager
from fastvideo.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from fastvideo.train.methods.base import TrainingMethod


def _tiny_runs() -> ModuleType:
    path = Path(__file__).parents[1] / "methods" / "tiny_runs.py"
    spec = importlib.util.spec_from_file_location("tiny_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tiny_runs = _tiny_runs()


class Recorder:
    """A tracker that remembers the scalars of every step, without times."""

    active = True

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        values = {k: float(v) for k, v in metrics.items() if not k.endswith("time_sec")}
        self.steps.setdefault(step, {}).update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class Run:
    """One run of a method, from its construction to its end.

    Args:
        name: ``finetune``, ``dmd2``, ``kd`` or ``nft``.
        data: The data set.
        out: Its output directory.
        mesh: Replicas and shards.
        workers: Loader workers.
        ema: Whether the EMA callback is on.
        save: How it is saved.
    """

    def __init__(
        self,
        name: str,
        data: Path,
        out: Path,
        *,
        mesh: tuple[int, int] = (1, 1),
        workers: int = 0,
        ema: bool = False,
        save: CheckpointConfig | None = None,
        batch_size: int = 1,
    ) -> None:
        config = tiny_runs.training_config(data, mesh)
        config.checkpoint.output_dir = str(out)
        config.data.dataloader_num_workers = workers
        config.data.train_batch_size = batch_size
        config.data.training_cfg_rate = 0.2
        config.optimizer.lr_scheduler = "cosine"
        config.tracker.trackers = ["none"]
        config.loop.max_train_steps = 10
        config.model.weighting_scheme = "logit_normal"
        self.config = config
        self.out = out
        self.save = save or CheckpointConfig()
        self.method: TrainingMethod = tiny_runs.METHODS[name](config)
        callbacks: dict[str, Any] = {"grad_clip": {"max_grad_norm": 1.0}}
        if ema:
            callbacks["ema"] = {"decay": 0.5, "start_iter": 2}
        self.trainer = Trainer(config, callback_configs=callbacks)
        self.recorder = Recorder()
        self.trainer.tracker._tracker = self.recorder
        self.manager: CheckpointManager | None = None

    def train(self, last: int, *, resume: str = "") -> Run:
        """Trains up to a step; returns itself."""
        self.config.checkpoint.resume_from_checkpoint = resume
        loader = self.method.student.dataloader
        self.manager = CheckpointManager(
            self.method,
            loader,
            self.out,
            config=self.save,
            callbacks=self.trainer.callbacks,
            raw_config={"training": {"loop": {"max_train_steps": last}}},
        )
        self.trainer.run(
            self.method, dataloader=loader, max_steps=last, checkpoint_manager=self.manager
        )
        return self

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns everything that is trained, averaged or kept by an optimizer, whole."""
        assert self.manager is not None
        return {
            name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()
            for name, t in self.manager._state.tensors().items()
        }


def resumed_equals_whole(name: str, data: Path, out: Path, **options: Any) -> dict[str, Any]:
    """Trains six steps at once, and three and three; returns what differs, and the losses."""
    save = CheckpointConfig(save_steps=3, async_save=options.pop("async_save", False))
    whole = Run(name, data, out / "whole", **options).train(6)
    Run(name, data, out / "parts", save=save, **options).train(3)
    second = Run(name, data, out / "parts", save=save, **options).train(6, resume="latest")
    return {
        "steps": list(second.recorder.steps),
        "whole": list(whole.recorder.steps.values()),
        "scalars": [s for s in (4, 5, 6) if second.recorder.steps[s] != whole.recorder.steps[s]],
        "tensors": differing(whole.tensors(), second.tensors()),
        "averages": sorted({n.partition(".")[0] for n in second.tensors() if "ema." in n}),
        "sharded": any(
            isinstance(p, DTensor) for p in whole.method.student.transformer.parameters()
        ),
    }


def two_ranks(data: Path, out: Path) -> dict[str, Any]:
    """Does the scenarios of two ranks; called by both."""
    results: dict[str, Any] = {}
    for key, name, mesh, options in (
        ("finetune", "finetune", (1, 2), {"workers": 2, "async_save": True}),
        ("dmd2", "dmd2", (1, 2), {"workers": 0}),
        ("kd", "kd", (1, 2), {"workers": 0}),
        ("nft", "nft", (1, 2), {"workers": 0, "async_save": True}),
        ("replicas", "finetune", (2, 1), {"workers": 0}),
    ):
        results[key] = resumed_equals_whole(name, data, out / key, mesh=mesh, ema=True, **options)
    # What one rank has saved, and what one rank will go on from.
    grown = Run("finetune", data, out / "one", mesh=(1, 2), ema=True).train(6, resume="latest")
    results["grown"] = {
        "steps": list(grown.recorder.steps),
        "scalars": list(grown.recorder.steps.values()),
        "position": grown.method.student.dataloader.state_dict()["_sampler_iter_state"],
    }
    results["unwritable"] = _message(
        lambda: Run(
            "finetune", data, Path("/proc/none"), mesh=(1, 2), save=CheckpointConfig(save_steps=1)
        ).train(1)
    )
    results["other_method"] = _message(
        lambda: Run("dmd2", data, out / "other", mesh=(1, 2)).train(
            7, resume=str(out / "finetune" / "parts")
        )
    )
    results["in_use"] = _message(lambda: in_use(out / "finetune" / "parts"))
    for name in ("dcp/__1_0.distcp", "rng_state_rank1.pt"):
        damage(out / "finetune" / "parts" / "checkpoint-6" / name)
        run = Run("finetune", data, out / "finetune" / "parts", mesh=(1, 2))
        results[name] = _message(lambda run=run: run.train(7, resume="latest"))
    results["nonfinite"] = nonfinite_on_one_rank(data, out / "nonfinite")
    return results


def nonfinite_on_one_rank(data: Path, out: Path) -> list[str]:
    """Saves weights of which the second rank's part has NaN; returns what metadata says."""
    run = Run("finetune", data, out, mesh=(1, 2), save=CheckpointConfig(save_steps=2)).train(1)
    with torch.no_grad():
        weight = run.method.student.transformer.proj_out.weight
        if not get_world_group().is_first_rank:
            weight.to_local().fill_(torch.nan)
    assert run.manager is not None
    run.manager.save_final(2)
    metadata = json.loads((out / "checkpoint-2" / "metadata.json").read_text(encoding="utf-8"))
    return list(metadata["nonfinite"])


def in_use(out: Path) -> None:
    """Asks on every rank for a directory that is locked."""
    held = OutputLock(out, run_id="other")
    if get_world_group().is_first_rank:
        held.acquire()
    try:
        lock._WAIT_S = 0.0
        with output_dir_held(out):
            pass
    finally:
        held.release()


def damage(path: Path) -> None:
    """Changes a byte in the middle of a file; every rank may call it."""
    if get_world_group().is_first_rank:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    get_world_group().barrier()


def _message(work: Callable[[], object]) -> str:
    try:
        work()
    except CheckpointError as error:
        return str(error)
    return "no error"


def differing(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> list[str]:
    """Returns the names of tensors that are not equal in every bit."""
    assert first.keys() == second.keys()
    return [name for name, tensor in first.items() if not torch.equal(tensor, second[name])]


def main(data: str, out: str) -> None:
    """Does the scenarios on this rank."""
    maybe_init_distributed_environment_and_model_parallel(1, 1)
    results = two_ranks(Path(data), Path(out))
    gathered = get_world_group().all_gather_object(results)
    if get_world_group().is_first_rank:
        Path(out, "results.json").write_text(json.dumps(gathered), encoding="utf-8")
    cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # torch's own threads sometimes abort a process that ends the usual way
