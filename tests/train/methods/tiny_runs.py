"""Runs of the methods on the tiny Wan model: in this process, and as a script on several ranks.

As a script, started by torchrun with a data set and a result file, every rank does the same runs
and rank 0 writes what came out as JSON. Noise is drawn by a generator per rank (seed + rank), so a
single process that should see the same numbers must draw each sample with the generator of the
rank that has it elsewhere. :func:`train_alone` does that: it plays the ranks one after the other
as accumulation rounds, which makes the same global batch and, since losses are means over equal
shares, the same gradients.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from fastvideo.dataset import (
    ParquetDatasetWriter,
    VideoBatch,
    basic_t2v_record_creator,
    build_parquet_dataloader,
    pyarrow_schema_t2v,
    records_to_table,
)
from fastvideo.dataset.encoders import load_transformer
from fastvideo.distributed import (
    cleanup_dist_env_and_memory,
    get_world_group,
    is_sharded,
    maybe_init_distributed_environment_and_model_parallel,
)
from fastvideo.train.config import TrainingConfig
from fastvideo.train.methods.distribution_matching.dmd2 import DMD2Method
from fastvideo.train.methods.fine_tuning.finetune import FineTuneMethod
from fastvideo.train.methods.knowledge_distillation.kd import KDMethod
from fastvideo.train.methods.knowledge_distillation.trajectory_dataset import trajectory_loader
from fastvideo.train.methods.rl.diffusion_nft import DiffusionNFTMethod
from fastvideo.train.models.gradient_checkpointing import apply_gradient_checkpointing
from fastvideo.train.models.wan import TEXT_LEN, WanModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastvideo.train.methods.base import TrainingMethod

MODEL = "tiny-random:wan2.1"
SEED = 11
RANKS = 2
STEPS = 4
MESHES = ((1, 2), (2, 1))
CHECKPOINTING = (None, "full", "ops", "block_skip")


def write_dataset(root: Path, rows: int = 8) -> Path:
    """Writes videos [16, 3, 8, 8] with a structure worth learning, and text of 5 tokens."""
    draws = torch.Generator().manual_seed(0)
    pattern = torch.randn((16, 1, 8, 8), generator=draws)
    batch = VideoBatch(
        video_file_name=[f"clip{i}" for i in range(rows)],
        prompt=[f"caption {i}" for i in range(rows)],
        latents=[
            pattern.expand(-1, 3, -1, -1) + 0.1 * torch.randn((16, 3, 8, 8), generator=draws)
            for _ in range(rows)
        ],
        prompt_embeds=[torch.randn((5, 32), generator=draws) for _ in range(rows)],
        width=[64] * rows,
        height=[64] * rows,
        fps=[8.0] * rows,
    )
    writer = ParquetDatasetWriter(str(root), samples_per_file=rows)
    writer.append_table(records_to_table(basic_t2v_record_creator(batch), pyarrow_schema_t2v))
    writer.flush(write_remainder=True)
    return root


def training_config(data: Path | str, mesh: tuple[int, int] = (1, 1)) -> TrainingConfig:
    """A training section for the data set of :func:`write_dataset`."""
    config = TrainingConfig()
    config.distributed.hsdp_replicate_dim, config.distributed.hsdp_shard_dim = mesh
    config.data.data_path = str(data)
    config.data.seed = SEED
    config.data.num_latent_t, config.data.num_height, config.data.num_width = 3, 64, 64
    config.optimizer.learning_rate = 1e-3
    config.loop.max_train_steps = 100
    config.dit_compute_dtype = "fp32"
    return config


def finetune(config: TrainingConfig) -> FineTuneMethod:
    """FineTune on the tiny model."""
    student = WanModel(training_config=config, init_from=MODEL)
    cfg = SimpleNamespace(training=config, method={})
    return FineTuneMethod(cfg=cfg, role_models={"student": student})


def dmd2(config: TrainingConfig) -> DMD2Method:
    """DMD2 on the tiny model, the student updated in every second step."""
    config.optimizer.betas = (0.0, 0.999)
    roles = {
        role: WanModel(training_config=config, init_from=MODEL, trainable=role != "teacher")
        for role in ("student", "teacher", "critic")
    }
    section = {
        "rollout_mode": "simulate",
        "dmd_denoising_steps": [1000, 750, 500, 250],
        "generator_update_interval": 2,
        "real_score_guidance_scale": 3.0,
        "fake_score_learning_rate": 1e-3,
        "fake_score_betas": [0.0, 0.999],
        "fake_score_lr_scheduler": "constant",
    }
    return DMD2Method(cfg=SimpleNamespace(training=config, method=section), role_models=roles)


def kd(config: TrainingConfig) -> KDMethod:
    """Knowledge distillation on the tiny model, with trajectories in the run's output or data."""
    roles = {
        role: WanModel(training_config=config, init_from=MODEL, trainable=role == "student")
        for role in ("student", "teacher")
    }
    section = {
        "t_list": [999, 857, 600, 0],
        "teacher_path_cache": Path(
            config.checkpoint.output_dir or str(config.data.data_path), "trajectories"
        ),
        "teacher_inference_steps": 3,
        "teacher_guidance_scale": 3.0,
    }
    return KDMethod(cfg=SimpleNamespace(training=config, method=section), role_models=roles)


def nft(config: TrainingConfig) -> DiffusionNFTMethod:
    """DiffusionNFT on the tiny model, for sharp videos that move smoothly."""
    roles = {
        role: WanModel(training_config=config, init_from=MODEL, trainable=role == "student")
        for role in ("student", "old", "reference")
    }
    rewards = "fastvideo.train.methods.rl.rewards"
    section = {
        "sampling_steps": 2,
        "samples_per_prompt": 2,
        "timestep_fraction": 0.5,
        "num_inner_epochs": 2,
        "kl_beta": 0.01,
        "old_decay_rate": 0.1,
        "ema_decay": 0.5,
        "rewards": {
            "sharpness": {"_target_": f"{rewards}.SharpnessReward"},
            "smoothness": {"_target_": f"{rewards}.MotionSmoothnessReward", "weight": 0.5},
        },
    }
    cfg = SimpleNamespace(training=config, method=section)
    return DiffusionNFTMethod(cfg=cfg, role_models=roles)


METHODS = {"finetune": finetune, "dmd2": dmd2, "kd": kd, "nft": nft}
COMPARED = ("finetune", "dmd2", "kd")
"""Methods whose steps are the trainer's."""


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _finish_step(method: TrainingMethod, step: int) -> None:
    method.optimizers_schedulers_step(step)
    method.optimizers_zero_grad(step)


def _scalars(losses: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: loss.item() for name, loss in losses.items()}


def train_alone(name: str, data: Path, steps: int = STEPS) -> list[list[dict[str, float]]]:
    """Trains in one process that plays all ranks; returns losses by step and rank."""
    config = training_config(data)
    method = METHODS[name](config)
    method.on_train_start()
    generators = [torch.Generator().manual_seed(SEED + rank) for rank in range(RANKS)]
    streams = [_endless(_loader_of(method, config, rank)) for rank in range(RANKS)]
    history = []
    for step in range(1, steps + 1):
        by_rank = []
        for generator, stream in zip(generators, streams, strict=True):
            method.cuda_generator = generator
            losses, outputs, _ = method.single_train_step(next(stream), step)
            method.backward(losses, outputs, grad_accum_rounds=RANKS)
            by_rank.append(_scalars(losses))
        _finish_step(method, step)
        history.append(by_rank)
    return history


def _loader_of(method: TrainingMethod, config: TrainingConfig, rank: int) -> Any:
    if isinstance(method, KDMethod):
        trajectories = method.student.dataloader.dataset
        return trajectory_loader(trajectories, config.data, group=rank, num_groups=RANKS)
    return build_parquet_dataloader(
        config.data.data_path,
        config.data.train_batch_size,
        parquet_schema=pyarrow_schema_t2v,
        text_padding_length=TEXT_LEN,
        seed=SEED,
        num_sp_groups=RANKS,
        global_rank=rank,
    )


def train_as_a_rank(name: str, data: str, mesh: tuple[int, int]) -> list[list[dict[str, float]]]:
    """Trains as one of several ranks; returns losses by step and rank."""
    config = training_config(data, mesh)
    config.checkpoint.output_dir = output_dir(data, mesh)
    method = METHODS[name](config)
    assert all(is_sharded(model.transformer) for model in method._role_models.values())
    method.on_train_start()
    stream = _endless(method.student.dataloader)
    history = []
    for step in range(1, STEPS + 1):
        losses, outputs, _ = method.single_train_step(next(stream), step)
        method.backward(losses, outputs)
        _finish_step(method, step)
        history.append(get_world_group().all_gather_object(_scalars(losses)))
    return history


def output_dir(data: str | Path, mesh: tuple[int, int]) -> str:
    """Where two ranks write."""
    return f"{data}_{mesh[0]}x{mesh[1]}"


def reward_steps(
    data: str | Path, mesh: tuple[int, int] = (1, 1), steps: int = 3
) -> list[dict[str, Any]]:
    """Takes steps of DiffusionNFT on the same global batches; returns metrics and ranks' losses."""
    config = training_config(data, mesh)
    config.data.train_batch_size = RANKS // get_world_group().world_size
    method = nft(config)
    method.on_train_start()
    stream = _endless(method.student.dataloader)
    history = []
    for step in range(1, steps + 1):
        losses, _, metrics = method.managed_train_step(stream, step)
        ranks = get_world_group().all_gather_object(_scalars(losses))
        history.append({"losses": ranks, "metrics": {k: float(v) for k, v in metrics.items()}})
    return history


def _inputs(config: TrainingConfig, rank: int) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(100 + rank)
    return {
        "vae_latent": torch.randn((1, 16, 3, 8, 8), generator=draws),
        "text_embedding": torch.randn((1, 8, 32), generator=draws),
    }


def _loss(model: WanModel, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(rank)
    batch = model.prepare_batch(_inputs(model._training_config, rank), generator=draws)
    velocity = model.predict_noise(batch.latents, batch.timesteps, batch, conditional=True)
    return velocity, (velocity - batch.latents).square().mean()


def compare_with_unsharded(
    data: str, mesh: tuple[int, int], checkpointing: str | None, dtype: str
) -> dict[str, Any]:
    """Compares velocity and gradients of a sharded model with those of a whole one."""
    config = training_config(data, mesh)
    config.dit_compute_dtype = dtype
    config.model.enable_gradient_checkpointing_type = checkpointing
    sharded = WanModel(training_config=config, init_from=MODEL)
    rank = get_world_group().rank
    velocity, loss = _loss(sharded, rank)
    loss.backward()
    gradients = {n: p.grad for n, p in sharded.transformer.named_parameters()}
    assert all(isinstance(g, DTensor) for g in gradients.values())
    full = {name: gradient.full_tensor() for name, gradient in gradients.items()}

    whole = sharded
    whole.transformer = load_transformer(sharded.model_dir)
    apply_gradient_checkpointing(whole.transformer, checkpointing)
    losses = [_loss(whole, r) for r in range(RANKS)]
    (sum(loss for _, loss in losses) / RANKS).backward()
    expected = {n: p.grad for n, p in whole.transformer.named_parameters()}
    scale = max(float(g.abs().max()) for g in expected.values())
    return {
        "same_names": list(full) == list(expected),
        "dtypes": sorted({str(g.dtype) for g in full.values()}),
        "velocity": float((velocity - losses[rank][0]).abs().max()),
        "gradient": max(float((full[n] - expected[n]).abs().max()) for n in full) / scale,
    }


def frozen_role(data: str) -> dict[str, Any]:
    """A frozen role is sharded too, and predicts what the whole model predicts."""
    model = WanModel(
        training_config=training_config(data, (1, 2)), init_from=MODEL, trainable=False
    )
    sharded = is_sharded(model.transformer)
    rank = get_world_group().rank
    velocity, _ = _loss(model, rank)
    model.transformer = load_transformer(model.model_dir)
    return {
        "sharded": sharded,
        "training": model.transformer.training and velocity.requires_grad,
        "velocity": float((velocity - _loss(model, rank)[0]).abs().max()),
    }


def main(data: str, out: str) -> None:
    """Does all runs of this file on this rank."""
    maybe_init_distributed_environment_and_model_parallel(1, 1)
    results: dict[str, Any] = {"frozen": frozen_role(data)}
    for name in COMPARED:
        for mesh in MESHES:
            results[f"{name} {mesh}"] = train_as_a_rank(name, data, mesh)
    for mesh in MESHES:
        results[f"nft {mesh}"] = reward_steps(data, mesh)
        for kind in CHECKPOINTING:
            results[f"fp32 {mesh} {kind}"] = compare_with_unsharded(data, mesh, kind, "fp32")
        results[f"bf16 {mesh} full"] = compare_with_unsharded(data, mesh, "full", "bf16")
    if get_world_group().is_first_rank:
        Path(out).write_text(json.dumps(results), encoding="utf-8")
    cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # torch's own threads sometimes abort a process that ends the usual way
