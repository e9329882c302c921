"""A run with validation, as a script for torchrun: `validation_runs.py DATA OUT RESULT`.

The student is sharded where there are several ranks, its average is kept, and three prompts are
shared, so that one of two ranks has a prompt too many.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from fastvideo.distributed import (
    cleanup_dist_env_and_memory,
    get_world_rank,
    get_world_size,
    maybe_init_distributed_environment_and_model_parallel,
)
from fastvideo.train.trainer import Trainer

CAPTIONS = ("a red ball", "a blue square", "snow")


def _tiny_runs() -> Any:
    path = Path(__file__).parents[1] / "methods" / "tiny_runs.py"
    spec = importlib.util.spec_from_file_location("tiny_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(data: Path, out: Path, *, every_steps: int) -> dict[int, dict[str, float]]:
    """Trains two steps; returns what was logged, by step."""
    tiny_runs = _tiny_runs()
    config = tiny_runs.training_config(data, (1, get_world_size()))
    config.checkpoint.output_dir = str(out)
    config.tracker.trackers = ["jsonl"]
    prompts = Path(f"{out}_prompts{get_world_rank()}.json")
    prompts.parent.mkdir(parents=True, exist_ok=True)
    prompts.write_text(json.dumps([{"caption": caption} for caption in CAPTIONS]))
    validation = {
        "pipeline_target": "fastvideo.pipelines.basic.wan.wan_pipeline.WanPipeline",
        "dataset_file": str(prompts),
        "every_steps": every_steps,
        "sampling_steps": [2],
        "guidance_scale": 3.0,
        "num_frames": 1,
    }
    method = tiny_runs.finetune(config)
    callbacks = {"ema": {"decay": 0.5}, "validation": validation}
    trainer = Trainer(config, callback_configs=callbacks)
    trainer.run(method, dataloader=method.student.dataloader, max_steps=2)
    steps: dict[int, dict[str, float]] = {}
    if get_world_rank() == 0:
        for line in (out / "tracker" / "metrics.jsonl").read_text().splitlines():
            scalars = json.loads(line)
            steps.setdefault(scalars.pop("step"), {}).update(scalars)
    return steps


def main() -> None:
    """Trains with and without validation, and writes what rank 0 logged."""
    data, out, result = map(Path, sys.argv[1:])
    maybe_init_distributed_environment_and_model_parallel(1, 1)
    logged = [run(data, out / name, every_steps=int(name)) for name in ("0", "1")]
    if get_world_rank() == 0:
        result.write_text(json.dumps(logged))
    cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()
