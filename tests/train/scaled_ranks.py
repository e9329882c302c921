"""What two gloo ranks measure of accumulation and of compiled blocks; a script for torchrun.

Rank 0 writes the results as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from fastvideo.distributed import (
    GradientReduction,
    cleanup_dist_env_and_memory,
    get_world_group,
    maybe_init_distributed_environment_and_model_parallel,
)
from fastvideo.profiler import RecordingSink, attach, detach
from fastvideo.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROUNDS = 3
STEPS = 2
REDUCTIONS = {
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "all_reduce": "all_reduce",
}
"""Functions of torch.distributed, in its versions, and what they do."""


def _tiny_runs() -> ModuleType:
    path = Path(__file__).parent / "methods" / "tiny_runs.py"
    spec = importlib.util.spec_from_file_location("tiny_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tiny_runs = _tiny_runs()


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the collectives that FSDP reduces gradients with, of more than one rank."""
    found: Counter[str] = Counter()
    originals = {name: getattr(dist, name) for name in REDUCTIONS if hasattr(dist, name)}

    def counting(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensor = args[0] if args else kwargs.get("output_tensor", kwargs.get("output"))
            group = kwargs.get("group")
            if group is not None and group.size() > 1 and tensor.numel() > 1:
                found[REDUCTIONS[name]] += 1
            return originals[name](*args, **kwargs)

        return call

    for name in originals:
        setattr(dist, name, counting(name))
    try:
        yield found
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def train(name: str, data: Path, mesh: tuple[int, int], **settings: Any) -> dict[str, Any]:
    """Trains two steps with the trainer itself; returns weights, collectives and regions."""
    config = tiny_runs.training_config(data, mesh)
    config.loop.gradient_accumulation_steps = ROUNDS
    config.distributed.reduce_every_round = settings.get("every_round", False)
    config.model.enable_torch_compile = settings.get("compiled", False)
    config.model.torch_compile_kwargs = {"backend": "aot_eager", "fullgraph": True}
    config.model.enable_gradient_checkpointing_type = "full"
    config.tracker.trackers = ["none"]
    method = tiny_runs.METHODS[name](config)
    sink = RecordingSink()
    attach(sink)
    try:
        with counted() as collectives:
            Trainer(config).run(method, dataloader=method.student.dataloader, max_steps=STEPS)
    finally:
        detach(sink)
    weights = {
        f"{role}.{n}": (p.full_tensor() if isinstance(p, DTensor) else p).detach()
        for role, modules in method.role_modules.items()
        for n, p in modules["transformer"].named_parameters()
    }
    return {
        "weights": weights,
        "collectives": dict(collectives),
        "regions": [f"{what} {region}" for what, region in sink.events],
    }


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Returns the largest difference of two runs' weights."""
    assert one["weights"].keys() == other["weights"].keys()
    return max(
        (weight - other["weights"][name]).abs().max().item()
        for name, weight in one["weights"].items()
    )


def accumulation(data: Path, name: str, mesh: tuple[int, int]) -> dict[str, Any]:
    """Compares reducing in the last round with reducing always, as FSDP does by itself."""
    once = train(name, data, mesh)
    every = train(name, data, mesh, every_round=True) if name == "finetune" else once
    original = GradientReduction.before_backward
    GradientReduction.before_backward = lambda self, *, last: None  # type: ignore[method-assign]
    try:
        always = train(name, data, mesh)
    finally:
        GradientReduction.before_backward = original  # type: ignore[method-assign]
    return {
        "difference": [difference(once, always), difference(every, always)],
        "once": once["collectives"],
        "every": every["collectives"],
        "always": always["collectives"],
    }


def compilation(data: Path, mesh: tuple[int, int]) -> dict[str, Any]:
    """Compares compiled blocks with others."""
    compiled = train("finetune", data, mesh, compiled=True)
    plain = train("finetune", data, mesh)
    return {
        "difference": difference(compiled, plain),
        "same_regions": compiled["regions"] == plain["regions"],
        "forwards": compiled["regions"].count("enter training_forward"),
        "same_collectives": compiled["collectives"] == plain["collectives"],
    }


def main(folder: Path) -> None:
    """Does everything on this rank."""
    maybe_init_distributed_environment_and_model_parallel(1, 1)
    data = folder / "data"
    if get_world_group().is_first_rank:
        tiny_runs.write_dataset(data)
    get_world_group().barrier()
    results = {
        "accumulation": {
            f"{name} {mesh}": accumulation(data, name, mesh)
            for name, mesh in (("finetune", (1, 2)), ("finetune", (2, 1)), ("dmd2", (1, 2)))
        },
        "compilation": compilation(data, (1, 2)),
    }
    if get_world_group().is_first_rank:
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # torch's own threads sometimes abort a process that ends the usual way
