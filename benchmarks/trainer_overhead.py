"""What the trainer costs beyond the loop that one would write oneself, on one rank and on two.

In the same rounds, the same Wan transformer is fine-tuned on the same data set with the same
optimizer and clipping: by a bare loop of twenty lines that writes its loss into a file; by the
trainer with a tracker that does; and by the trainer with metrics served and the spans of every
tenth step written to a file. On two ranks all of them are sharded alike.

Times are processor time of the training thread, which does all of the computing here: a busy
machine and a rank that waits for the other one disturb them less. The clock's time is given, too.
The model is the tiny one at a size at which a step takes about as long as the fastest real steps
on a GPU, some hundred milliseconds; what the trainer costs does not grow with the model, so it
weighs less where steps are longer. Both parts of the difference are printed in microseconds.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, thread_time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
from _harness import Ratio, measure, parse_arguments, ratio, report
from torch.nn.functional import mse_loss

from fastvideo import observability
from fastvideo.dataset import (
    ParquetDatasetWriter,
    VideoBatch,
    basic_t2v_record_creator,
    pyarrow_schema_t2v,
    records_to_table,
)
from fastvideo.distributed import (
    cleanup_dist_env_and_memory,
    get_world_group,
    get_world_size,
    maybe_init_distributed_environment_and_model_parallel,
)
from fastvideo.distributed.collective_wait import CollectiveWait, set_collective_wait
from fastvideo.profiler.region import get_clock, set_clock
from fastvideo.train.config import TrainingConfig
from fastvideo.train.data_stream import DataStream
from fastvideo.train.methods.fine_tuning.finetune import FineTuneMethod
from fastvideo.train.models.wan import WanModel
from fastvideo.train.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL: Final = 1.02
STEPS: Final = 5
LATENTS: Final = (16, 5, 32, 32)
CLIP: Final = 1.0
BARE, TRAINER, OBSERVED = "bare loop", "trainer", "trainer, telemetry on"
_RESULTS: Final = "TRAINER_OVERHEAD_RESULTS"
_DATA: Final = "TRAINER_OVERHEAD_DATA"


def write_data(root: Path, rows: int = 16) -> Path:
    """Writes videos of noise and texts of 64 tokens."""
    draws = torch.Generator().manual_seed(0)
    batch = VideoBatch(
        video_file_name=[f"clip{i}" for i in range(rows)],
        prompt=[f"caption {i}" for i in range(rows)],
        latents=[torch.randn(LATENTS, generator=draws) for _ in range(rows)],
        prompt_embeds=[torch.randn((64, 32), generator=draws) for _ in range(rows)],
        width=[LATENTS[3] * 8] * rows,
        height=[LATENTS[2] * 8] * rows,
        fps=[8.0] * rows,
    )
    writer = ParquetDatasetWriter(str(root), samples_per_file=rows)
    writer.append_table(records_to_table(basic_t2v_record_creator(batch), pyarrow_schema_t2v))
    writer.flush(write_remainder=True)
    return root


def make_config(data: Path, out: Path) -> TrainingConfig:
    """Returns the run that all cases do."""
    config = TrainingConfig()
    config.distributed.hsdp_shard_dim = get_world_size()
    config.data.data_path = str(data)
    config.data.num_latent_t = LATENTS[1]
    config.data.num_height, config.data.num_width = (8 * size for size in LATENTS[2:])
    config.optimizer.learning_rate = 1e-4
    config.optimizer.weight_decay = 0.01
    config.checkpoint.output_dir = str(out)
    config.tracker.trackers = ["jsonl"]
    config.loop.max_train_steps = 10**9
    return config


def make_model(config: TrainingConfig) -> WanModel:
    """Returns the tiny transformer, sharded if there are two ranks."""
    return WanModel(training_config=config, init_from="tiny-random:wan2.1")


def bare_loop(config: TrainingConfig, out: Path) -> Callable[[], None]:
    """Returns what does a block of steps of a loop that knows no trainer."""
    model = make_model(config)
    model.init_preprocessors(config)
    transformer: Any = model.transformer
    parameters = list(transformer.parameters())
    mean, std = model._stats()  # noqa: SLF001 - the statistics of the VAE
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    generator = torch.Generator().manual_seed(get_world_group().rank)
    stream = DataStream(model.dataloader)  # an endless iterator
    log = (out / f"bare{get_world_group().rank}.jsonl").open("w", encoding="utf-8")

    def block() -> None:
        for _ in range(STEPS):
            batch = next(stream)
            clean = (batch["vae_latent"] - mean) / std
            noise = torch.randn(clean.shape, generator=generator)
            level = torch.rand((len(clean),), generator=generator)
            sigma = 3 * level / (1 + 2 * level)
            weight = sigma[:, None, None, None, None]
            velocity = transformer(
                hidden_states=(1 - weight) * clean + weight * noise,
                timestep=1000 * sigma,
                encoder_hidden_states=batch["text_embedding"],
                return_dict=False,
            )[0]
            loss = mse_loss(velocity, noise - clean)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if get_world_group().is_first_rank:
                log.write(json.dumps({"loss": loss.item()}) + "\n")

    return block


def trained(config: TrainingConfig) -> tuple[Callable[[], None], FineTuneMethod]:
    """Returns what does a block of steps of the trainer."""
    cfg = SimpleNamespace(training=config, method={})
    method = FineTuneMethod(cfg=cfg, role_models={"student": make_model(config)})
    trainer = Trainer(config, callback_configs={"grad_clip": {"max_grad_norm": CLIP}})
    # The loop itself, without what a run does once.
    done = trainer._prepare(method, 0, None)  # noqa: SLF001
    runner = trainer._make_runner(method, method.student.dataloader, None)  # noqa: SLF001

    def block() -> None:
        nonlocal done
        trainer._loop(runner, method, range(done + 1, done + STEPS + 1), None, None)  # noqa: SLF001
        done += STEPS

    return block, method


class Case:
    """A case of the benchmark.

    Args:
        block: Does a block of steps.
        clock: The clock of regions while it does; None for no telemetry.

    Attributes:
        wall_s: Seconds of the clock, of every block.
    """

    def __init__(self, block: Callable[[], None], clock: Any = None) -> None:  # noqa: ANN401
        self._block = block
        self._clock = clock
        self.wall_s: list[float] = []

    def __call__(self) -> float:
        """Does a block; returns the thread's seconds per step."""
        set_clock(self._clock)
        get_world_group().barrier()
        wall, own = perf_counter(), thread_time()
        self._block()
        own = thread_time() - own
        self.wall_s.append((perf_counter() - wall) / STEPS)
        set_clock(None)
        return own / STEPS


def run_here(data: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Measures on the ranks there are; returns the thread's and the clock's seconds per step."""
    logging.getLogger("fastvideo").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        block, _ = trained(make_config(data, out / TRAINER))
        cases = {BARE: Case(bare_loop(make_config(data, out), out)), TRAINER: Case(block)}
        telemetry = observability.start(
            observability.TelemetryConfig.from_sources(
                {
                    "FASTVIDEO_METRICS_PORT": "0",
                    "FASTVIDEO_SPAN_DIR": str(out / "spans"),
                    "OTEL_TRACES_SAMPLER": "traceidratio",
                    "OTEL_TRACES_SAMPLER_ARG": "0.1",
                }
            )
        )
        block, method = trained(make_config(data, out / OBSERVED))
        wait = CollectiveWait(telemetry.add_collective_wait)
        wait.observe(method)
        set_collective_wait(wait)
        cases[OBSERVED] = Case(block, get_clock())
        own = measure(dict(cases), rounds=rounds)
        telemetry.shutdown()
    return {"own": own, "wall": {name: case.wall_s[-rounds:] for name, case in cases.items()}}


def run_on_two_ranks(data: Path, rounds: int, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Measures on two gloo ranks; returns what rank 0 found."""
    results = folder / "two.json"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run(
        [*launcher, __file__, "--rounds", str(rounds)],
        env={**os.environ, _RESULTS: str(results), _DATA: str(data), "OMP_NUM_THREADS": "1"},
        check=True,
    )
    found: dict[str, dict[str, list[float]]] = json.loads(results.read_text())
    return found


def main() -> None:
    """Measures and reports; as a rank of two, only measures."""
    arguments = parse_arguments(__doc__ or "", rounds=40)
    if _RESULTS in os.environ:
        maybe_init_distributed_environment_and_model_parallel(1, 1)
        found = run_here(Path(os.environ[_DATA]), arguments.rounds)
        if get_world_group().is_first_rank:
            Path(os.environ[_RESULTS]).write_text(json.dumps(found), encoding="utf-8")
        cleanup_dist_env_and_memory()
        os._exit(0)  # torch's own threads sometimes abort a process that ends the usual way
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder, "data"))
        measured = {
            "one rank": run_here(data, arguments.rounds),
            "two ranks": run_on_two_ranks(data, arguments.rounds, Path(folder)),
        }
    ratios: list[Ratio] = []
    seconds: dict[str, list[float]] = {}
    for ranks, found in measured.items():
        for kind, values in found.items():
            named = {
                f"{ranks}: {n}" + (", wall" if kind == "wall" else ""): v for n, v in values.items()
            }
            seconds |= named
            unit, *others = named
            goal = GOAL if kind == "own" else None
            ratios += [ratio(named, case, unit, goal) for case in others]
    report(
        "A step of the trainer, the bare loop's being 1",
        ratios,
        seconds=seconds,
        json_path=arguments.json,
    )
    for ranks, found in measured.items():
        bare = found["own"][BARE]
        for name in (TRAINER, OBSERVED):
            more = [a - b for a, b in zip(found["own"][name], bare, strict=True)]
            print(
                f"{ranks}: {name}: {1e6 * statistics.median(more):.0f} us more than a step of "
                f"{1e3 * statistics.median(bare):.1f} ms"
            )


if __name__ == "__main__":
    main()
